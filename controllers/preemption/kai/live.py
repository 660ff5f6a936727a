"""KAI's pods, nodes and queues, as informers show them."""

from typing import Any

from kopt.cluster.api import Kube
from kopt.cluster.informer import Informer
from kopt.cluster.resources import KAI_QUEUES
from kopt.controllers.preemption.kai.room import KaiMoment
from kopt.controllers.preemption.kai.views import KaiQueue, kai_pod, kai_queue
from kopt.controllers.preemption.live import LiveCluster
from kopt.controllers.preemption.plain.live import LivePods
from kopt.controllers.preemption.plain.views import PlainNode


class LiveKai(LivePods):
    """``informers`` are those of its own."""

    reads = staticmethod(kai_pod)

    def __init__(self, kube: Kube, cluster: LiveCluster, nodes: Informer[PlainNode], stale_s: float) -> None:
        super().__init__(cluster, nodes, stale_s)
        self._queues: Informer[KaiQueue] = Informer(kube, KAI_QUEUES, keep=kai_queue)
        self._queues.subscribe(self._told)
        self.informers: tuple[Informer[Any], ...] = (self._queues,)

    def moment(self, now_s: float) -> KaiMoment:
        found = super().moment(now_s)
        queues = {name: one for (_, name), one in self._queues.objects.items()}
        return KaiMoment(now_s, found.pods, found.nodes, found.preemptions, found.ours, found.stale_s, queues)
