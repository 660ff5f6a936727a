"""One change that is open: its state from when it was recorded until it is kept or taken back."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.checkpoints.status import recent_status
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import text
from kopt.cluster.workloads.pod_resize import ResizeState, restarts_of, state_of_all
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.controllers.rightsizing.views import ObservedPod
from kopt.core.reason import Reason
from kopt.core.workload.checkpoint import JobState
from kopt.core.workload.rightsizing import Outcome
from kopt.policies.rightsizing.step_times import Marks
from kopt.policies.rightsizing.watch import Action, Since, WatchSettings, evaluate, watched

STALE_S = 600.0
"""A checkpoint state that is older says nothing."""


@dataclass
class Watch:
    """A change of the pods that ``restarts`` counts restarts of, by their uids, as they were before it."""

    pods: ResizedPods
    reference: Object
    """The workload, as events hold it."""
    applied_s: float
    restarts: dict[str, int]
    effective_s: float | None = None
    ending: tuple[Outcome, Reason] | None = None
    """How it ends; written again and again until that is done."""

    def end(self, outcome: Outcome, reason: Reason) -> None:
        self.ending = self.ending or (outcome, reason)

    def update(
        self, pods: Sequence[ObservedPod], marks: Marks, now_s: float, settings: WatchSettings, accept_s: float
    ) -> None:
        """Decides by what is seen now of the workload's ``pods``."""
        ours = [pod for pod in pods if pod.uid in self.restarts]
        if len(ours) < len(self.restarts):
            self.end(Outcome.UNDONE, Reason("PODS_REPLACED", "A pod of it ended while the change was watched."))
        elif self.effective_s is None:
            self._await_kubelets(ours, now_s, accept_s)
        else:
            self._decide(ours, marks, self.effective_s, now_s, settings)

    def _await_kubelets(self, pods: Sequence[ObservedPod], now_s: float, accept_s: float) -> None:
        state, message = state_of_all([pod.document for pod in pods], self.pods.resize)
        if state is ResizeState.ACTUATED:
            self.effective_s = now_s
        elif state is ResizeState.REFUSED:
            self.end(Outcome.UNDONE, Reason("KUBELET_REFUSES", f"The node refuses it: {message}."))
        elif now_s - self.applied_s > accept_s:
            why = f"No kubelet has made the change within {accept_s:.0f} s{message and f' ({message})'}."
            self.end(Outcome.UNDONE, Reason("KUBELET_REFUSES", why))

    def _decide(
        self, pods: Sequence[ObservedPod], marks: Marks, effective_s: float, now_s: float, settings: WatchSettings
    ) -> None:
        restarts = sum(max(0, restarts_of(pod.document) - self.restarts[pod.uid]) for pod in pods)
        since = Since(self.applied_s, effective_s, restarts, grows=self.pods.resize.freed < 0)
        seen = watched(marks.times(settings.sample_s), marks.last_s, since, now_s, settings)
        decision = evaluate(seen, settings)
        if decision.action is not Action.WATCH:
            outcome = Outcome.KEPT if decision.action is Action.KEEP else Outcome.UNDONE
            self.end(outcome, decision.reason)


def is_writing(pods: Sequence[ObservedPod], now_s: float) -> bool:
    """Whether a checkpoint is being written, by what the log agent says on the pods."""
    reported = recent_status((pod.annotations for pod in pods), now_s, STALE_S)
    return reported is not None and reported.status.state is JobState.CKPT_WRITING


def restarts_before(pods: Sequence[ObservedPod]) -> dict[str, int]:
    """By the pods' uids."""
    return {text(pod.document, "metadata", "uid"): restarts_of(pod.document) for pod in pods}
