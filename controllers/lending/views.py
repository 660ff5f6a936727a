"""The input of a decision about a pool: borrowing queues, their workloads, and pods.

GPUs of workloads are milli-GPUs, those of queues and pools whole ones.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.cluster.client.resources import Key, Object, Resource
from kopt.cluster.holds.quota_loan import QuotaPath
from kopt.cluster.workloads.kueue.objects import GpuPod
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.lending_pool import Borrower, LendingPool, PoolStatus
from kopt.core.units import WHOLE_GPU, counted
from kopt.core.workload.checkpoint_request import PodSaving
from kopt.policies.lending import Candidate

HOLDER = "lending"
"""The value of kaiwo.ai/held on workloads that we have stopped, and on queues whose quota is raised."""
MINE = "kopt-reallocation"
_MOST_NAMED = 5
NOT_OURS = "NOT_OURS"
ADVICE_ANNOTATION = "kaiwo.ai/reallocation"


@dataclass(frozen=True)
class Pool:
    """A LendingPool; ``spec`` is None where it cannot be read, and ``error`` says why."""

    document: Object = field(compare=False, repr=False)
    name: str
    uid: str
    generation: int
    spec: LendingPool | None
    error: str = ""
    status: PoolStatus = field(default_factory=PoolStatus, compare=False)

    @property
    def created(self) -> str:
        """Its creation timestamp: that of the older pool is the smaller."""
        return str(self.document["metadata"].get("creationTimestamp", ""))


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs that has not ended. ``start_s``: from its node to its first readiness, once it is ready."""

    document: Object = field(compare=False, repr=False)
    gpu_pod: GpuPod
    labels: Mapping[str, str]
    amounts: Mapping[str, int]
    running: bool
    terminating: bool
    bound: bool
    grace_s: float
    start_s: float | None
    saving: PodSaving
    placement: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What of its spec decides on which nodes it may run."""

    @property
    def key(self) -> Key:
        return self.gpu_pod.key


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
    pods: tuple[ObservedPod, ...] = ()
    since_s: float = 0.0
    barred: Reason | None = None


@dataclass(frozen=True)
class BorrowingQueue:
    """A borrowing queue. ``own`` GPUs are its own, and ``own_part`` milli-GPUs where Kueue counts them in thousandths;
    ``stands`` may be used as its spec says now.

    ``used`` by running and terminating workloads, ``pending_gpus`` by pending ones; milli-GPUs. ``returning`` were
    released and have no quota yet. ``values`` are its quotas by path: its own and the one in its spec. ``due`` are
    Commands that are still to be written for marked Jobs of Volcano's; "" stands for a mark to remove.
    """

    borrower: Borrower
    resource: Resource
    document: Object | None = field(compare=False, repr=False)
    own: int = 0
    stands: int = 0
    used: int = 0
    pending_gpus: int = 0
    returning: tuple[Borrowing, ...] = ()
    running: tuple[Borrowing, ...] = ()
    terminating: tuple[Borrowing, ...] = ()
    held: tuple[Borrowing, ...] = ()
    due: tuple[tuple[str, Borrowing], ...] = ()
    values: Mapping[QuotaPath, tuple[object, object]] = field(default_factory=dict)
    marked: bool = False
    requeueing: bool = False
    """A workload was released and is not back in its queue yet: others would be admitted before it."""
    pending: tuple[Borrowing, ...] = ()
    """Workloads that may run and do not."""
    problem: Reason | None = None
    own_part: int = 0
    backed: int | None = None
    """Milli-GPUs of its own quota that others of its cohort have left to it; None: all."""

    @property
    def own_milli(self) -> int:
        """Milli-GPUs that are its own."""
        return self.own * WHOLE_GPU + self.own_part

    @property
    def unborrowed(self) -> int:
        """Milli-GPUs that it uses without borrowing from a pool."""
        return self.own_milli if self.backed is None else max(0, min(self.own_milli, self.backed))

    @property
    def barred(self) -> Reason | None:
        """Why nothing more is lent to it: what may not be stopped needs more than the queue owns."""
        borrowings = [
            borrowing
            for borrowing in (*self.running, *self.pending)
            if borrowing.barred and borrowing.barred.code == NOT_OURS
        ]
        if sum(borrowing.gpus for borrowing in borrowings) <= self.own_milli:
            return None
        names = ", ".join(borrowing.name for borrowing in borrowings[:_MOST_NAMED])
        why = borrowings[0].barred.message if borrowings[0].barred else ""
        text = (
            f"Nothing more is lent to {self.borrower.queue}: {names} may not be stopped, and need more than the "
            f"queue's own {counted(self.own, 'GPU')}. {why}"
        )
        return Reason("NOT_RECLAIMABLE", text)

    @property
    def name(self) -> str:
        """Among the queues of a pool."""
        return "/".join(filter(None, (self.borrower.system, self.borrower.queue, self.borrower.flavor)))

    @property
    def borrowed(self) -> int:
        """GPUs beyond its own."""
        return math.ceil(max(0, self.used - self.unborrowed) / WHOLE_GPU)

    @property
    def beyond(self) -> int:
        """Milli-GPUs beyond its own, without what is terminating."""
        return max(0, self.used - self.terminating_gpus - self.unborrowed)

    @property
    def staying(self) -> int:
        """The same in GPUs."""
        return math.ceil(self.beyond / WHOLE_GPU)

    @property
    def wanted(self) -> int:
        """GPUs beyond its own that running and pending workloads would use."""
        add_pending = self.pending_gpus + sum(borrowing.gpus for borrowing in self.held)
        return math.ceil(max(0, self.used - self.terminating_gpus + add_pending - self.unborrowed) / WHOLE_GPU)

    @property
    def terminating_gpus(self) -> int:
        """Milli-GPUs of workloads that were asked to stop."""
        return sum(borrowing.gpus for borrowing in self.terminating)

    @property
    def closed(self) -> int:
        """Milli-GPUs that it may use while no new workload may start on lent ones. KAI's queues keep what they use:
        KAI may reclaim from a queue what it has beyond its quota."""
        return max(self.own_milli, self.used) if self.borrower.system is System.KAI else self.own_milli

    def without(self, names: Collection[str]) -> "BorrowingQueue":
        """As it is once these workloads are asked to stop."""
        stopping = tuple(borrowing for borrowing in self.running if borrowing.name in names)
        return replace(
            self,
            running=tuple(borrowing for borrowing in self.running if borrowing not in stopping),
            terminating=(*self.terminating, *stopping),
        )
