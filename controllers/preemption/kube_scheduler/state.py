"""Pods and nodes, as informers show them, and fenced writes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import NotFound
from kopt.cluster.client.resources import JOBS, NODES, PODS, Object
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.eviction import evict_pod, nominate_node
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.object_cache import LiveState
from kopt.cluster.workloads.jobs import outlives
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang
from kopt.controllers.preemption.kube_scheduler.views import PlainNode, PlainPod, plain_node, plain_pod
from kopt.controllers.preemption.state import LiveCluster


def node_informer(kube: Kube) -> Informer[PlainNode]:
    """Nodes that take pods."""
    return Informer(kube, NODES, keep=plain_node)


class LivePods(LiveState):
    """The cluster's pods in one way to read them. ``changed`` is set by every change that may need a reconcile."""

    reads: Callable[[Object], PlainPod | None] = staticmethod(plain_pod)

    def __init__(self, cluster: LiveCluster, nodes: Informer[PlainNode], stale_s: float) -> None:
        super().__init__()
        self._cluster, self._nodes, self._stale_s = cluster, nodes, stale_s
        self._pods = cluster.pods.read(self.reads, self._on_change)
        self._nodes.subscribe(self._on_change)

    def snapshot(self, now_s: float) -> ClusterSnapshot:
        ours = frozenset(name for (_, name), namespace in self._cluster.spaces.items() if namespace.managed)
        nodes = {name: plain_node for (_, name), plain_node in self._nodes.objects.items()}
        counts = self._cluster.preemptions(now_s - 86_400.0)
        sets = dict(self._cluster.job_sets.objects.values())
        pods = [replace(pod, gpu_pod=self._cluster.claims.settled(pod.gpu_pod)) for pod in self._pods()]
        return ClusterSnapshot(now_s, pods, nodes, counts, ours, self._stale_s, sets)

    def mode(self, pod: PlainPod) -> str:
        return self._cluster.gated(pod.whose, self._cluster.effective_mode(pod.mode, pod.key[0]))


class PodWriter:
    """Writes of one term; ``reads`` is how its pods are read."""

    def __init__(self, kube: Kube, fence: Fence, reads: Callable[[Object], PlainPod | None] = plain_pod) -> None:
        self._kube, self._fence, self._reads = kube, fence, reads

    async def read_pod(self, pod: PlainPod) -> PlainPod | None:
        try:
            return self._reads(await self._kube.get(PODS, pod.key[1], pod.key[0]))
        except NotFound:
            return None

    async def patch(self, pod: PlainPod, changes: Object) -> None:
        await self._fence.patch(PODS, self._as_observed(pod), changes)

    async def promise(self, pod: PlainPod, node: str) -> None:
        self._fence.require_term()
        await nominate_node(self._kube, pod.key, pod.gpu_pod.uid, node)

    async def evict(self, pod: PlainPod, *, dry_run: bool = False) -> None:
        self._fence.require_term()
        await evict_pod(self._kube, pod.key, pod.gpu_pod.uid, dry_run=dry_run)

    async def outlives(self, gang: Gang) -> bool:
        jobs = Counter((pod.key[0], text(pod.owner, "name")) for pod in gang.pods if text(pod.owner, "kind") == "Job")
        result = [(await self._kube.get(JOBS, name, namespace), pods) for (namespace, name), pods in jobs.items()]
        return all(outlives(job, pods) for job, pods in result)

    def _as_observed(self, pod: PlainPod) -> Object:
        return {
            "metadata": {
                "namespace": pod.key[0],
                "name": pod.key[1],
                "resourceVersion": pod.gpu_pod.version,
                "annotations": dict(pod.gpu_pod.annotations),
            }
        }
