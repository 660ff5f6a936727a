"""Books as the nodes are: what kubelets gave pods is compared with what was chosen, counted, and corrected."""

from collections.abc import Callable
from dataclasses import dataclass

from kopt.cluster.client.resources import Key
from kopt.cluster.workloads.placement.allocations import Allocations, Followed, NodeReport
from kopt.cluster.workloads.placement.pod_state import PodState
from kopt.controllers.extender.decision_log import DecisionLog, PodDecision
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.policies.placement.fleet import Fleet


@dataclass(frozen=True)
class Correction:
    """A pod whose annotation names other GPUs than it has."""

    pod: Key
    uid: str
    gpus: tuple[int, ...]


class Allocated:
    """Of one fleet. ``changed`` is called for pods of which the books have other GPUs than before."""

    def __init__(
        self,
        fleet: Fleet,
        log: DecisionLog,
        metrics: ExtenderMetrics,
        announce: Callable[[PodDecision], None],
        changed: Callable[[PodState], None],
    ) -> None:
        self._fleet, self._log, self._metrics = fleet, log, metrics
        self._announce, self._changed = announce, changed
        self._allocations = Allocations(fleet)
        self.corrections: dict[str, Correction] = {}
        """By uid: annotations that are to be corrected."""

    def reported(self, node: str, report: NodeReport | None) -> None:
        """What a node's agent says now; its pods are then to be booked again."""
        self._allocations.report(node, report)

    def forget(self, pod: PodState) -> None:
        """A pod is gone."""
        self._allocations.forget(pod)
        self.corrections.pop(pod.uid, None)

    def book(self, pod: PodState) -> None:
        """Book a pod that has a node on the GPUs that it has, as far as that is known, and note where these are not
        the ones that were chosen."""
        held = self._fleet.holdings.get(pod.uid)
        before = held.gpus if held is not None and held.node == pod.node else None
        slots = self._allocations.slots(pod)
        holding = self._fleet.bound(pod.uid, pod.key, pod.node, pod.ask, slots)
        allocation = self._allocations.of(pod)
        if allocation is None:
            return
        self._count_choice(pod)
        if slots is None or slots != allocation.gpus:
            return
        self._allocations.make_room(pod)
        if pod.gpus is not None and set(pod.gpus) != set(slots):
            self.corrections[pod.uid] = Correction(pod.key, pod.uid, slots)
        else:
            self.corrections.pop(pod.uid, None)
        if before is not None and before != holding.gpus and pod.workload:
            self._changed(pod)

    def _count_choice(self, pod: PodState) -> None:
        """Count a choice of this process once, when its kubelet has said what became of it."""
        decision = self._log.find(pod.key)
        if decision is None or decision.uid != pod.uid or decision.outcome != "bound" or decision.followed:
            return
        followed = self._allocations.followed(pod, decision.gpus)
        allocation = self._allocations.of(pod)
        if followed is None or allocation is None or not decision.gpus:
            return
        self._metrics.allocations.labels(followed.value).inc()
        differs = followed is Followed.DIFFERS
        noted = self._log.allocated(pod.key, followed.value, allocation, differs=differs)
        if differs:
            self._announce(noted)
