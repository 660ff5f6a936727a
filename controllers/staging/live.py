"""What informers have seen, and what was written since."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from kopt.cluster.api import Kube
from kopt.cluster.held import HOLDABLE
from kopt.cluster.informer import Change, Informer
from kopt.cluster.namespaces import NamespaceView, namespace_view
from kopt.cluster.resources import (
    CRON_JOBS,
    JOBS,
    KUEUE_WORKLOADS,
    NAMESPACES,
    NODES,
    PODS,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.staged_data import ASKS_LABEL, STAGED_DATA, staged_data_of
from kopt.controllers.staging.given import DataView
from kopt.controllers.staging.reading import asking_pod_view, job_view, kueue_view, node_view, pod_view, workload_view
from kopt.controllers.staging.views import JobView, KueueView, NodeView, PodView, WorkloadView
from kopt.policies.staging.pod import DATA_LABEL

WORKLOADS = tuple(one for one in HOLDABLE if one not in (CRON_JOBS, KUEUE_WORKLOADS))
"""Kinds that may ask for data: what makes Jobs again and again asks in what it makes."""
V = TypeVar("V")


class Known(Generic[V]):
    """What an informer has seen, with own writes on top until it has come as far."""

    def __init__(self, informer: Informer[V], view: Callable[[Object], V | None]) -> None:
        self.informer, self._view = informer, view
        self._written: dict[Key, tuple[str, V]] = {}

    def all(self) -> list[V]:
        come_to = _number(self.informer.version)
        self._written = {key: one for key, one in self._written.items() if _number(one[0]) > come_to}
        return list((dict(self.informer.objects) | {key: one for key, (_, one) in self._written.items()}).values())

    def put(self, document: Object) -> None:
        view = self._view(document)
        if view is not None:
            self._written[key_of(document)] = (document["metadata"]["resourceVersion"], view)


class LiveCluster:
    """``changed`` is set by whatever may change what is to be done."""

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self._data = Known(Informer(kube, STAGED_DATA, keep=data_view), data_view)
        self._jobs = Known(Informer(kube, JOBS, keep=job_view, label_selector=DATA_LABEL), job_view)
        self._workloads = {
            resource: Known(Informer(kube, resource, keep=view), view)
            for resource in WORKLOADS for view in [partial(workload_view, resource=resource)]
        }  # fmt: skip
        self._workloads[PODS] = Known(
            Informer(kube, PODS, keep=asking_pod_view, label_selector=ASKS_LABEL), asking_pod_view
        )
        self._kueue = Known(Informer(kube, KUEUE_WORKLOADS, keep=kueue_view), kueue_view)
        self._pods: Informer[PodView] = Informer(kube, PODS, keep=pod_view, label_selector=DATA_LABEL)
        self._nodes: Informer[NodeView] = Informer(kube, NODES, keep=node_view)
        self._namespaces: Informer[NamespaceView] = Informer(kube, NAMESPACES, keep=namespace_view)
        self.informers: tuple[Informer[Any], ...] = (
            self._namespaces, self._nodes, self._data.informer, self._jobs.informer, self._pods, self._kueue.informer,
            *(one.informer for one in self._workloads.values()),
        )  # fmt: skip
        for informer in self.informers:
            informer.subscribe(self._told)

    def data(self) -> Sequence[DataView]:
        return self._data.all()

    def workloads(self) -> Sequence[WorkloadView]:
        return [one for known in self._workloads.values() for one in known.all()]

    def jobs(self) -> Sequence[JobView]:
        return self._jobs.all()

    def pods(self) -> Sequence[PodView]:
        return list(self._pods.objects.values())

    def kueue(self) -> Sequence[KueueView]:
        return self._kueue.all()

    def nodes(self) -> Sequence[NodeView]:
        return list(self._nodes.objects.values())

    def namespace(self, name: str) -> NamespaceView:
        return self._namespaces.objects.get(("", name), NamespaceView())

    def noted(self, resource: Resource, document: Object) -> None:
        if resource == KUEUE_WORKLOADS:
            self._kueue.put(document)
        elif resource == STAGED_DATA:
            self._data.put(document)
        elif resource == JOBS and DATA_LABEL in (document["metadata"].get("labels") or {}):
            self._jobs.put(document)
        else:
            self._workloads[resource].put(document)

    def _told(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()


def data_view(document: Object) -> DataView:
    document["metadata"].pop("managedFields", None)
    return DataView(document, document["metadata"]["resourceVersion"], staged_data_of(document))


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
