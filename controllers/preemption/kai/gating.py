"""New pods are gated as they are created, where KAI would pre-empt for their gang at once; and where they would take
the room that is made for somebody who is held still, because who made it has died.
"""

import time
from collections import defaultdict
from collections.abc import Callable

from kopt.cluster.held import holder_of
from kopt.cluster.resources import PODS, Object
from kopt.controllers.preemption.kai.live import LiveKai
from kopt.controllers.preemption.kai.room import is_awaited, would_preempt
from kopt.controllers.preemption.kai.views import QUEUE_LABEL, SCHEDULER, gated, kai_pod
from kopt.controllers.preemption.plain.room import Gang, Moment
from kopt.controllers.preemption.plain.views import PlainPod
from kopt.controllers.webhook.objects import at, mapping
from kopt.controllers.webhook.review import ALLOWED, Answer, Review
from kopt.core.decision import Mode

_UNSEEN_S = 3.0
"""Informers show by then what was let through; creation times are whole seconds."""


_HOOK: Object = {
    "name": "gate.pods.preemption.kaiwo.ai",
    "rules": [{"apiGroups": [PODS.group], "apiVersions": [PODS.version], "resources": [PODS.plural],
               "operations": ["CREATE"], "scope": "Namespaced"}],
    "objectSelector": {"matchExpressions": [{"key": QUEUE_LABEL, "operator": "Exists"}]},
    "matchConditions": [{"name": "of-kai", "expression": f"object.spec.schedulerName == '{SCHEDULER}'"}],
}  # fmt: skip


class Gating:
    """What the reviews of new pods answer."""

    def __init__(self, cluster: LiveKai, mode: Mode, clock: Callable[[], float] = time.time) -> None:
        self._cluster, self._mode, self._clock = cluster, mode, clock
        self.path, self.hook = "/gate", _HOOK
        self._came: dict[tuple[str, str], list[float]] = defaultdict(list)

    def answer(self, review: Review) -> Answer:
        """The patch that holds a pod. Informers have to have been read."""
        document, now_s = review.object, self._clock()
        placed = {"name": review.name or "new", "namespace": review.namespace}
        pod = kai_pod(document | {"metadata": dict(mapping(document, "metadata")) | placed})
        if review.operation != "CREATE" or pod is None or not (pod.open and pod.resource) or pod.gates:
            return ALLOWED
        said = self._cluster.mode(pod) or self._mode
        if said != Mode.ENFORCE or holder_of(document) or at(document, "spec", "nodeName"):
            return ALLOWED
        moment = self._cluster.moment(now_s)
        holds = would_preempt(self._gang(pod, moment, now_s), moment) or is_awaited(pod, moment)
        if not review.dry_run:
            self._came[pod.gang].append(now_s)
        return Answer(patch=gated(document)) if holds else ALLOWED

    def _gang(self, pod: PlainPod, moment: Moment, now_s: float) -> Gang:
        """The pods of its gang that have no node: those that are seen, those that came just now, and this one."""
        lately = {gang: [one for one in times if now_s - one < _UNSEEN_S] for gang, times in self._came.items()}
        self._came = defaultdict(list, {gang: times for gang, times in lately.items() if times})
        own = [one for one in moment.pods if one.gang == pod.gang and not one.going]
        seen = sum(one.created_s >= now_s - _UNSEEN_S - 1 for one in own)
        unseen = max(0, len(self._came.get(pod.gang, ())) - seen)
        return Gang((*(one for one in own if not one.node), *[pod] * (unseen + 1)))
