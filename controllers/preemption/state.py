"""The state observed by informers, with our own writes."""

from collections import Counter
from collections.abc import Mapping, Sequence

from kopt.cluster.checkpoints.claims import Claims
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    EVICTIONS,
    JOBS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NAMESPACES,
    Key,
    Object,
)
from kopt.cluster.objects.fields import at, items, text
from kopt.cluster.objects.namespace import NamespaceSettings, read_namespace
from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.object_cache import LiveState, ObjectCache
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, GpuPod, KueueWorkload, PastEviction
from kopt.cluster.workloads.kueue.queues import read_cluster_queue, read_cohort, read_flavor
from kopt.cluster.workloads.kueue.reading import (
    local_queue_target,
    read_eviction,
    read_gpu_pod,
    read_kueue_workload,
)
from kopt.cluster.workloads.owners import owner_of
from kopt.controllers.preemption.pods import ObservedPods
from kopt.core.decision import Mode
from kopt.core.scheduling.quota import QuotaNode
from kopt.core.switches import Owner
from kopt.policies.admission.mode import effective_mode, mode_in


class LiveCluster(LiveState):
    """``changed`` is set by every change that may need a reconcile."""

    def __init__(
        self,
        kube: Kube,
        mode: Mode = Mode.OBSERVE,
        workload_may_lower: bool | None = None,
        gate: Gate = OPEN,
    ) -> None:
        self._mode, self._may_lower, self._gate = mode, workload_may_lower, gate
        self.claims = Claims()
        super().__init__()
        self._workloads = ObjectCache(Informer(kube, KUEUE_WORKLOADS, keep=read_kueue_workload))
        self._queues: Informer[ClusterQueue] = Informer(kube, KUEUE_CLUSTER_QUEUES, keep=read_cluster_queue)
        self._cohorts: Informer[QuotaNode] = Informer(kube, KUEUE_COHORTS, keep=read_cohort)
        self._flavors: Informer[Flavor] = Informer(kube, KUEUE_FLAVORS, keep=read_flavor)
        self._local: Informer[str] = Informer(kube, KUEUE_LOCAL_QUEUES, keep=local_queue_target)
        self.pods = ObservedPods(kube)
        self._namespaces: Informer[NamespaceSettings] = Informer(kube, NAMESPACES, keep=read_namespace)
        self.job_sets: Informer[tuple[str, str]] = Informer(kube, JOBS, keep=job_set_of)
        """The uid of each Job that belongs to a JobSet, with that of the JobSet; run where gangs are made of pods."""
        self._evictions: Informer[PastEviction] = Informer(kube, EVICTIONS, keep=read_eviction)
        self._pods_of: Index[tuple[str, str], GpuPod] = Index(_names_of_pod)
        self.pods.read(read_gpu_pod, self._pod_changed)
        for item in (
            self._workloads.informer,
            self._queues,
            self._cohorts,
            self._flavors,
            self._local,
            self._namespaces,
        ):
            item.subscribe(self._on_change)
        self.informers = (
            self._namespaces,
            self._queues,
            self._cohorts,
            self._flavors,
            self._local,
            self._evictions,
            self.pods.informer,
            self._workloads.informer,
        )

    def workloads(self) -> Sequence[KueueWorkload]:
        return list(self._workloads.objects.values())

    def workload(self, key: Key) -> KueueWorkload | None:
        return self._workloads.objects.get(key)

    def queue_of(self, workload: KueueWorkload) -> ClusterQueue | None:
        name = workload.cluster_queue or self._local.objects.get((workload.key[0], workload.queue), "")
        return self._queues.objects.get(("", name))

    def queues(self) -> Sequence[ClusterQueue]:
        return list(self._queues.objects.values())

    def cohorts(self) -> Sequence[QuotaNode]:
        return list(self._cohorts.objects.values())

    def flavors(self) -> Mapping[str, Flavor]:
        return {key[1]: flavor for key, flavor in self._flavors.objects.items()}

    def pods_of(self, workload: KueueWorkload) -> Sequence[GpuPod]:
        names = _names(workload.key, workload.owner_uid)
        pods = {pod.uid: pod for name in names for pod in self._pods_of.of(name)}
        return [self.claims.settled(pod) for pod in pods.values()]

    def preemptions(self, since_s: float) -> Mapping[str, int]:
        return Counter(eviction.uid for eviction in self._evictions.objects.values() if eviction.at_s >= since_s)

    @property
    def spaces(self) -> Mapping[Key, NamespaceSettings]:
        return self._namespaces.objects

    def mode(self, workload: KueueWorkload) -> str:
        mode = mode_in(self._namespaces.objects.get(("", workload.key[0])), workload.mode, self._mode, self._may_lower)
        return self.gated(owner_of(workload.document, KUEUE_WORKLOADS.plural), mode)

    def gated(self, owner: Owner, mode: Mode) -> Mode:
        """The mode where the feature is switched on for an owner, else OBSERVE."""
        return self._gate.mode("preemption", owner, mode)

    def effective_mode(self, own: str, namespace: str) -> Mode:
        """That of something in a namespace that says ``own`` itself."""
        space = self._namespaces.objects.get(("", namespace), NamespaceSettings())
        return effective_mode(own, space.mode, self._mode, self._may_lower)

    def noted(self, document: Object) -> None:
        self._workloads.record(document)

    def _pod_changed(self, change: Change[GpuPod]) -> None:
        self.claims.see(change.old, change.new)
        self._pods_of.follow(change)
        self._on_change(change)


def job_set_of(job: Object) -> tuple[str, str] | None:
    """The uids of a Job and of the JobSet that controls it; None for other Jobs."""
    metadata = job["metadata"]
    owner = next((item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), None)
    return (text(metadata, "uid"), text(owner, "uid")) if text(owner, "kind") == "JobSet" else None


def _names(workload: Key, *uids: str) -> list[tuple[str, str]]:
    """The keys of pods, with the namespace: their Workload's name, their owner's uid, their own."""
    names = [*([f"/{workload[1]}"] if workload[1] else []), *(uid for uid in uids if uid)]
    return [(workload[0], name) for name in names]


def _names_of_pod(pod: GpuPod) -> list[tuple[str, str]]:
    return _names((pod.key[0], pod.workload), pod.owner_uid, pod.uid)
