"""GPU-hours of a made-up cluster: two jobs, one of which holds GPUs that it does not use."""

from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory, GpuHours, Workload
from kopt.dashboard.pages.efficiency.data import DAY_S, Efficiency

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
    return Efficiency({"24h": history_of(name, name)}, configured=True, problem=name)
