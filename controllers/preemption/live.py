"""What informers have seen, and what was written since."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.cluster.api import Kube
from kopt.cluster.informer import Change, Informer
from kopt.cluster.namespaces import NamespaceView, namespace_view
from kopt.cluster.resources import (
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NAMESPACES,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.controllers.preemption.pods import SeenPods
from kopt.controllers.preemption.reading import (
    cluster_queue_view,
    eviction_view,
    local_queue_target,
    pod_view,
    workload_view,
)
from kopt.controllers.preemption.views import ClusterQueueView, EvictionView, PodView, WorkloadView

_EVICTIONS = Resource("kaiwo.ai", "v1alpha1", "evictions", "Eviction")


class LiveCluster:
    """``changed`` is set by whatever may change what is to be done."""

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self._workloads: Informer[WorkloadView] = Informer(kube, KUEUE_WORKLOADS, keep=workload_view)
        self._queues: Informer[ClusterQueueView] = Informer(kube, KUEUE_CLUSTER_QUEUES, keep=cluster_queue_view)
        self._local: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        self.pods = SeenPods(kube)
        self._namespaces: Informer[NamespaceView] = Informer(kube, NAMESPACES, keep=namespace_view)
        self._evictions: Informer[EvictionView] = Informer(kube, _EVICTIONS, keep=eviction_view)
        self._written: dict[Key, WorkloadView] = {}
        self._of: dict[tuple[str, str], dict[str, PodView]] = {}
        self.pods.read(pod_view, self._pod_changed)
        for one in (self._workloads, self._queues, self._local, self._namespaces):
            one.subscribe(self._told)
        self.informers: tuple[Informer[Any], ...] = (
            self._namespaces, self._queues, self._local, self._evictions, self.pods.informer, self._workloads,
        )  # fmt: skip

    def workloads(self) -> Sequence[WorkloadView]:
        self._catch_up()
        return list((dict(self._workloads.objects) | self._written).values())

    def workload(self, key: Key) -> WorkloadView | None:
        self._catch_up()
        return self._written.get(key) or self._workloads.objects.get(key)

    def queue_of(self, workload: WorkloadView) -> ClusterQueueView | None:
        name = workload.cluster_queue or self._local.objects.get((workload.key[0], workload.queue), "")
        return self._queues.objects.get(("", name))

    def pods_of(self, workload: WorkloadView) -> Sequence[PodView]:
        found: dict[str, PodView] = {}
        for name in _names(workload.key, workload.owner_uid):
            found |= self._of.get((workload.key[0], name), {})
        return list(found.values())

    def preemptions(self, since_s: float) -> Mapping[str, int]:
        return Counter(one.uid for one in self._evictions.objects.values() if one.at_s >= since_s)

    @property
    def spaces(self) -> Mapping[Key, NamespaceView]:
        return self._namespaces.objects

    def mode(self, workload: WorkloadView) -> str:
        space = self._namespaces.objects.get(("", workload.key[0]), NamespaceView())
        return (workload.mode or space.mode) if space.managed else "observe"

    def noted(self, document: Object) -> None:
        self._written[key_of(document)] = workload_view(document)

    def _catch_up(self) -> None:
        """Own writes count until the informer has come as far, or the object is gone."""
        come_to = _number(self._workloads.version)
        self._written = {key: one for key, one in self._written.items()
                         if _number(one.version) > come_to and key in self._workloads.objects}  # fmt: skip

    def _told(self, change: Change[Any]) -> None:
        if change.old != change.new:
            self.changed.set()

    def _pod_changed(self, change: Change[PodView]) -> None:
        for view, there in ((change.old, False), (change.new, True)):
            if view is None:
                continue
            for name in _names((view.key[0], view.workload), view.owner_uid, view.uid):
                pods = self._of.setdefault((view.key[0], name), {})
                pods.pop(view.uid, None)
                if there:
                    pods[view.uid] = view
                elif not pods:
                    del self._of[view.key[0], name]
        self._told(change)


def _names(workload: Key, *uids: str) -> list[str]:
    """By which a pod is found: its Workload's name, its owner's uid, its own."""
    return [*([f"/{workload[1]}"] if workload[1] else []), *(one for one in uids if one)]


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
