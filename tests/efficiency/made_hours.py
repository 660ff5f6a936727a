"""GPU-hours of a made-up cluster: two jobs, one of which holds GPUs that it does not use."""

from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory, GpuHours, Workload
from kopt.dashboard.pages.efficiency.data import DAY_S, Efficiency
from kopt.policies.efficiency.busy_counts import BusyCounts, PoolUse, day_of

STEP_S = 1800


def history_of(namespace: str, kind: str = "PyTorchJob", end_s: float = 1_900_000_800.0) -> GpuHourHistory:
    """A day of ten GPUs of which nine can be used, eight are held and four compute, with six hours missing."""
    times_s = [end_s - STEP_S * index for index in reversed(range(48)) if not 10 <= index < 22]
    steps = tuple(ClusterStep(10, 9, 9, 8, 8, 4, at_s) for at_s in times_s)
    hours = len(steps) * STEP_S / 3600
    held = {
        Workload(namespace, kind, "main"): GpuHours(5 * hours, 5 * hours, 5 * hours, 4 * hours),
        Workload("other", "Deployment"): GpuHours(4 * hours, 3 * hours, 3 * hours, 0),
    }
    return GpuHourHistory(STEP_S, DAY_S, steps, held, {"n1": GpuHours(0, 8 * hours, 8 * hours, 4 * hours)}, {})


def state(name: str) -> Efficiency:
    """What the page has, with ``name`` wherever something comes from outside."""
    return Efficiency({"24h": history_of(name, name)}, configured=True, problem=name, days=days_of(name))


def days_of(pool: str, end_s: int = 1_900_000_800) -> tuple[PoolUse, ...]:
    """Four GPUs for three days: half of the time a tenth, half of it nine tenths; the second day was not recorded."""
    last_s = day_of(end_s)
    counts = BusyCounts.of({2: 4 * 12 * 12, 18: 4 * 12 * 12})
    return tuple(PoolUse(last_s - back * DAY_S, pool, counts, 24) for back in (2, 0))
