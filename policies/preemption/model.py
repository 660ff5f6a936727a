"""What a decision about pre-emption looks at. GPUs are milli-GPU, times seconds on the caller's clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kopt.core.checkpoint import JobStatus
from kopt.core.units import MilliGpu


@dataclass(frozen=True)
class Waiting:
    """A workload that asks for ``pods`` times ``gpus_per_pod``, all at once; it has waited since ``since_s``.

    ``budget_s``: how long it may be made to wait for a better moment, counted from then on.
    """

    name: str
    queue: str
    priority: int
    gpus_per_pod: MilliGpu
    since_s: float
    budget_s: float = 300.0
    pods: int = 1

    def __post_init__(self) -> None:
        if self.gpus_per_pod <= 0 or self.pods <= 0 or not self.budget_s >= 0:
            raise ValueError(
                f"{self.name}: {self.pods} pods of {self.gpus_per_pod} milli-GPU, budget {self.budget_s:g} s"
            )

    @property
    def gpus(self) -> MilliGpu:
        return MilliGpu(self.pods * self.gpus_per_pod)


@dataclass(frozen=True)
class Member:
    """Pods of a gang that write one log (all ranks of a training, or one role of several).

    ``status`` is what was known of it at ``seen_at_s``; None where nothing ever was. ``node`` may be left empty where
    it does not matter which GPUs come free together.
    """

    gpus: MilliGpu
    status: JobStatus | None = None
    seen_at_s: float = 0.0
    node: str = ""


@dataclass(frozen=True)
class RunningGang:
    """Pods that live and die together. ``started_at_s`` is the start of this run, ``preemptions`` are those by anyone
    within the last day.

    ``restart_s`` is what starting again takes, where that is known; else it is read off the status. ``saves_s``: it can
    be asked to save and should have done so after that long; None where it cannot be asked, or was already.
    ``saved_at_s``: it was asked at that time and has saved since, which tells nothing about its own rhythm.
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

    def __post_init__(self) -> None:
        if not self.members or any(member.gpus < 0 for member in self.members):
            raise ValueError(f"gang {self.name!r} needs members, none of them with negative GPUs")

    @property
    def gpus(self) -> MilliGpu:
        return MilliGpu(sum(member.gpus for member in self.members))

    @property
    def by_node(self) -> tuple[tuple[str, int], ...]:
        found: dict[str, int] = {}
        for member in self.members:
            found[member.node] = found.get(member.node, 0) + member.gpus
        return tuple(sorted(found.items()))


@dataclass(frozen=True)
class QueueShare:
    """A queue of the tree: what it is guaranteed, what its workloads and those below it use, what they may use."""

    name: str
    guaranteed: MilliGpu
    used: MilliGpu
    limit: MilliGpu | None = None
    parent: str = ""

    @property
    def borrowed(self) -> int:
        """What it uses beyond its guarantee."""
        return max(0, self.used - self.guaranteed)


@dataclass(frozen=True)
class Scene:
    """The moment a decision is about.

    ``free`` is milli-GPU by node ("" where nodes do not matter), without what is promised to other workloads; less than
    none is to be freed first.
    Raises ValueError for two gangs of one name or a queue that is its own ancestor.
    """

    waiting: Waiting
    gangs: tuple[RunningGang, ...]
    now_s: float
    queues: Mapping[str, QueueShare] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({gang.name for gang in self.gangs}) < len(self.gangs):
            raise ValueError("two gangs have one name")
        for name in self.queues:
            list(self.lineage(name))

    def lineage(self, queue: str) -> Iterator[QueueShare]:
        """A queue and those above it, as far as they are known."""
        seen: set[str] = set()
        while (share := self.queues.get(queue)) is not None:
            if queue in seen:
                raise ValueError(f"queue {queue!r} is its own ancestor")
            seen.add(queue)
            yield share
            queue = share.parent

    @property
    def reclaims(self) -> bool:
        """With the workload, its queue would still be within its guarantee: it takes back what it owns."""
        own = next(self.lineage(self.waiting.queue), None)
        return own is not None and own.used + self.waiting.gpus <= own.guaranteed

    def lenders(self, gang: RunningGang) -> tuple[str, ...]:
        """Queues that lose GPUs when ``gang`` makes room: its own and those above that are not the workload's too."""
        shared = {share.name for share in self.lineage(self.waiting.queue)}
        return tuple(share.name for share in self.lineage(gang.queue) if share.name not in shared)
