"""The snapshot a preemption decision is made from. GPUs are milli-GPU, times seconds on the caller's clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kopt.core.reason import Reason
from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import Member


@dataclass(frozen=True)
class Preemptor:
    """A workload that requests ``pods`` times ``gpus_per_pod``, all at once, and has waited since ``since_s``.

    ``budget_s``: how long it may be kept waiting for a cheaper time, counted from ``since_s``. ``alternatives``: other
    queues, or the same one in other flavours, that could also give it its GPUs.
    """

    name: str
    queue: str
    priority: int
    gpus_per_pod: MilliGpu
    since_s: float
    budget_s: float = 300.0
    pods: int = 1
    alternatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus_per_pod <= 0 or self.pods <= 0 or not self.budget_s >= 0:
            raise ValueError(
                f"{self.name}: {self.pods} pods of {self.gpus_per_pod} milli-GPU, budget {self.budget_s:g} s"
            )

    @property
    def gpus(self) -> MilliGpu:
        return MilliGpu(self.pods * self.gpus_per_pod)


@dataclass(frozen=True)
class RunningGang:
    """Pods that are scheduled and evicted together. ``started_at_s`` is the start of this run; ``preemptions`` counts
    all preemptions within the last day, whichever component made them.

    ``restart_s`` is how long a restart takes, where known; otherwise it is derived from the status. ``saves_s``: time
    from a save request to its checkpoint; None if the gang cannot be asked or was asked already. ``saved_at_s``: time
    of a save request that was answered; that checkpoint says nothing about the gang's own checkpoint interval.
    ``barred_by_class``: why workloads of its class are not selected, None if they are.
    ``frees``: the limits of quota (keys of ``Snapshot.free``) that all have its GPUs more once it is preempted; empty
    where its GPUs come free on the nodes of its members.
    """

    name: str
    queue: str
    priority: int
    members: tuple[Member, ...]
    started_at_s: float
    preemptible: bool = True
    preemptions: int = 0
    restart_s: float | None = None
    saves_s: float | None = None
    saved_at_s: float | None = None
    frees: tuple[str, ...] = ()
    barred_by_class: Reason | None = None

    def __post_init__(self) -> None:
        if not self.members or any(member.gpus < 0 for member in self.members):
            raise ValueError(f"gang {self.name!r} needs members, none of them with negative GPUs")

    @property
    def gpus(self) -> MilliGpu:
        return MilliGpu(sum(member.gpus for member in self.members))

    @property
    def freed(self) -> tuple[tuple[str, int], ...]:
        """What it frees, by node or limit."""
        if self.frees:
            return tuple((key, self.gpus) for key in self.frees)
        result: dict[str, int] = {}
        for member in self.members:
            result[member.node] = result.get(member.node, 0) + member.gpus
        return tuple(sorted(result.items()))


@dataclass(frozen=True)
class QueueShare:
    """A queue of the tree: its guarantee, the usage of its workloads and of all queues below it, and its limit."""

    name: str
    guaranteed: MilliGpu
    used: MilliGpu
    limit: MilliGpu | None = None
    parent: str = ""

    @property
    def borrowed(self) -> int:
        """Usage beyond the guarantee."""
        return max(0, self.used - self.guaranteed)


@dataclass(frozen=True)
class Snapshot:
    """Everything a preemption decision depends on, at one time.

    ``free`` is milli-GPU by node ("" where nodes do not matter), without what is promised to other workloads; negative
    amounts have to be freed first. Where quota limits the preemptor, ``free`` is by limit, and ``rooms`` are sets of
    limits: it fits if all limits of one set have its GPUs free.
    Raises ValueError for duplicate gang names and for a queue that is its own ancestor.
    """

    preemptor: Preemptor
    gangs: tuple[RunningGang, ...]
    now_s: float
    queues: Mapping[str, QueueShare] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    rooms: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if len({gang.name for gang in self.gangs}) < len(self.gangs):
            raise ValueError("two gangs have one name")
        for name in self.queues:
            list(self.lineage(name))

    def lineage(self, queue: str) -> Iterator[QueueShare]:
        """A queue and its known ancestors."""
        visited: set[str] = set()
        while (share := self.queues.get(queue)) is not None:
            if queue in visited:
                raise ValueError(f"queue {queue!r} is its own ancestor")
            visited.add(queue)
            yield share
            queue = share.parent

    @property
    def reclaims(self) -> bool:
        """Whether its queue stays within its guarantee with the preemptor: it reclaims quota that it owns."""
        own = next(self.lineage(self.preemptor.queue), None)
        return own is not None and own.used + self.preemptor.gpus <= own.guaranteed

    def lenders(self, gang: RunningGang) -> tuple[str, ...]:
        """Queues that lose GPUs if ``gang`` is preempted: its own and those ancestors that the preemptor is not in."""
        own = (self.preemptor.queue, *self.preemptor.alternatives)
        shared = {share.name for queue in own for share in self.lineage(queue)}
        return tuple(share.name for share in self.lineage(gang.queue) if share.name not in shared)
