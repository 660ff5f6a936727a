"""What is kept of pods, nodes, Jobs and Workloads. Nothing that anybody may have written makes a reader raise."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, Key, Object, key_of
from kopt.cluster.holds.hold import holder_of, is_mirrored
from kopt.cluster.objects.eviction import proven_notice_of
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.jobs import outlives
from kopt.cluster.workloads.kueue.reading import amount, annotations_of, requests_of
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.core.scheduling.eviction import Notice
from kopt.core.switches import Owner
from kopt.core.times import seconds_or_none

MINIMUM_ANNOTATION = "kaiwo.ai/gang-minimum"
DEADLOCK_ANNOTATION = "kaiwo.ai/gang-deadlock"
"""On the owner of a gang, in mode annotate: JSON of what waits for each other, and what would be released."""
HOLDER = "gangs"
_WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
_SPEC = ("nodeSelector", "affinity", "tolerations")
_MOST_PODS, _MOST_EVICTED = 100_000, 64


@dataclass(frozen=True)
class ObservedPod:
    """A pod that has not ended. ``rules``: what of its spec limits where it runs. ``simple``: nothing else does.
    ``requests`` are thousandths."""

    key: Key
    owner_uid: str
    workload: str
    node: str
    requests: Mapping[str, int]
    bound_s: float
    created_s: float
    refused: bool
    terminating: bool
    simple: bool
    priority: int
    rules: Object
    checkpoint: Mapping[str, str]
    """Annotations of ours."""
    document: Object
    """Its metadata, by which it is written; empty without GPUs."""

    @property
    def has_gpus(self) -> bool:
        return any(value and is_gpu(name) for name, value in self.requests.items())


def read_pod(pod: Object) -> ObservedPod | None:
    if text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return None
    metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    owner: Mapping[str, Any] = next(
        (item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), {}
    )
    scheduled: Mapping[str, Any] = next(
        (item for _, item in items(pod, "status", "conditions") if text(item, "type") == "PodScheduled"), {}
    )
    created_s = seconds_or_none(text(metadata, "creationTimestamp")) or 0.0
    priority = at(spec, "priority")
    affinity = mapping(spec, "affinity")
    return ObservedPod(
        key_of(pod),
        text(owner, "uid"),
        text(metadata, "annotations", _WORKLOAD_ANNOTATION),
        text(spec, "nodeName"),
        dict(requests_of(spec)) | {"pods": 1000},
        seconds_or_none(text(scheduled, "lastTransitionTime")) or created_s,
        created_s,
        text(scheduled, "status") == "False" and text(scheduled, "reason") == "Unschedulable",
        bool(text(metadata, "deletionTimestamp")),
        not (set(affinity) - {"nodeAffinity"} or at(spec, "topologySpreadConstraints") or at(spec, "resourceClaims")),
        priority if isinstance(priority, int) else 0,
        {name: spec[name] for name in _SPEC if name in spec},
        annotations_of(pod),
        {"metadata": _metadata(pod)} if any(is_gpu(name) for name in requests_of(spec)) else {},
    )


@dataclass(frozen=True)
class ObservedNode:
    """A node that takes pods; amounts are thousandths."""

    name: str
    room: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[Object, ...]


def read_node(node: Object) -> ObservedNode | None:
    if not has_condition(node, "Ready") or at(node, "spec", "unschedulable") is True:
        return None
    room = {str(name): amount(value) for name, value in mapping(node, "status", "allocatable").items()}
    labels = {str(name): str(value) for name, value in mapping(node, "metadata", "labels").items()}
    taints = tuple(dict(item) for _, item in items(node, "spec", "taints"))
    return ObservedNode(text(node, "metadata", "name"), room, labels, taints)


@dataclass(frozen=True)
class GangOwner:
    """A Job, or a Workload of Kueue's. ``document`` has what a hold reads. ``minimum``: 0 where it is no gang.
    ``notice``: what we wrote when we released it. ``runs``: neither its owner nor anybody else has stopped it."""

    document: Object
    key: Key
    uid: str
    owner_uid: str
    minimum: int
    runs: bool
    finished: bool
    holder: str
    mode: str
    mirrored: bool
    notice: Notice | None
    reported: str
    queued: bool = False
    """A Job that Kueue decides about: it is held by its Workload."""
    owner_kind: str = field(default="", compare=False)
    remaining_evictions: int = 0
    """So many of a Job's pods may be evicted before it ends for good."""
    whose: Owner = Owner("", "", "")
    """For percentages."""


def read_job(job: Object) -> GangOwner:
    metadata, spec = mapping(job, "metadata"), mapping(job, "spec")
    finished = has_condition(job, "Complete", "Failed")
    document = {"metadata": _metadata(job), "spec": {"suspend": at(spec, "suspend")}}
    queued = any(name.startswith("kueue.x-k8s.io/queue") for name in mapping(metadata, "labels"))
    runs = at(spec, "suspend") is not True
    result = _owner(document, job, job_minimum(job), runs, finished, queued=queued)
    return replace(result, remaining_evictions=_remaining_evictions(job), whose=owner_of(job, JOBS.plural))


def _remaining_evictions(job: Object) -> int:
    return next((pods for pods in range(_MOST_EVICTED) if not outlives(job, pods + 1)), _MOST_EVICTED)


def job_minimum(job: Object) -> int:
    """How many pods a Job needs at once: as its annotation says, or all of an Indexed Job that runs in one wave. Other
    Jobs may be independent pieces of work, and are no gangs."""
    stated = _stated(job) or _stated(at(job, "spec", "template"))
    if stated:
        return stated
    parallelism = count(job, "spec", "parallelism", default=1)
    completions = at(job, "spec", "completions")
    is_wave = text(job, "spec", "completionMode") == "Indexed" and completions == parallelism
    return parallelism if is_wave and 1 < parallelism <= _MOST_PODS else 0


def read_workload(workload: Object) -> GangOwner:
    """Only what Kueue has admitted can hold nodes; what we hold is kept as well."""
    metadata = mapping(workload, "metadata")
    conditions = {
        text(item, "type"): text(item, "status") == "True" for _, item in items(workload, "status", "conditions")
    }
    owner: Mapping[str, Any] = next(
        (item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), {}
    )
    pods = sum(count(pod_set, "count", default=1) for _, pod_set in items(workload, "spec", "podSets"))
    minimum = _stated(workload) or (pods if 1 < pods <= _MOST_PODS else 0)
    active = at(workload, "spec", "active")
    document = {"metadata": _metadata(workload), "spec": {"active": active}}
    finished = conditions.get("Finished", False)
    runs = conditions.get("Admitted", False) and active is not False
    result = _owner(document, workload, minimum, runs, finished, text(owner, "uid"), owner_kind=text(owner, "kind"))
    return replace(result, whose=owner_of(workload, KUEUE_WORKLOADS.plural))


def _owner(
    document: Object,
    whole: Object,
    minimum: int,
    runs: bool,
    finished: bool,
    owner_uid: str = "",
    queued: bool = False,
    owner_kind: str = "",
) -> GangOwner:
    annotations = mapping(whole, "metadata", "annotations")
    return GangOwner(
        document,
        key_of(whole),
        text(whole, "metadata", "uid"),
        owner_uid,
        minimum,
        runs,
        finished,
        holder_of(whole),
        text(annotations, MODE_ANNOTATION),
        is_mirrored(whole),
        proven_notice_of(whole),
        text(annotations, DEADLOCK_ANNOTATION),
        queued,
        owner_kind,
    )


def _stated(document: Any) -> int:
    """By the annotation; 0 without one, and for one that is no number of pods."""
    stated = text(document, "metadata", "annotations", MINIMUM_ANNOTATION)
    number = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 7 else 0
    return number if number <= _MOST_PODS else 0


def _metadata(document: Object) -> Object:
    names = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations")
    return {name: document["metadata"][name] for name in names if name in document["metadata"]}
