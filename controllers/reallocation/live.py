"""What informers have seen, and what was written since."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kopt.cluster.api import Kube
from kopt.cluster.evictions import entry_of
from kopt.cluster.informer import Change, Informer, identity
from kopt.cluster.namespaces import NamespaceView, namespace_view
from kopt.cluster.resources import (
    EVICTIONS,
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    NAMESPACES,
    PODS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.controllers.preemption.kai.views import QUEUE_LABEL
from kopt.controllers.preemption.reading import local_queue_target, workload_view
from kopt.controllers.preemption.views import WorkloadView
from kopt.controllers.reallocation.reading import pool_view, seen_pod
from kopt.controllers.reallocation.views import Pool, SeenPod
from kopt.controllers.webhook.objects import at, items, mapping, text
from kopt.core.evictions import Entry, Phase

_STARTING_AGAIN = {"JobSet", "MPIJob", "RayJob"}
"""Controllers that let their Jobs run again when somebody else suspends them."""
T = TypeVar("T")


class Shown(Generic[T]):
    """An informer's objects, with own writes on top until it has come as far."""

    def __init__(self, kube: Kube, resource: Resource, keep: Callable[[Object], T | None]) -> None:
        self.informer: Informer[T] = Informer(kube, resource, keep=keep)
        self._keep = keep
        self._written: dict[Key, tuple[int, T | None]] = {}

    def objects(self) -> Mapping[Key, T]:
        come_to = _number(self.informer.version)
        there = self.informer.objects
        self._written = {key: one for key, one in self._written.items() if one[0] > come_to and key in there}
        written = {key: view for key, (_, view) in self._written.items() if view is not None}
        gone = self._written.keys() - written.keys()
        return {key: view for key, view in there.items() if key not in gone} | written

    def noted(self, document: Object) -> None:
        """This was written just now."""
        version = _number(document["metadata"].get("resourceVersion", ""))
        self._written[key_of(document)] = (version, self._keep(document))


class LiveCluster:
    """``changed`` is set by whatever may change what is to be done; ``since_s`` says since when (monotonic)."""

    def __init__(self, kube: Kube) -> None:
        self.changed, self.pools_changed = asyncio.Event(), asyncio.Event()
        self.since_s: float | None = None
        self._pools = Shown(kube, LENDING_POOLS, pool_view)
        self._workloads = Shown(kube, KUEUE_WORKLOADS, workload_view)
        self._cluster_queues = Shown(kube, KUEUE_CLUSTER_QUEUES, _slim)
        self._kai_queues = Shown(kube, KAI_QUEUES, _slim)
        self._jobs = Shown(kube, JOBS, gpu_job)
        self._volcano_queues, self._volcano_jobs = (
            Shown(kube, VOLCANO_QUEUES, _slim),
            Shown(kube, VOLCANO_JOBS, identity),
        )
        self._local: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        self._namespaces: Informer[NamespaceView] = Informer(kube, NAMESPACES, keep=namespace_view)
        self._evictions: Informer[Entry] = Informer(kube, EVICTIONS, keep=entry_of)
        self._pods = Shown(kube, PODS, seen_pod)
        self._shown: Mapping[Resource, Shown[Any]] = {
            LENDING_POOLS: self._pools, KUEUE_WORKLOADS: self._workloads, KUEUE_CLUSTER_QUEUES: self._cluster_queues,
            KAI_QUEUES: self._kai_queues, JOBS: self._jobs, PODS: self._pods, VOLCANO_QUEUES: self._volcano_queues,
            VOLCANO_JOBS: self._volcano_jobs,
        }  # fmt: skip
        self.informers: tuple[Informer[Any], ...] = (
            self._namespaces, self._local, self._evictions, *(one.informer for one in self._shown.values()),
        )  # fmt: skip
        for informer in self.informers:
            informer.subscribe(self._told)
        self._pools.informer.subscribe(lambda change: self.pools_changed.set() if change.old != change.new else None)

    def pools(self) -> Sequence[Pool]:
        return sorted(self._pools.objects().values(), key=lambda one: one.name)

    def workloads(self) -> Sequence[WorkloadView]:
        return list(self._workloads.objects().values())

    def jobs(self) -> Sequence[Object]:
        return list(self._jobs.objects().values())

    def volcano_jobs(self) -> Sequence[Object]:
        return list(self._volcano_jobs.objects().values())

    def queues(self, resource: Resource) -> Mapping[str, Object]:
        """Queues of a kind by name."""
        return {name: document for (_, name), document in self._shown[resource].objects().items()}

    def cluster_queue_of(self, workload: WorkloadView) -> str:
        return workload.cluster_queue or self._local.objects.get((workload.key[0], workload.queue), "")

    def namespace(self, name: str) -> NamespaceView:
        return self._namespaces.objects.get(("", name), NamespaceView())

    def pods(self) -> Sequence[SeenPod]:
        return list(self._pods.objects().values())

    def waiting(self) -> Mapping[str, Entry]:
        """Lines of the ledger about workloads that are not back, by the workload's uid; the newest of each."""
        found: dict[str, Entry] = {}
        for one in self._evictions.objects.values():
            known = found.get(one.eviction.workload.uid)
            if known is None or known.eviction.evicted_at_s < one.eviction.evicted_at_s:
                found[one.eviction.workload.uid] = one
        return {uid: one for uid, one in found.items() if one.outcome.phase is Phase.WAITING}

    def noted(self, resource: Resource, document: Object) -> None:
        """This was written just now."""
        self._shown[resource].noted(document)

    def nudge(self) -> None:
        """Something other than an object has changed."""
        if self.since_s is None:
            self.since_s = time.monotonic()
        self.changed.set()

    def _told(self, change: Change[Any]) -> None:
        # A pool's status is our own word.
        if change.old != change.new:
            self.nudge()


def gpu_job(job: Object) -> Object | None:
    """Jobs that have not ended and whose pods are for a queue of KAI's; the label says which. Not those of a
    JobSet and the like, which would let them run again at once."""
    ended = any(text(one, "type") in ("Complete", "Failed") and text(one, "status") == "True"
                for _, one in items(job, "status", "conditions"))  # fmt: skip
    owners = {
        text(one, "kind") for _, one in items(job, "metadata", "ownerReferences") if at(one, "controller") is True
    }
    if ended or owners & _STARTING_AGAIN or not kai_queue(job):
        return None
    job["metadata"].pop("managedFields", None)
    return job


def kai_queue(job: Object) -> str:
    """The KAI queue of a Job's pods; empty for none."""
    pods = mapping(job, "spec", "template", "metadata", "labels")
    return text(pods, QUEUE_LABEL) or text(job, "metadata", "labels", QUEUE_LABEL)


def volcano_queue(job: Object) -> str:
    """The queue of a Job of Volcano's."""
    return text(job, "spec", "queue") or "default"


def _slim(document: Object) -> Object:
    document["metadata"].pop("managedFields", None)
    document.pop("status", None)
    return document


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
