"""What the queues of KAI and Volcano use and wait for: neither has Kueue's Workload, so pods and PodGroups are counted.

A pod's queue is that of its PodGroup, which both schedulers write, else that of its own label or annotation. A group
whose pods are not there yet, as Volcano does not let them be created, counts by its ``minResources``. What a suspended
Job would ask for has no pods and counts nowhere.
Sources: KAI-Scheduler 0.12 (pod-grouper: ``pod-group-name``), Volcano 1.12 (``scheduling.k8s.io/group-name``,
scheduling.volcano.sh/v1beta1 PodGroup).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KAI_POD_GROUPS, PODS, VOLCANO_POD_GROUPS, Key, Object
from kopt.cluster.objects.custom.reservation import held_for
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES
from kopt.cluster.workloads.requests.gpus import gpus_of, resources_milli
from kopt.cluster.workloads.tracked_pod import pod_group_of
from kopt.controllers.queues.demand import QueueGpus
from kopt.core.scheduling.queue_tree import DemandState, Engine
from kopt.core.scheduling.submission import Framework
from kopt.policies.queues import QueueTree
from kopt.policies.queues.kai import pool_queues

_ENDED = ("Succeeded", "Failed")
_WAITS = ("", "Pending", "Inqueue")
_FRAMEWORKS = {Engine.KAI: Framework.KAI, Engine.VOLCANO: Framework.VOLCANO}
_GROUPS = {Engine.KAI: KAI_POD_GROUPS, Engine.VOLCANO: VOLCANO_POD_GROUPS}


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod with GPUs that has not ended; ``queue`` as it says itself, empty for nothing."""

    queue: str
    group: Key | None
    milli: int
    runs: bool


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """A PodGroup. ``milli``: the GPUs that its minimum takes, 0 once it runs or where it does not say."""

    queue: str
    milli: int


def queued_pod(engine: Engine) -> Callable[[Object], QueuedPod | None]:
    """Reads a pod; None for one that asks for no GPU, has ended, or holds GPUs for a reservation."""
    reference = QUEUE_REFERENCES[_FRAMEWORKS[engine]]

    def read(pod: Object) -> QueuedPod | None:
        spec, metadata = mapping(pod, "spec"), mapping(pod, "metadata")
        annotations = mapping(metadata, "annotations")
        milli = gpus_of(spec, annotations)
        if not milli or text(pod, "status", "phase") in _ENDED or held_for(pod):
            return None
        group = pod_group_of(annotations)
        return QueuedPod(
            text(metadata, reference.section, reference.key),
            (text(metadata, "namespace"), group) if group else None,
            milli,
            bool(text(spec, "nodeName")),
        )

    return read


def queued_group(group: Object) -> QueuedGroup:
    spec = mapping(group, "spec")
    waits = text(group, "status", "phase") in _WAITS
    return QueuedGroup(text(spec, "queue"), resources_milli({"limits": spec.get("minResources")}) if waits else 0)


def gpus_of_pods(
    pods: Iterable[QueuedPod], groups: Mapping[Key, QueuedGroup], names: Mapping[str, tuple[str, str]]
) -> Iterator[QueueGpus]:
    """``names``: the KaiwoQueue and the pool of each of the engine's queues."""
    started = set[Key]()
    for pod in pods:
        group = groups.get(pod.group) if pod.group is not None else None
        if pod.group is not None:
            started.add(pod.group)
        queue, pool = names.get(group.queue if group is not None and group.queue else pod.queue, ("", ""))
        if queue:
            yield QueueGpus(queue, pool, DemandState.USED if pod.runs else DemandState.PENDING, pod.milli)
    for key, group in groups.items():
        queue, pool = names.get(group.queue, ("", ""))
        if queue and group.milli and key not in started:
            yield QueueGpus(queue, pool, DemandState.PENDING, group.milli)


def queue_names(tree: QueueTree, engine: Engine) -> Mapping[str, tuple[str, str]]:
    """Of each queue that the engine has for a KaiwoQueue: which, and in which pool; empty for all of them together."""
    return pool_queues(tree) if engine is Engine.KAI else {name: (name, "") for name in tree.queues}


class PodQueues:
    """Pods and PodGroups of one engine, as informers keep them."""

    def __init__(self, kube: Kube, engine: Engine) -> None:
        self._engine = engine
        self.pods: Informer[QueuedPod] = Informer(kube, PODS, keep=queued_pod(engine))
        self.groups: Informer[QueuedGroup] = Informer(kube, _GROUPS[engine], keep=queued_group)
        self.informers: tuple[Informer[Any], ...] = (self.pods, self.groups)

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers)

    def gpus(self, tree: QueueTree) -> Iterator[QueueGpus]:
        names = queue_names(tree, self._engine)
        return gpus_of_pods(list(self.pods.objects.values()), dict(self.groups.objects), names)
