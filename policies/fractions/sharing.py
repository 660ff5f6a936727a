"""In which mode pods share GPUs, with which part of the SMs and of memory each: exclusive, time-slicing or MPS.

Two executors, two forms. A device plugin cuts every GPU of a node into equal replicas, and any of the pods may meet on
one: each has to fit in a replica. A claim is of one GPU and of pods that are known: their parts may differ, and add up
to the GPU at most. MPS only caps a client's threads ("Multi-Process Service", NVIDIA); where the caps of all clients
add up to the GPU, each is a guarantee too.

For latency the SMs count that a pod fills while it runs (``width``), for throughput those that it uses over time
(``use``): a pod that fills half of them for a tenth of the time answers as fast on half a GPU, and no faster on less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kopt.core.reason import Reason
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import ClassDuties, SharingExecutor, SharingMode, sharing_table
from kopt.core.units import counted

LEAST_PERCENT = 1


@dataclass(frozen=True)
class Sharer:
    """A pod with one GPU or a share of one. ``width_percent``: of the SMs, how many it fills while it runs;
    ``use_percent``: how many it uses over time, at its busiest; both when alone. ``mib``: of GPU memory at its peak.
    ``guarantee_percent``: what it was promised, 0 for nothing. ``owner``: the namespace.

    Raises ValueError for percentages beyond 100 and pods without memory.
    """

    name: str
    workload_class: WorkloadClass
    width_percent: int
    use_percent: int
    mib: int
    guarantee_percent: int = 0
    owner: str = ""

    def __post_init__(self) -> None:
        percentages = (self.width_percent, self.use_percent, self.guarantee_percent)
        if not all(0 <= percent <= 100 for percent in percentages) or self.mib <= 0:
            raise ValueError(f"{self.name}: percentages are from 0 to 100, memory is above 0")

    @property
    def duties(self) -> ClassDuties:
        """What its class has to have."""
        return sharing_table().classes[self.workload_class]

    @property
    def need_percent(self) -> int:
        """Alone, by what counts for its class: latency or throughput."""
        if self.duties.latency_critical:
            return max(LEAST_PERCENT, self.width_percent)
        return max(LEAST_PERCENT, min(self.use_percent, self.width_percent))

    @property
    def planned_percent(self) -> int:
        """What it is to have while nothing is contended."""
        return max(self.guarantee_percent, math.ceil(self.need_percent * self.duties.planned))

    @property
    def floor_percent(self) -> int:
        """What it keeps whatever happens."""
        return max(self.guarantee_percent, math.ceil(self.need_percent * self.duties.floor))


@dataclass(frozen=True)
class SharingHardware:
    """The GPUs of a node. ``capability``: CUDA's, None where it is not known or there is none. ``has_partitions``:
    MIG is on. ``mps_problem``: why MPS cannot be used just now, in a few words; empty where it can."""

    executor: SharingExecutor
    gpu_mib: int
    capability: tuple[int, int] | None = None
    has_partitions: bool = False
    mps_problem: str = ""


@dataclass(frozen=True)
class SharingSettings:
    """``headroom``: so much more than measured is planned, of SMs and memory."""

    headroom: float = 0.2

    def percent(self, measured: int) -> int:
        """Of SMs, with headroom."""
        return min(100, math.ceil(measured * (1 + self.headroom)))

    def mib(self, measured: int) -> int:
        """Of memory, with headroom."""
        return math.ceil(measured * (1 + self.headroom))


@dataclass(frozen=True)
class ClientShare:
    """Of one pod: at most so many per cent of the SMs and, in MiB, of memory. Only MPS enforces them."""

    name: str
    percent: int
    mib: int


@dataclass(frozen=True)
class SharingPlan:
    """``replicas``: of each GPU; 1 for exclusive. ``shares``: by pod, in the order of the question."""

    mode: SharingMode
    replicas: int
    shares: tuple[ClientShare, ...]
    reasons: tuple[Reason, ...] = field(default=(), compare=False)


def plan_node(hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings) -> SharingPlan:
    """For a device plugin: equal replicas of each GPU, of which every pod fits in one."""
    why_not = _unshareable(hardware, sharers)
    if why_not:
        return exclusive(hardware, sharers, why_not)
    problems: list[Reason] = []
    for mode in _preferred(hardware, sharers, problems):
        plan = in_replicas(mode, hardware, sharers, settings)
        if plan is not None:
            return SharingPlan(mode, plan.replicas, plan.shares, (_why(plan, sharers), *problems))
    return exclusive(hardware, sharers, _too_large(hardware, sharers, settings), problems)


def in_replicas(
    mode: SharingMode, hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings
) -> SharingPlan | None:
    """In a mode that shares, with the fewest replicas that put the pods on the fewest GPUs; None where two do not
    fit on one."""
    most = min(
        _most_clients(mode, hardware),
        *(100 // _needed(sharer, settings) for sharer in sharers),
        *(hardware.gpu_mib // settings.mib(sharer.mib) for sharer in sharers),
    )
    if most < 2:
        return None
    gpus = math.ceil(len(sharers) / most)
    replicas = max(2, math.ceil(len(sharers) / gpus))
    percent, mib = 100 // replicas, hardware.gpu_mib // replicas
    return SharingPlan(mode, replicas, tuple(ClientShare(sharer.name, percent, mib) for sharer in sharers))


def _needed(sharer: Sharer, settings: SharingSettings) -> int:
    """What is planned with headroom, as far as there is more than the guarantee."""
    return max(sharer.guarantee_percent, LEAST_PERCENT, settings.percent(sharer.planned_percent))


def plan_claim(hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings) -> SharingPlan:
    """For a claim of one GPU that these pods share: parts of their own, which add up to the GPU at most."""
    why_not = _unshareable(hardware, sharers)
    if why_not:
        return exclusive(hardware, sharers, why_not)
    problems: list[Reason] = []
    for mode in _preferred(hardware, sharers, problems):
        divide = divided if mode is SharingMode.MPS else in_turns
        shares = divide(hardware, sharers, settings) if len(sharers) <= _most_clients(mode, hardware) else None
        if shares is not None:
            plan = SharingPlan(mode, len(sharers), shares)
            return SharingPlan(mode, len(sharers), shares, (_why(plan, sharers), *problems))
    return exclusive(hardware, sharers, _too_large(hardware, sharers, settings), problems)


def divided(
    hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings
) -> tuple[ClientShare, ...] | None:
    """One GPU among pods: what is planned for each, and of the rest first what the latency-critical ones need with
    headroom, then the others. None where it is not enough for all."""
    planned = [sharer.planned_percent for sharer in sharers]
    mib = [settings.mib(sharer.mib) for sharer in sharers]
    rest = 100 - sum(planned)
    if rest < 0 or sum(mib) > hardware.gpu_mib:
        return None
    order = sorted(range(len(sharers)), key=lambda at: not sharers[at].duties.latency_critical)
    for at in order:
        more = min(rest, max(0, settings.percent(sharers[at].need_percent) - planned[at]))
        planned[at] += more
        rest -= more
    spare = (hardware.gpu_mib - sum(mib)) // len(sharers)
    return tuple(
        ClientShare(sharer.name, percent, amount + spare)
        for sharer, percent, amount in zip(sharers, planned, mib, strict=True)
    )


def in_turns(
    hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings
) -> tuple[ClientShare, ...] | None:
    """One GPU among pods that take equal turns; None where that is less than planned for one of them."""
    percent = 100 // len(sharers)
    mib = [settings.mib(sharer.mib) for sharer in sharers]
    if sum(mib) > hardware.gpu_mib or any(sharer.planned_percent > percent for sharer in sharers):
        return None
    return tuple(ClientShare(sharer.name, percent, amount) for sharer, amount in zip(sharers, mib, strict=True))


def exclusive(
    hardware: SharingHardware, sharers: Sequence[Sharer], reason: Reason, further: Sequence[Reason] = ()
) -> SharingPlan:
    """A GPU for each."""
    shares = tuple(ClientShare(sharer.name, 100, hardware.gpu_mib) for sharer in sharers)
    return SharingPlan(SharingMode.EXCLUSIVE, 1, shares, (reason, *further))


def _most_clients(mode: SharingMode, hardware: SharingHardware) -> int:
    table = sharing_table()
    most = table.executors[hardware.executor].most_replicas
    support = table.mps_of(hardware.capability)
    return min(most, support.clients) if mode is SharingMode.MPS and support is not None else most


def no_mps(hardware: SharingHardware) -> str:
    """Why MPS is not to be had on GPUs, in a few words; empty where it is."""
    table = sharing_table()
    if SharingMode.MPS not in table.executors[hardware.executor].modes:
        return "there is no MPS for these GPUs"
    support = table.mps_of(hardware.capability)
    if support is None:
        return "their compute capability is not known, so that MPS may limit nothing"
    if not support.limits:
        return "MPS limits neither threads nor memory before Volta"
    return hardware.mps_problem


def why_not_settable(hardware: SharingHardware, mode: SharingMode, replicas: int) -> str:
    """Why a device plugin cannot share GPUs so, in a few words; empty where it can."""
    if hardware.has_partitions:
        return "they are cut into MIG instances"
    if mode is SharingMode.EXCLUSIVE:
        return "" if replicas == 1 else "an exclusive GPU has no replicas"
    if mode is SharingMode.MPS and (why := no_mps(hardware)):
        return why
    most = _most_clients(mode, hardware)
    return "" if 2 <= replicas <= most else f"{mode} is of 2 to {most} replicas"


def _preferred(hardware: SharingHardware, sharers: Sequence[Sharer], problems: list[Reason]) -> tuple[SharingMode, ...]:
    """Modes that share, the better first. What keeps MPS away is added to ``problems``.

    Limits are for those that have to answer in time. Others of several owners rather take turns: a fatal fault of a
    client of MPS ends all of them.
    """
    problem = no_mps(hardware)
    if problem:
        problems.append(Reason("SHARING_WITHOUT_MPS", f"MPS is not used: {problem}."))
        return (SharingMode.TIME_SLICING,)
    critical = any(sharer.duties.latency_critical for sharer in sharers)
    if critical or len({sharer.owner for sharer in sharers}) == 1:
        return SharingMode.MPS, SharingMode.TIME_SLICING
    return SharingMode.TIME_SLICING, SharingMode.MPS


def _unshareable(hardware: SharingHardware, sharers: Sequence[Sharer]) -> Reason | None:
    """Why these GPUs are not shared, whatever runs on them."""
    if hardware.executor is SharingExecutor.NONE:
        means = sharing_table().executors[hardware.executor].means
        return Reason("SHARING_NOT_SETTABLE", f"{means[0].upper()}{means[1:]}; `kopt partitions` cuts GPUs.")
    if hardware.has_partitions:
        return Reason(
            "SHARING_OF_PARTITIONS", "Its GPUs are cut into MIG instances, which the plugin shares by MPS never."
        )
    if hardware.gpu_mib <= 0:
        return Reason("SHARING_NOT_MEASURED", "The node does not say how much memory its GPUs have.")
    if len(sharers) < 2:
        return Reason("SHARING_EXCLUSIVE", f"{counted(len(sharers), 'pod')} could share: each has a GPU of its own.")
    return None


def _too_large(hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings) -> Reason:
    widest = max(sharers, key=lambda sharer: _needed(sharer, settings))
    largest = max(sharers, key=lambda sharer: sharer.mib)
    return Reason(
        "SHARING_EXCLUSIVE",
        f"No two fit on a GPU: {widest.name} is to have {_needed(widest, settings)} % of the SMs, {largest.name} "
        f"{settings.mib(largest.mib)} of {hardware.gpu_mib} MiB.",
        {"percent": _needed(widest, settings), "mib": settings.mib(largest.mib), "gpu_mib": hardware.gpu_mib},
    )


def _why(plan: SharingPlan, sharers: Sequence[Sharer]) -> Reason:
    critical = sum(sharer.duties.latency_critical for sharer in sharers)
    numbers = {"replicas": plan.replicas, "pods": len(sharers), "latency_critical": critical}
    if plan.mode is SharingMode.MPS:
        why = (
            f"{counted(critical, 'pod')} with a latency to keep" if critical else "one owner's pods, which share faults"
        )
        return Reason("SHARING_BY_MPS", f"{plan.replicas} to a GPU at once, each held to its part: {why}.", numbers)
    why = "their floors hold in turns" if critical else "none has a latency to keep, and faults stay apart"
    return Reason("SHARING_BY_TURNS", f"{plan.replicas} to a GPU in turns: {why}. Memory is not enforced.", numbers)
