"""What informers have seen, and what was written since."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    CRON_JOBS,
    JOBS,
    KUEUE_WORKLOADS,
    NAMESPACES,
    NODES,
    PODS,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import HOLDABLE
from kopt.cluster.objects.fields import slim
from kopt.cluster.objects.namespace import NamespaceView, namespace_view
from kopt.cluster.objects.staged_data import ASKS_LABEL, STAGED_DATA, staged_data_of
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import ObjectCache
from kopt.controllers.staging.ports import DataView
from kopt.controllers.staging.reading import asking_pod_view, job_view, kueue_view, node_view, pod_view, workload_view
from kopt.controllers.staging.views import JobView, KueueView, NodeView, PodView, WorkloadView
from kopt.policies.staging.pod import DATA_LABEL

WORKLOADS = tuple(resource for resource in HOLDABLE if resource not in (CRON_JOBS, KUEUE_WORKLOADS))
"""Kinds that may ask for data: what makes Jobs again and again asks in what it makes."""


class LiveCluster:
    """``changed`` is set by whatever may change what is to be done."""

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self._data = ObjectCache(Informer(kube, STAGED_DATA, keep=data_view, required=True))
        self._jobs = ObjectCache(Informer(kube, JOBS, keep=job_view, label_selector=DATA_LABEL))
        self._workloads = {
            resource: ObjectCache(Informer(kube, resource, keep=partial(workload_view, resource=resource)))
            for resource in WORKLOADS
        }
        self._workloads[PODS] = ObjectCache(Informer(kube, PODS, keep=asking_pod_view, label_selector=ASKS_LABEL))
        self._kueue = ObjectCache(Informer(kube, KUEUE_WORKLOADS, keep=kueue_view))
        self._pods: Informer[PodView] = Informer(kube, PODS, keep=pod_view, label_selector=DATA_LABEL)
        self._nodes: Informer[NodeView] = Informer(kube, NODES, keep=node_view)
        self._namespaces: Informer[NamespaceView] = Informer(kube, NAMESPACES, keep=namespace_view)
        self.informers: tuple[Informer[Any], ...] = (
            self._namespaces,
            self._nodes,
            self._data.informer,
            self._jobs.informer,
            self._pods,
            self._kueue.informer,
            *(workload.informer for workload in self._workloads.values()),
        )
        for informer in self.informers:
            informer.subscribe(self._told)

    def data(self) -> Sequence[DataView]:
        return list(self._data.objects.values())

    def workloads(self) -> Sequence[WorkloadView]:
        return [workload for cache in self._workloads.values() for workload in cache.objects.values()]

    def jobs(self) -> Sequence[JobView]:
        return list(self._jobs.objects.values())

    def pods(self) -> Sequence[PodView]:
        return list(self._pods.objects.values())

    def kueue(self) -> Sequence[KueueView]:
        return list(self._kueue.objects.values())

    def nodes(self) -> Sequence[NodeView]:
        return list(self._nodes.objects.values())

    def namespace(self, name: str) -> NamespaceView:
        return self._namespaces.objects.get(("", name), NamespaceView())

    def noted(self, resource: Resource, document: Object) -> None:
        if resource == KUEUE_WORKLOADS:
            self._kueue.record(document)
        elif resource == STAGED_DATA:
            self._data.record(document)
        elif resource == JOBS and DATA_LABEL in (document["metadata"].get("labels") or {}):
            self._jobs.record(document)
        else:
            self._workloads[resource].record(document)

    def _told(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()


def data_view(document: Object) -> DataView:
    return DataView(slim(document), document["metadata"]["resourceVersion"], staged_data_of(document))
