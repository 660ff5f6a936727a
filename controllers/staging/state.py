"""The state observed by informers, with our own writes."""

from collections.abc import Sequence
from functools import partial

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
from kopt.cluster.objects.custom.staged_data import REQUESTS_DATA_LABEL, STAGED_DATA, staged_data_of
from kopt.cluster.objects.fields import slim
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.controllers.staging.ports import DataObject
from kopt.controllers.staging.reading import (
    read_job,
    read_node,
    read_pod,
    read_queued_workload,
    read_requesting_pod,
    read_workload,
)
from kopt.controllers.staging.views import (
    DownloadJob,
    DownloadPod,
    QueuedWorkload,
    RequestingWorkload,
    StagingNode,
)
from kopt.policies.staging.pod import DATA_LABEL

WORKLOADS = tuple(resource for resource in HOLDABLE if resource not in (CRON_JOBS, KUEUE_WORKLOADS))
"""Kinds that may request data: for a CronJob the Jobs that it creates do."""


class LiveCluster(LiveState):
    """``changed`` is set by every change that may need a reconcile."""

    def __init__(self, kube: Kube) -> None:
        super().__init__()
        self._data = ObjectCache(Informer(kube, STAGED_DATA, keep=read_data, required=True))
        self._jobs = ObjectCache(Informer(kube, JOBS, keep=read_job, label_selector=DATA_LABEL))
        self._workloads = {
            resource: ObjectCache(Informer(kube, resource, keep=partial(read_workload, resource=resource)))
            for resource in WORKLOADS
        }
        self._workloads[PODS] = ObjectCache(
            Informer(kube, PODS, keep=read_requesting_pod, label_selector=REQUESTS_DATA_LABEL)
        )
        self._kueue = ObjectCache(Informer(kube, KUEUE_WORKLOADS, keep=read_queued_workload))
        self._pods: Informer[DownloadPod] = Informer(kube, PODS, keep=read_pod, label_selector=DATA_LABEL)
        self._nodes: Informer[StagingNode] = Informer(kube, NODES, keep=read_node)
        self._namespaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self._observe(
            self._namespaces,
            self._nodes,
            self._data.informer,
            self._jobs.informer,
            self._pods,
            self._kueue.informer,
            *(workload.informer for workload in self._workloads.values()),
        )

    def data(self) -> Sequence[DataObject]:
        return list(self._data.objects.values())

    def workloads(self) -> Sequence[RequestingWorkload]:
        return [workload for cache in self._workloads.values() for workload in cache.objects.values()]

    def jobs(self) -> Sequence[DownloadJob]:
        return list(self._jobs.objects.values())

    def pods(self) -> Sequence[DownloadPod]:
        return list(self._pods.objects.values())

    def kueue(self) -> Sequence[QueuedWorkload]:
        return list(self._kueue.objects.values())

    def nodes(self) -> Sequence[StagingNode]:
        return list(self._nodes.objects.values())

    def namespace(self, name: str) -> NamespaceSettings:
        return self._namespaces.objects.get(("", name), NamespaceSettings())

    def noted(self, resource: Resource, document: Object) -> None:
        if resource == KUEUE_WORKLOADS:
            self._kueue.record(document)
        elif resource == STAGED_DATA:
            self._data.record(document)
        elif resource == JOBS and DATA_LABEL in (document["metadata"].get("labels") or {}):
            self._jobs.record(document)
        else:
            self._workloads[resource].record(document)


def read_data(document: Object) -> DataObject:
    return DataObject(slim(document), document["metadata"]["resourceVersion"], staged_data_of(document))
