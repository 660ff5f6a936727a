"""What is the same of borrowers of every system."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kopt.controllers.preemption.statuses import members_of
from kopt.controllers.reallocation.live import LiveCluster
from kopt.controllers.reallocation.views import Borrowing, QueueView, SeenPod
from kopt.core.decision import Mode
from kopt.core.evictions import Cause, Entry
from kopt.core.reason import Reason
from kopt.policies.preemption import RunningGang
from kopt.policies.reallocation import Candidate
from kopt.policies.saving import SaveState, save_state


@dataclass
class Sorting:
    """The workloads of a queue by what they do; GPUs in thousandths."""

    used: int = 0
    asked: int = 0
    running: list[Borrowing] = field(default_factory=list)
    going: list[Borrowing] = field(default_factory=list)
    held: list[Borrowing] = field(default_factory=list)
    returning: list[Borrowing] = field(default_factory=list)
    due: list[tuple[str, Borrowing]] = field(default_factory=list)
    coming: bool = False

    def waits(self, one: Borrowing, line: Entry | None) -> None:
        """It may run and does not; with a line of the ledger, who let go on after lending."""
        self.asked += one.gpus
        if line is not None and line.eviction.cause is Cause.LENDING:
            self.returning.append(one)

    def into(self, queue: QueueView) -> QueueView:
        return replace(
            queue, used=self.used, asked=self.asked, running=tuple(self.running), going=tuple(self.going),
            held=tuple(self.held), returning=tuple(self.returning), due=tuple(self.due), coming=self.coming,
        )  # fmt: skip


@dataclass(frozen=True)
class Weighing:
    """What stopping a workload would lose. ``stale_s``: what pods say of their checkpoints counts for so long."""

    cluster: LiveCluster
    stale_s: float

    def candidate(self, queue: QueueView, one: Borrowing, now_s: float, *, mode: str, holder: str,
                  priority: int = 0, idle: bool | None = None) -> Candidate:  # fmt: skip
        """``mode`` and ``holder`` as it says itself; ``idle`` where it is known otherwise than by its pods."""
        saving = save_state([pod.saving for pod in one.pods], now_s, one.since_s)
        members = members_of(one.gpus, [pod.view for pod in one.pods], now_s, self.stale_s)
        gang = RunningGang(
            one.name, queue.name, priority, members, one.since_s, saved_at_s=_saved_at_s(one.pods, saving)
        )
        if idle is None:
            idle = not any(pod.running for pod in one.pods)
        return Candidate(gang, idle, self._barred(one, mode, holder), saving)

    def _barred(self, one: Borrowing, mode: str, holder: str) -> Reason | None:
        """Why a workload is not ours to stop."""
        space = self.cluster.namespace(one.document["metadata"]["namespace"])
        if not space.managed or (mode or space.mode) in (Mode.OBSERVE, Mode.ANNOTATE):
            return Reason("NOT_OURS", f"{one.name} is not ours to stop; label its namespace kaiwo.ai/managed.")
        if holder:
            return Reason("HELD_BY_OTHERS", f"{one.name} is held for {holder}.")
        return None


def _saved_at_s(pods: Sequence[SeenPod], state: SaveState) -> float | None:
    """When a gang was asked to save, once it has."""
    asked = [one.saving.asked_at_s for one in pods if one.saving.asked_at_s is not None]
    return min(asked) if asked and state is SaveState.SAVED else None
