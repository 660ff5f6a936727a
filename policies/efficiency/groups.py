"""GPU-hours of workloads by what they have in common, and of nodes by their pool."""

from collections.abc import Callable, Iterable, Mapping

from kopt.core.units import format_span
from kopt.core.workload.gpu_hours import GpuHourHistory, GpuHours, Workload
from kopt.policies.cost.attribution import UNATTRIBUTED

GONE = "(nodes that are gone)"


def workload_hours(history: GpuHourHistory, name_of: Callable[[Workload], str]) -> dict[str, GpuHours]:
    """By the name that ``name_of`` gives a workload; what it gives none is ``UNATTRIBUTED``."""
    return _summed((name_of(each) or UNATTRIBUTED, hours) for each, hours in history.by_workload.items())


def pool_hours(history: GpuHourHistory, pools: Mapping[str, str]) -> dict[str, GpuHours]:
    """What nodes of a pool had, and what Kueue held back for it; ``pools`` is by node."""
    held = _summed((pools.get(node, GONE), hours) for node, hours in history.by_node.items())
    waited = _summed((pool, GpuHours(requested=hours)) for pool, hours in history.waited_by_pool.items())
    requested = {name: hours + GpuHours(requested=hours.allocated) for name, hours in held.items()}
    return _summed((*requested.items(), *waited.items()))


def wasteful_first(groups: Mapping[str, GpuHours]) -> list[tuple[str, GpuHours]]:
    """Names and hours, those that held most without computing first; without any hours they are left out."""
    kept = ((name, hours) for name, hours in groups.items() if hours != GpuHours())
    return sorted(kept, key=lambda each: (-each[1].unused, -each[1].requested, each[0]))


def covered(history: GpuHourHistory) -> str:
    """How much of the window was recorded, as a sentence."""
    steps, window = f"a sample every {format_span(history.step_s)}", format_span(history.window_s)
    if history.coverage > 0.99:
        return f"The last {window}, {steps}."
    return f"Only {format_span(history.recorded_s)} of the last {window} were recorded, {steps}."


def _summed(parts: Iterable[tuple[str, GpuHours]]) -> dict[str, GpuHours]:
    result: dict[str, GpuHours] = {}
    for name, hours in parts:
        result[name] = result.get(name, GpuHours()) + hours
    return result
