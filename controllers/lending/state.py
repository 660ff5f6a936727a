"""The state observed by informers, with our own writes."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.cluster.checkpoints.claims import Claims
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    EVICTIONS,
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LENDING_POOLS,
    NAMESPACES,
    PODS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Object,
    Resource,
)
from kopt.cluster.objects.eviction import entry_of
from kopt.cluster.objects.fields import at, has_condition, items, mapping, slim, text
from kopt.cluster.objects.kai import QUEUE_LABEL
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.kueue.objects import Flavor, GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import read_cohort, read_flavor
from kopt.cluster.workloads.kueue.reading import local_queue_target, read_kueue_workload
from kopt.controllers.lending.pool import observed_pod, read_pool
from kopt.controllers.lending.views import ObservedPod, Pool
from kopt.core.scheduling.eviction import Entry, Phase
from kopt.core.scheduling.quota import QuotaNode
from kopt.core.switches import Owner

_STARTING_AGAIN = {"JobSet", "MPIJob", "RayJob"}
"""Controllers that resume their Jobs when others suspend them."""


class LiveCluster(LiveState):
    """``changed`` is set by every change that may need a reconcile; ``since_s`` says since when (monotonic)."""

    def __init__(self, kube: Kube, gate: Gate = OPEN) -> None:
        self._gate = gate
        super().__init__()
        self.pools_changed = asyncio.Event()
        self.since_s: float | None = None
        self._pools = ObjectCache(Informer(kube, LENDING_POOLS, keep=read_pool, required=True))
        self._workloads = ObjectCache(Informer(kube, KUEUE_WORKLOADS, keep=read_kueue_workload))
        self._cluster_queues = ObjectCache(Informer(kube, KUEUE_CLUSTER_QUEUES, keep=_queue))
        self._kai_queues = ObjectCache(Informer(kube, KAI_QUEUES, keep=_queue))
        self._jobs = ObjectCache(Informer(kube, JOBS, keep=gpu_job))
        self._volcano_queues = ObjectCache(Informer(kube, VOLCANO_QUEUES, keep=_queue))
        self._volcano_jobs: ObjectCache[Object] = ObjectCache(Informer(kube, VOLCANO_JOBS))
        self._local: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        self._cohorts: Informer[QuotaNode] = Informer(kube, KUEUE_COHORTS, keep=read_cohort)
        self._flavors: Informer[Flavor] = Informer(kube, KUEUE_FLAVORS, keep=read_flavor)
        self._namespaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self._evictions: Informer[Entry] = Informer(kube, EVICTIONS, keep=entry_of)
        self._pods = ObjectCache(Informer(kube, PODS, keep=observed_pod))
        self.claims = Claims()
        self._pods.informer.subscribe(lambda change: self.claims.see(_gpu_pod(change.old), _gpu_pod(change.new)))
        self._caches: Mapping[Resource, ObjectCache[Any]] = {
            LENDING_POOLS: self._pools,
            KUEUE_WORKLOADS: self._workloads,
            KUEUE_CLUSTER_QUEUES: self._cluster_queues,
            KAI_QUEUES: self._kai_queues,
            JOBS: self._jobs,
            PODS: self._pods,
            VOLCANO_QUEUES: self._volcano_queues,
            VOLCANO_JOBS: self._volcano_jobs,
        }
        self._observe(
            self._namespaces,
            self._cohorts,
            self._flavors,
            self._local,
            self._evictions,
            *(item.informer for item in self._caches.values()),
        )
        self._pools.informer.subscribe(lambda change: self.pools_changed.set() if change.old != change.new else None)

    def pools(self) -> Sequence[Pool]:
        return sorted(map(self._gated, self._pools.objects.values()), key=lambda pool: pool.name)

    def _gated(self, pool: Pool) -> Pool:
        """A pool that is switched off is only observed: what it has lent is given back as in mode observe."""
        if pool.spec is None:
            return pool
        mode = self._gate.mode("lending", Owner.of(LENDING_POOLS.plural, "", pool.name), pool.spec.mode)
        return pool if mode is pool.spec.mode else replace(pool, spec=replace(pool.spec, mode=mode))

    def workloads(self) -> Sequence[KueueWorkload]:
        return list(self._workloads.objects.values())

    def jobs(self) -> Sequence[Object]:
        return list(self._jobs.objects.values())

    def volcano_jobs(self) -> Sequence[Object]:
        return list(self._volcano_jobs.objects.values())

    def queues(self, resource: Resource) -> Mapping[str, Object]:
        """Queues of a kind by name."""
        return {name: document for (_, name), document in self._caches[resource].objects.items()}

    def cohorts(self) -> Sequence[QuotaNode]:
        return list(self._cohorts.objects.values())

    def flavors(self) -> Mapping[str, Flavor]:
        """Kueue's ResourceFlavors by name."""
        return {name: flavor for (_, name), flavor in self._flavors.objects.items()}

    def cluster_queue_of(self, workload: KueueWorkload) -> str:
        return workload.cluster_queue or self._local.objects.get((workload.key[0], workload.queue), "")

    def namespace(self, name: str) -> NamespaceSettings:
        return self._namespaces.objects.get(("", name), NamespaceSettings())

    def pods(self) -> Sequence[ObservedPod]:
        return [replace(pod, gpu_pod=self.claims.settled(pod.gpu_pod)) for pod in self._pods.objects.values()]

    def pending_evictions(self) -> Mapping[str, Entry]:
        """The newest eviction of each workload that has not resumed, by the workload's uid."""
        entries_by_name: dict[str, Entry] = {}
        for entry in self._evictions.objects.values():
            newest = entries_by_name.get(entry.eviction.workload.uid)
            if newest is None or newest.eviction.evicted_at_s < entry.eviction.evicted_at_s:
                entries_by_name[entry.eviction.workload.uid] = entry
        return {uid: entry for uid, entry in entries_by_name.items() if entry.outcome.phase is Phase.WAITING}

    def noted(self, resource: Resource, document: Object) -> None:
        """Record a write of our own."""
        self._caches[resource].record(document)

    def nudge(self) -> None:
        """Something other than an object has changed."""
        if self.since_s is None:
            self.since_s = time.monotonic()
        self.changed.set()

    def _on_change(self, change: Change[Any]) -> None:
        # A pool's status is written by us alone.
        if change.old != change.new:
            self.nudge()


def _gpu_pod(pod: ObservedPod | None) -> GpuPod | None:
    return None if pod is None else pod.gpu_pod


def gpu_job(job: Object) -> Object | None:
    """Jobs that have not ended and whose pods are for a queue of KAI's; the label says which. Not those of a
    JobSet and the like, which would resume them at once."""
    ended = has_condition(job, "Complete", "Failed")
    owners = {
        text(item, "kind") for _, item in items(job, "metadata", "ownerReferences") if at(item, "controller") is True
    }
    if ended or owners & _STARTING_AGAIN or not kai_queue(job):
        return None
    return slim(job)


def kai_queue(job: Object) -> str:
    """The KAI queue of a Job's pods; empty for none."""
    pods = mapping(job, "spec", "template", "metadata", "labels")
    return text(pods, QUEUE_LABEL) or text(job, "metadata", "labels", QUEUE_LABEL)


def volcano_queue(job: Object) -> str:
    """The queue of a Job of Volcano's."""
    return text(job, "spec", "queue") or "default"


def _queue(document: Object) -> Object:
    """Statuses of queues change with every pod, and nothing here reads them."""
    return slim(document, "status")
