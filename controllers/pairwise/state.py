"""The state observed by informers, with our own writes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    JOBS,
    NODE_BANDWIDTHS,
    NODES,
    PAIRWISE_BENCHMARKS,
    PODS,
    PRIORITY_CLASSES,
    Key,
    Object,
    Resource,
)
from kopt.cluster.objects.fields import slim
from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.controllers.pairwise.jobs import BENCHMARK_LABEL
from kopt.controllers.pairwise.views import ObservedNode, ObservedPod, read_node, read_pod

_LOG_LINES, _LOG_BYTES = 100_000, 4 << 20


class _Priority(NamedTuple):
    value: int
    is_default: bool


class LiveCluster(LiveState):
    """``changed`` is set by every change that may need a reconcile. ``namespace`` is that of the tests."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        super().__init__()
        self._kube, self._namespace = kube, namespace
        self._benchmarks: Informer[Object] = Informer(kube, PAIRWISE_BENCHMARKS, keep=slim, required=True)
        self.bandwidth_objects: Informer[Object] = Informer(kube, NODE_BANDWIDTHS, keep=slim, required=True)
        self._jobs: Informer[Object] = Informer(
            kube, JOBS, namespace=namespace, label_selector=BENCHMARK_LABEL, keep=slim
        )
        self._pods: Informer[ObservedPod] = Informer(kube, PODS, keep=read_pod)
        self._nodes: Informer[ObservedNode] = Informer(kube, NODES, keep=read_node)
        self._priorities: Informer[_Priority] = Informer(kube, PRIORITY_CLASSES, keep=_priority)
        self._written = {
            PAIRWISE_BENCHMARKS: ObjectCache(self._benchmarks),
            NODE_BANDWIDTHS: ObjectCache(self.bandwidth_objects),
            JOBS: ObjectCache(self._jobs),
        }
        """Of the kinds that we write."""
        self._of_job: Index[Key, ObservedPod] = Index(lambda pod: [pod.job] if pod.job is not None else [])
        self._verdicts = True
        self._pods.subscribe(self._of_job.follow)
        self._nodes.subscribe(self._of_verdicts)
        self.bandwidth_objects.subscribe(self._of_verdicts)
        for item in (self._benchmarks, self._jobs, self._pods, self._priorities):
            item.subscribe(self._on_change)
        self.informers = (
            self._priorities,
            self._nodes,
            self._pods,
            self._jobs,
            self.bandwidth_objects,
            self._benchmarks,
        )

    def benchmarks(self) -> list[Object]:
        return list(self._written[PAIRWISE_BENCHMARKS].objects.values())

    def jobs(self) -> list[Object]:
        return list(self._written[JOBS].objects.values())

    def pods(self) -> list[ObservedPod]:
        return list(self._pods.objects.values())

    def pods_of(self, job: Key) -> list[ObservedPod]:
        return self._of_job.of(job)

    def nodes(self) -> Mapping[str, ObservedNode]:
        return {node.name: node for node in self._nodes.objects.values()}

    def bandwidths(self) -> dict[str, Object]:
        return {key[1]: item for key, item in self._written[NODE_BANDWIDTHS].objects.items()}

    def priority(self, name: str) -> int:
        if name:
            result = self._priorities.objects.get(("", name))
            return result.value if result is not None else 0
        return next((item.value for item in self._priorities.objects.values() if item.is_default), 0)

    def read_anew(self) -> None:
        """A new term evaluates everything."""
        self._verdicts = True

    def changed_verdicts(self) -> bool:
        was, self._verdicts = self._verdicts, False
        return was

    async def log(self, pod: Key) -> str:
        return await self._kube.log(*pod, tail_lines=_LOG_LINES, limit_bytes=_LOG_BYTES, timeout_s=30.0)

    def noted(self, resource: Resource, document: Object) -> None:
        if resource in self._written:
            self._written[resource].record(document)

    def removed(self, resource: Resource, document: Object) -> None:
        if resource in self._written:
            self._written[resource].record_deletion(document)

    def _of_verdicts(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self._verdicts = True
            self.changed.set()


def _priority(document: Object) -> _Priority:
    return _Priority(int(document.get("value") or 0), document.get("globalDefault") is True)
