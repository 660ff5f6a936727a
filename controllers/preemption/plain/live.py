"""Pods and nodes, as informers show them, and fenced writes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from kopt.cluster.api import Kube
from kopt.cluster.informer import Change, Informer
from kopt.cluster.lease import Deposed, Fence
from kopt.cluster.namespaces import NamespaceView
from kopt.cluster.resources import JOBS, NODES, PODS, Object
from kopt.controllers.preemption.live import LiveCluster
from kopt.controllers.preemption.plain.jobs import outlives
from kopt.controllers.preemption.plain.room import Gang, Moment
from kopt.controllers.preemption.plain.views import PlainNode, PlainPod, plain_node, plain_pod
from kopt.controllers.webhook.objects import text


def seen_nodes(kube: Kube) -> Informer[PlainNode]:
    """Nodes that take pods."""
    return Informer(kube, NODES, keep=plain_node)


class LivePods:
    """The cluster's pods in one way to read them. ``changed`` is set by whatever may change what is to be done."""

    reads: Callable[[Object], PlainPod | None] = staticmethod(plain_pod)

    def __init__(self, cluster: LiveCluster, nodes: Informer[PlainNode], stale_s: float) -> None:
        self.changed = asyncio.Event()
        self._cluster, self._nodes, self._stale_s = cluster, nodes, stale_s
        self._pods = cluster.pods.read(self.reads, self._told)
        self._nodes.subscribe(self._told)

    def moment(self, now_s: float) -> Moment:
        ours = frozenset(name for (_, name), one in self._cluster.spaces.items() if one.managed)
        nodes = {name: one for (_, name), one in self._nodes.objects.items()}
        counts = self._cluster.preemptions(now_s - 86_400.0)
        return Moment(now_s, self._pods(), nodes, counts, ours, self._stale_s)

    def mode(self, pod: PlainPod) -> str:
        return pod.mode or self._cluster.spaces.get(("", pod.key[0]), NamespaceView()).mode

    def _told(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()


class PodWriter:
    """Writes of one term."""

    def __init__(self, kube: Kube, fence: Fence) -> None:
        self._kube, self._fence = kube, fence

    async def patch(self, pod: PlainPod, changes: Object) -> None:
        await self._fence.patch(PODS, self._seen(pod), changes)

    async def promise(self, pod: PlainPod, node: str) -> None:
        self._require()
        changes = {"metadata": {"uid": pod.view.uid}, "status": {"nominatedNodeName": node}}
        await self._kube.patch(PODS, pod.key[1], changes, pod.key[0], subresource="status")

    async def evict(self, pod: PlainPod, *, dry_run: bool = False) -> None:
        self._require()
        options: Object = {"preconditions": {"uid": pod.view.uid}} | ({"dryRun": ["All"]} if dry_run else {})
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
                "metadata": {"name": pod.key[1], "namespace": pod.key[0]}}  # fmt: skip
        await self._kube.create_at(PODS, pod.key[0], pod.key[1], "eviction", body)

    async def outlives(self, gang: Gang) -> bool:
        jobs = Counter((one.key[0], text(one.owner, "name")) for one in gang.pods if text(one.owner, "kind") == "Job")
        found = [(await self._kube.get(JOBS, name, namespace), pods) for (namespace, name), pods in jobs.items()]
        return all(outlives(job, pods) for job, pods in found)

    def _require(self) -> None:
        if not self._fence.holds:
            raise Deposed("the term is over")

    def _seen(self, pod: PlainPod) -> Object:
        return {"metadata": {"namespace": pod.key[0], "name": pod.key[1], "resourceVersion": pod.view.version,
                             "annotations": dict(pod.view.notes)}}  # fmt: skip
