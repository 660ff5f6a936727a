"""KAI's pods, nodes and queues, as informers show them."""

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KAI_QUEUES
from kopt.cluster.runtime.informer import Informer
from kopt.controllers.preemption.kai.snapshot import KaiSnapshot
from kopt.controllers.preemption.kai.views import KaiQueue, kai_pod, kai_queue
from kopt.controllers.preemption.kube_scheduler.state import LivePods
from kopt.controllers.preemption.kube_scheduler.views import PlainNode
from kopt.controllers.preemption.state import LiveCluster


class LiveKai(LivePods):
    """``informers`` are those of its own."""

    reads = staticmethod(kai_pod)

    def __init__(self, kube: Kube, cluster: LiveCluster, nodes: Informer[PlainNode], stale_s: float) -> None:
        super().__init__(cluster, nodes, stale_s)
        self._queues: Informer[KaiQueue] = Informer(kube, KAI_QUEUES, keep=kai_queue)
        self._observe(self._queues)

    def snapshot(self, now_s: float) -> KaiSnapshot:
        result = super().snapshot(now_s)
        queues = {name: kai_queue for (_, name), kai_queue in self._queues.objects.items()}
        return KaiSnapshot(
            now_s, result.pods, result.nodes, result.preemptions, result.ours, result.stale_s, result.sets, queues
        )
