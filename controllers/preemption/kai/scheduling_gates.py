"""New pods are gated as they are created, where KAI would pre-empt for their gang at once; and where they would take
the room that is made for a pod that is still held because the replica that made it has died.
"""

import time
from collections import defaultdict
from collections.abc import Callable

from kopt.cluster.admission.review import ALLOWED, Answer, Review
from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.holds.hold import holder_of
from kopt.cluster.objects.fields import at, mapping
from kopt.cluster.objects.kai import QUEUE_LABEL
from kopt.controllers.preemption.kai.snapshot import is_awaited, would_preempt
from kopt.controllers.preemption.kai.state import LiveKai
from kopt.controllers.preemption.kai.views import SCHEDULER, gated, kai_pod
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang
from kopt.controllers.preemption.kube_scheduler.views import PlainPod
from kopt.core.decision import Mode

_UNSEEN_S = 3.0
"""Informers show new pods by then; creation times are whole seconds."""


_HOOK: Object = {
    "name": "gate.pods.preemption.kaiwo.ai",
    "rules": [
        {
            "apiGroups": [PODS.group],
            "apiVersions": [PODS.version],
            "resources": [PODS.plural],
            "operations": ["CREATE"],
            "scope": "Namespaced",
        }
    ],
    "objectSelector": {"matchExpressions": [{"key": QUEUE_LABEL, "operator": "Exists"}]},
    "matchConditions": [{"name": "of-kai", "expression": f"object.spec.schedulerName == '{SCHEDULER}'"}],
}


class Gating:
    """The answers to reviews of new pods."""

    def __init__(self, cluster: LiveKai, mode: Mode, clock: Callable[[], float] = time.time) -> None:
        self._cluster, self._mode, self._clock = cluster, mode, clock
        self.path, self.hook = "/gate", _HOOK
        self._came: dict[tuple[str, str], list[float]] = defaultdict(list)

    def answer(self, review: Review) -> Answer:
        """The patch that holds a pod. Informers have to be synced."""
        document, now_s = review.object, self._clock()
        placed = {"name": review.name or "new", "namespace": review.namespace}
        pod = kai_pod(document | {"metadata": dict(mapping(document, "metadata")) | placed})
        if review.operation != "CREATE" or pod is None or not (pod.open and pod.resource) or pod.gates:
            return ALLOWED
        mode = self._cluster.mode(pod) or self._mode
        if mode != Mode.ENFORCE or holder_of(document) or at(document, "spec", "nodeName"):
            return ALLOWED
        snapshot = self._cluster.snapshot(now_s)
        holds = would_preempt(self._gang(pod, snapshot, now_s), snapshot) or is_awaited(pod, snapshot)
        if not review.dry_run:
            self._came[snapshot.gang_of(pod)].append(now_s)
        return Answer(patch=gated(document)) if holds else ALLOWED

    def _gang(self, pod: PlainPod, snapshot: ClusterSnapshot, now_s: float) -> Gang:
        """The pods of its gang without a node: observed ones, those just created, and this one."""
        lately = {
            name: [time_s for time_s in times if now_s - time_s < _UNSEEN_S] for name, times in self._came.items()
        }
        self._came = defaultdict(list, {name: times for name, times in lately.items() if times})
        gang = snapshot.gang_of(pod)
        own = [
            plain_pod
            for plain_pod in snapshot.pods
            if snapshot.gang_of(plain_pod) == gang and not plain_pod.terminating
        ]
        observed = sum(plain_pod.created_s >= now_s - _UNSEEN_S - 1 for plain_pod in own)
        unseen = max(0, len(self._came.get(gang, ())) - observed)
        return Gang((*(plain_pod for plain_pod in own if not plain_pod.node), *[pod] * (unseen + 1)))
