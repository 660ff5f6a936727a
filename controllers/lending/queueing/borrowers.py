"""What borrowers of all queueing systems have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.holds.hold import is_mirrored
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.views import NOT_OURS, Borrowing, BorrowingQueue, ObservedPod
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import Cause, Entry
from kopt.core.workload.save_state import SaveState, save_state
from kopt.policies.admission.mode import effective_mode
from kopt.policies.lending import Candidate
from kopt.policies.preemption import RunningGang


@dataclass
class Sorting:
    """The workloads of a queue by state; amounts in milli-GPUs."""

    used: int = 0
    pending_gpus: int = 0
    running: list[Borrowing] = field(default_factory=list)
    terminating: list[Borrowing] = field(default_factory=list)
    held: list[Borrowing] = field(default_factory=list)
    returning: list[Borrowing] = field(default_factory=list)
    due: list[tuple[str, Borrowing]] = field(default_factory=list)
    pending: list[Borrowing] = field(default_factory=list)
    requeueing: bool = False

    def add_pending(self, borrowing: Borrowing, eviction: Entry | None) -> None:
        """It may run and does not; ``eviction`` is its last one, after which it was released, if any."""
        self.pending_gpus += borrowing.gpus
        self.pending.append(borrowing)
        if eviction is not None and eviction.eviction.cause is Cause.LENDING:
            self.returning.append(borrowing)

    def into(self, queue: BorrowingQueue) -> BorrowingQueue:
        return replace(
            queue,
            used=self.used,
            pending_gpus=self.pending_gpus,
            running=tuple(self.running),
            terminating=tuple(self.terminating),
            held=tuple(self.held),
            returning=tuple(self.returning),
            due=tuple(self.due),
            requeueing=self.requeueing,
            pending=tuple(self.pending),
        )


@dataclass(frozen=True)
class Weighing:
    """What stopping a workload would lose. ``stale_s``: how long a pod's checkpoint status counts.

    ``stoppable``: uids of those that ran while they might be stopped. If their namespace's mode changes later, what
    they borrow is given back first.
    """

    cluster: LiveCluster
    stale_s: float
    workload_may_lower: bool | None = None
    stoppable: set[str] = field(default_factory=set)

    def with_bar(self, borrowing: Borrowing, mode: str, holder: str = "", *, runs: bool) -> Borrowing:
        """With the reason why it may not be stopped, if any. ``mode`` is its own, ``holder`` its holder."""
        uid = str(borrowing.document["metadata"].get("uid", ""))
        if not runs:
            self.stoppable.discard(uid)
        # A workload that lowers its mode while it borrows gives back first; before that its mode does not count.
        barred = self._barred(borrowing, "" if runs else mode, holder, was_stoppable=uid in self.stoppable)
        if runs and barred is None:
            self.stoppable.add(uid)
        return replace(borrowing, barred=barred)

    def candidate(
        self, queue: BorrowingQueue, borrowing: Borrowing, now_s: float, *, priority: int = 0, idle: bool | None = None
    ) -> Candidate:
        """``idle`` overrides what its pods show."""
        saving = save_state([pod.saving for pod in borrowing.pods], now_s, borrowing.since_s)
        members = members_of(borrowing.gpus, [pod.gpu_pod for pod in borrowing.pods], now_s, self.stale_s)
        gang = RunningGang(
            borrowing.name,
            queue.name,
            priority,
            members,
            borrowing.since_s,
            saved_at_s=_saved_at_s(borrowing.pods, saving),
        )
        if idle is None:
            idle = not any(pod.running for pod in borrowing.pods)
        return Candidate(gang, idle, borrowing.barred, saving)

    def _barred(self, borrowing: Borrowing, mode: str, holder: str, *, was_stoppable: bool) -> Reason | None:
        """Why a workload may not be stopped; None if it may."""
        space = self.cluster.namespace(borrowing.document["metadata"]["namespace"])
        if is_mirrored(borrowing.document):
            return Reason(NOT_OURS, f"{borrowing.name} is not ours to stop; another cluster decides about it.")
        if not space.managed:
            return Reason(NOT_OURS, f"{borrowing.name} is not ours to stop; label its namespace kaiwo.ai/managed.")
        holds = effective_mode(mode, space.mode, Mode.ENFORCE, self.workload_may_lower)
        if holds is not Mode.ENFORCE and not was_stoppable:
            return Reason(NOT_OURS, f"{borrowing.name} is not ours to stop; its mode is {holds}.")
        if holder:
            return Reason("HELD_BY_OTHERS", f"{borrowing.name} is held for {holder}.")
        return None


def _saved_at_s(pods: Sequence[ObservedPod], state: SaveState) -> float | None:
    """When a gang was asked to save, once it has."""
    requested_at_s = [pod.saving.requested_at_s for pod in pods if pod.saving.requested_at_s is not None]
    return min(requested_at_s) if requested_at_s and state is SaveState.SAVED else None
