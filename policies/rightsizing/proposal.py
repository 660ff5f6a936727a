"""What CPU or memory a running container should request, by what it used: as robusta's KRR does it, within the limits
of a resize in place.

CPU requests follow the 95th percentile of use, memory and every limit its maximum, each with a margin. At most half is
taken away at once, small changes are not made, and neither the pod's QoS class nor a container's restart is at stake.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kopt.core.reason import Reason
from kopt.core.units import MIB, format_span
from kopt.core.workload.rightsizing import Bounds, ContainerResources, ContainerUse, Lever, QosClass, Resize


@dataclass(frozen=True)
class ProposalSettings:
    """Amounts by lever are milli-CPU and bytes."""

    margin: float = 0.15
    """Above what was used (KRR: 15 % of memory)."""
    least_measured_s: float = 3600.0
    most_taken: float = 0.5
    """Share of a request or limit that one change may take away."""
    least_change: float = 0.1
    """Share of the request; less is not worth a change."""
    least_cpu_change: int = 100
    least_memory_change: int = 256 * MIB
    least_cpu: int = 100
    least_memory: int = 256 * MIB


def qos_class(containers: Sequence[ContainerResources]) -> QosClass:
    """As the API server computes it, init containers included."""
    bounds = [(each.of(lever).request, each.of(lever).limit) for each in containers for lever in Lever]
    if all(limit is not None and request in (None, limit) for request, limit in bounds):
        return QosClass.GUARANTEED
    if all(not request and not limit for request, limit in bounds):
        return QosClass.BEST_EFFORT
    return QosClass.BURSTABLE


def propose(
    containers: Sequence[ContainerResources],
    name: str,
    lever: Lever,
    use: ContainerUse | None,
    settings: ProposalSettings = ProposalSettings(),
) -> Resize | Reason:
    """The change of one container of a pod with these ``containers``, or why there is none."""
    container = next(each for each in containers if each.name == name)
    if refusal := _refusal(container, lever, use, settings):
        return refusal
    assert use is not None
    before, qos = container.of(lever), qos_class(containers)
    after = _bounds(before, lever, use, settings, whole=qos is QosClass.GUARANTEED)
    if not _is_worth_it(before, after, lever, settings):
        return Reason("RIGHT_SIZED", f"{name} uses what it requests of {lever}, within {settings.least_change:.0%}.")
    changed = [_with(each, lever, after) if each is container else each for each in containers]
    if (becomes := qos_class(changed)) is not qos:
        return Reason(
            "QOS_WOULD_CHANGE", f"The pod would become {becomes} and is {qos}, which a resize in place may not change."
        )
    return Resize(name, lever, before, after)


def _refusal(
    container: ContainerResources, lever: Lever, use: ContainerUse | None, settings: ProposalSettings
) -> Reason | None:
    name, bounds = container.name, container.of(lever)
    if not container.resizable:
        return Reason("NOT_RESIZABLE", f"{name} is an init container.")
    if not bounds.request:
        return Reason("NO_REQUEST", f"{name} requests no {lever}, and a resize in place can add no request.")
    if lever in container.restarts_for:
        return Reason("RESTART_NEEDED", f"The resizePolicy of {name} restarts it when its {lever} changes.")
    if use is None:
        return Reason("USE_UNMEASURED", f"No series says what {name} uses: are cAdvisor's metrics scraped?")
    if use.measured_s < settings.least_measured_s:
        return Reason(
            "USE_UNMEASURED",
            f"{name} was measured for {format_span(use.measured_s)}; {format_span(settings.least_measured_s)} is the "
            "least.",
            {"measured_s": use.measured_s},
        )
    return None


def _bounds(before: Bounds, lever: Lever, use: ContainerUse, settings: ProposalSettings, *, whole: bool) -> Bounds:
    """``whole``: CPUs may be exclusive ones, which whole numbers alone get; what was whole stays so."""
    highest = use.cpu_max if lever is Lever.CPU else use.memory_max_bytes
    typical = use.cpu_p95 if lever is Lever.CPU else use.memory_max_bytes
    tied = before.limit is not None and before.limit == before.request
    unit = 1000 if lever is Lever.CPU and whole and (before.request or 0) % 1000 == 0 else _UNITS[lever]
    request = _amount(before.request or 0, highest if tied else typical, lever, settings, unit)
    if before.limit is None or tied:
        return Bounds(request, request if tied else None)
    # A limit above the request costs nobody anything: it is only ever raised.
    limit = max(before.limit, _amount(before.limit, highest, lever, settings, unit), request)
    return Bounds(request, limit)


_UNITS = {Lever.CPU: 10, Lever.MEMORY: 16 * MIB}


def _amount(before: int, used: float, lever: Lever, settings: ProposalSettings, unit: int) -> int:
    least = settings.least_cpu if lever is Lever.CPU else settings.least_memory
    wanted = max(used * (1 + settings.margin), before * (1 - settings.most_taken), least)
    return math.ceil(wanted / unit) * unit


def _is_worth_it(before: Bounds, after: Bounds, lever: Lever, settings: ProposalSettings) -> bool:
    least = settings.least_cpu_change if lever is Lever.CPU else settings.least_memory_change
    changes = ((before.request, after.request), (before.limit, after.limit))
    return any(abs(new - old) >= max(least, settings.least_change * old) for old, new in changes if old and new)


def _with(container: ContainerResources, lever: Lever, bounds: Bounds) -> ContainerResources:
    return replace(container, cpu=bounds) if lever is Lever.CPU else replace(container, memory=bounds)
