"""What a decision about a pool rests on: queues that borrow, what runs and waits in them, pods, forecasts.

GPUs of workloads are thousandths, those of queues and pools whole.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kopt.cluster.client.resources import Key, Object, Resource
from kopt.cluster.holds.quota_loan import Place
from kopt.cluster.workloads.kueue import PodView
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.lending_pool import Borrower, LendingPool, PoolStatus
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.checkpoint_request import PodSaving
from kopt.policies.lending import Candidate

HOLDER = "lending"
"""The value of kaiwo.ai/held on what we told to go, and on queues that have more than they own."""
MINE = "kopt-reallocation"
_MOST_NAMED = 5
NOT_OURS = "NOT_OURS"
ADVICE_ANNOTATION = "kaiwo.ai/reallocation"


@dataclass(frozen=True)
class Pool:
    """A LendingPool; ``spec`` is None where it cannot be read, and ``trouble`` says why."""

    document: Object = field(compare=False, repr=False)
    name: str
    uid: str
    generation: int
    spec: LendingPool | None
    trouble: str = ""
    status: PoolStatus = field(default_factory=PoolStatus, compare=False)

    @property
    def created(self) -> str:
        """When, as it stands there: the older of two is the smaller."""
        return str(self.document["metadata"].get("creationTimestamp", ""))


@dataclass(frozen=True)
class SeenPod:
    """A pod with GPUs that has not ended. ``start_s``: from its node to its first readiness, once it is ready."""

    document: Object = field(compare=False, repr=False)
    view: PodView
    labels: Mapping[str, str]
    amounts: Mapping[str, int]
    running: bool
    leaving: bool
    bound: bool
    grace_s: float
    start_s: float | None
    saving: PodSaving

    @property
    def key(self) -> Key:
        return self.view.key


@dataclass(frozen=True)
class Borrowing:
    """A workload of a borrowing queue, by the object that is held to stop it. ``gpus`` in thousandths.

    ``candidate`` is None where it does not run. ``since_s``: since when it runs, or does not. ``barred``: why it is not
    ours to stop, so that it may not borrow.
    """

    resource: Resource
    document: Object = field(compare=False, repr=False)
    name: str
    uids: tuple[str, ...]
    gpus: int
    candidate: Candidate | None = None
    pods: tuple[SeenPod, ...] = ()
    since_s: float = 0.0
    barred: Reason | None = None


@dataclass(frozen=True)
class QueueView:
    """A borrowing queue. ``own`` GPUs are its own, ``stands`` may be used as its spec says now.

    ``used`` of running and of going workloads, ``asked`` by those that wait; thousandths. ``returning`` were let go and
    have no quota yet. ``values`` are its quotas by place: its own and what stands there. ``due`` are
    Commands that are still to be written for marked Jobs of Volcano's; "" stands for a mark to take away.
    """

    borrower: Borrower
    resource: Resource
    document: Object | None = field(compare=False, repr=False)
    own: int = 0
    stands: int = 0
    used: int = 0
    asked: int = 0
    returning: tuple[Borrowing, ...] = ()
    running: tuple[Borrowing, ...] = ()
    going: tuple[Borrowing, ...] = ()
    held: tuple[Borrowing, ...] = ()
    due: tuple[tuple[str, Borrowing], ...] = ()
    values: Mapping[Place, tuple[object, object]] = field(default_factory=dict)
    marked: bool = False
    coming: bool = False
    """Somebody was let go whom the queueing system has not in its queue yet: others would come before."""
    waiting: tuple[Borrowing, ...] = ()
    """Who may run and does not."""
    problem: Reason | None = None

    @property
    def barred(self) -> Reason | None:
        """Why nothing more is lent to it: what may not be stopped needs more than the queue owns."""
        borrowings = [
            borrowing
            for borrowing in (*self.running, *self.waiting)
            if borrowing.barred and borrowing.barred.code == NOT_OURS
        ]
        if sum(borrowing.gpus for borrowing in borrowings) <= self.own * WHOLE_GPU:
            return None
        names = ", ".join(borrowing.name for borrowing in borrowings[:_MOST_NAMED])
        why = borrowings[0].barred.message if borrowings[0].barred else ""
        text = (
            f"Nothing more is lent to {self.borrower.queue}: {names} may not be stopped, and its own "
            f"{self.own} GPUs are too few for what may not. {why}"
        )
        return Reason("NOT_RECLAIMABLE", text)

    @property
    def name(self) -> str:
        """Among the queues of a pool."""
        return "/".join(filter(None, (self.borrower.system, self.borrower.queue, self.borrower.flavor)))

    @property
    def borrowed(self) -> int:
        """GPUs beyond its own."""
        return math.ceil(max(0, self.used - self.own * WHOLE_GPU) / WHOLE_GPU)

    @property
    def beyond(self) -> int:
        """Thousandths of GPUs beyond its own, without what is on its way out."""
        return max(0, self.used - self.leaving - self.own * WHOLE_GPU)

    @property
    def staying(self) -> int:
        """The same in GPUs."""
        return math.ceil(self.beyond / WHOLE_GPU)

    @property
    def wanted(self) -> int:
        """GPUs beyond its own that those would use who stay and who wait."""
        waits = self.asked + sum(borrowing.gpus for borrowing in self.held)
        return math.ceil(max(0, self.used - self.leaving + waits - self.own * WHOLE_GPU) / WHOLE_GPU)

    @property
    def leaving(self) -> int:
        return sum(borrowing.gpus for borrowing in self.going)

    @property
    def closed(self) -> int:
        """Thousandths of GPUs that it may use while nobody new is to come on lent ones. KAI's queues keep what they
        use: KAI may take from a queue what it has beyond its quota."""
        own = self.own * WHOLE_GPU
        return max(own, self.used) if self.borrower.system is System.KAI else own

    def without(self, names: Collection[str]) -> "QueueView":
        """As it is once these are told to go."""
        gone = tuple(borrowing for borrowing in self.running if borrowing.name in names)
        return replace(
            self,
            running=tuple(borrowing for borrowing in self.running if borrowing not in gone),
            going=(*self.going, *gone),
        )
