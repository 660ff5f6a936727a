"""What informers have seen, and what was written since."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from kopt.cluster.api import Kube
from kopt.cluster.informer import Change, Informer
from kopt.cluster.resources import (
    JOBS,
    NODE_BANDWIDTHS,
    NODES,
    PAIRWISE_BENCHMARKS,
    PODS,
    PRIORITY_CLASSES,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.controllers.pairs.jobs import BENCHMARK_LABEL
from kopt.controllers.pairs.views import NodeView, PodView, node_view, pod_view

_LOG_LINES, _LOG_BYTES = 100_000, 4 << 20


class _Priority(NamedTuple):
    value: int
    is_default: bool


class Seen:
    """An informer's objects, with own writes on top until the informer has come as far."""

    def __init__(self, informer: Informer[Object]) -> None:
        self._informer = informer
        self._written: dict[Key, Object] = {}
        self._gone: set[str] = set()

    def objects(self) -> dict[Key, Object]:
        come_to = _number(self._informer.version)
        self._written = {
            key: one for key, one in self._written.items() if _number(one["metadata"]["resourceVersion"]) > come_to
        }
        found = dict(self._informer.objects) | self._written
        self._gone &= {one["metadata"]["uid"] for one in found.values()}
        return {key: one for key, one in found.items() if one["metadata"]["uid"] not in self._gone}

    def noted(self, document: Object) -> None:
        self._written[key_of(document)] = document

    def removed(self, document: Object) -> None:
        self._gone.add(document["metadata"]["uid"])


class LiveCluster:
    """``changed`` is set by whatever may change what is to be done. ``namespace`` is that of the tests."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.changed = asyncio.Event()
        self._kube, self._namespace = kube, namespace
        self._benchmarks: Informer[Object] = Informer(kube, PAIRWISE_BENCHMARKS, keep=_slim)
        self.bandwidth_objects: Informer[Object] = Informer(kube, NODE_BANDWIDTHS, keep=_slim)
        self._jobs: Informer[Object] = Informer(
            kube, JOBS, namespace=namespace, label_selector=BENCHMARK_LABEL, keep=_slim
        )
        self._pods: Informer[PodView] = Informer(kube, PODS, keep=pod_view)
        self._nodes: Informer[NodeView] = Informer(kube, NODES, keep=node_view)
        self._priorities: Informer[_Priority] = Informer(kube, PRIORITY_CLASSES, keep=_priority)
        self._seen = {
            PAIRWISE_BENCHMARKS: Seen(self._benchmarks), NODE_BANDWIDTHS: Seen(self.bandwidth_objects),
            JOBS: Seen(self._jobs),
        }  # fmt: skip
        self._of_job: dict[Key, dict[str, PodView]] = {}
        self._verdicts = True
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._of_verdicts)
        self.bandwidth_objects.subscribe(self._of_verdicts)
        for one in (self._benchmarks, self._jobs, self._pods, self._priorities):
            one.subscribe(self._told)
        self.informers: tuple[Informer[Any], ...] = (
            self._priorities, self._nodes, self._pods, self._jobs, self.bandwidth_objects, self._benchmarks,
        )  # fmt: skip

    def benchmarks(self) -> list[Object]:
        return list(self._seen[PAIRWISE_BENCHMARKS].objects().values())

    def jobs(self) -> list[Object]:
        return list(self._seen[JOBS].objects().values())

    def pods(self) -> list[PodView]:
        return list(self._pods.objects.values())

    def pods_of(self, job: Key) -> list[PodView]:
        return list(self._of_job.get(job, {}).values())

    def nodes(self) -> Mapping[str, NodeView]:
        return {one.name: one for one in self._nodes.objects.values()}

    def bandwidths(self) -> dict[str, Object]:
        return {key[1]: one for key, one in self._seen[NODE_BANDWIDTHS].objects().items()}

    def priority(self, name: str) -> int:
        if name:
            found = self._priorities.objects.get(("", name))
            return found.value if found is not None else 0
        return next((one.value for one in self._priorities.objects.values() if one.is_default), 0)

    def read_anew(self) -> None:
        """A new term looks at everything."""
        self._verdicts = True

    def changed_verdicts(self) -> bool:
        was, self._verdicts = self._verdicts, False
        return was

    async def log(self, pod: Key) -> str:
        return await self._kube.log(*pod, tail_lines=_LOG_LINES, limit_bytes=_LOG_BYTES, timeout_s=30.0)

    def noted(self, resource: Resource, document: Object) -> None:
        if resource in self._seen:
            self._seen[resource].noted(document)

    def removed(self, resource: Resource, document: Object) -> None:
        if resource in self._seen:
            self._seen[resource].removed(document)

    def _told(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()

    def _of_verdicts(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self._verdicts = True
            self.changed.set()

    def _pod_changed(self, change: Change[PodView]) -> None:
        for view, there in ((change.old, False), (change.new, True)):
            if view is None or view.job is None:
                continue
            pods = self._of_job.setdefault(view.job, {})
            pods.pop(view.uid, None)
            if there:
                pods[view.uid] = view
            elif not pods:
                del self._of_job[view.job]


def _slim(document: Object) -> Object:
    document["metadata"].pop("managedFields", None)
    return document


def _priority(document: Object) -> _Priority:
    return _Priority(int(document.get("value") or 0), document.get("globalDefault") is True)


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
