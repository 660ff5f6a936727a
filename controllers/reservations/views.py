"""What is kept of the objects that matter. Nothing that anybody may have written makes a reader raise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.resources import KUEUE_WORKLOADS, Key, Object, key_of
from kopt.cluster.holds.checkpoint_request import saving_by
from kopt.cluster.objects.custom.reservation import KIND, RESERVATION_LABEL, account_of, reservation_of
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.kueue.objects import GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.reading import amount, read_gpu_pod, read_kueue_workload, requests_of
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.controllers.reservations.pod_engines import POD_ENGINES
from kopt.core.scheduling.queue_tree import Engine
from kopt.core.scheduling.reservation import Account, Reservation
from kopt.core.switches import Owner
from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint_request import ASKABLE_ANNOTATION, PodSaving

HOLDER = "reservations"
"""The value of kaiwo.ai/held on Workloads that we keep from starting, or have stopped."""
MINE = "kopt-reservations"


@dataclass(frozen=True)
class Reserved:
    """A KaiwoReservation; ``spec`` is None where it cannot be meant, and ``error`` says why."""

    document: Object = field(compare=False, repr=False)
    key: Key
    uid: str
    version: str
    spec: Reservation | None
    error: str
    account: Account | None
    mode: str

    @property
    def name(self) -> str:
        return "/".join(self.key)

    @property
    def job_prefix(self) -> str:
        """How the names of the Jobs begin that hold its GPUs."""
        return f"{self.key[1][:30].rstrip('.-').replace('.', '-')}-{self.uid[:8]}-"


def read_reserved(document: Object) -> Reserved:
    error, spec = "", None
    try:
        spec = reservation_of(document)
    except (ValueError, OverflowError) as problem:
        error = str(problem)
    metadata = document["metadata"]
    metadata.pop("managedFields", None)
    return Reserved(
        document,
        key_of(document),
        text(metadata, "uid"),
        text(metadata, "resourceVersion"),
        spec,
        error,
        account_of(document),
        text(metadata, "annotations", MODE_ANNOTATION),
    )


@dataclass(frozen=True)
class ObservedWorkload:
    """A Workload of Kueue's with GPUs. ``longest_s``: Kueue ends it then. ``is_askable``: its pods answer requests to
    save."""

    workload: KueueWorkload
    document: Object = field(compare=False, repr=False)
    longest_s: float | None
    is_askable: bool
    whose: Owner
    owner_name: str = ""

    @property
    def key(self) -> Key:
        return self.workload.key

    @property
    def queue(self) -> str:
        """The LocalQueue with its namespace."""
        return f"{self.workload.key[0]}/{self.workload.queue}"


def read_workload(document: Object) -> ObservedWorkload | None:
    workload = read_kueue_workload(document)
    if workload.finished or not workload.gpu_resource:
        return None
    longest = at(document, "spec", "maximumExecutionTimeSeconds")
    used = count(document, "status", "accumulatedPastExecutionTimeSeconds", default=0)
    templates = [mapping(pods, "template") for _, pods in items(document, "spec", "podSets")]
    askable = [text(template, "metadata", "annotations", ASKABLE_ANNOTATION) == "true" for template in templates]
    return ObservedWorkload(
        workload,
        document,
        max(0.0, float(longest - used)) if isinstance(longest, int) and not isinstance(longest, bool) else None,
        bool(askable) and all(askable),
        owner_of(document, KUEUE_WORKLOADS.plural),
        next((text(item, "name") for _, item in items(document, "metadata", "ownerReferences")), ""),
    )


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs that has not ended."""

    gpu_pod: GpuPod
    node: str
    amounts: Mapping[str, int]
    reservation: str
    """The name on our own Jobs' pods."""
    is_running: bool
    saving: PodSaving
    queues: Mapping[Engine, str]
    """By engine without Workloads: the queue that it names."""
    document: Object = field(compare=False, repr=False)

    @property
    def key(self) -> Key:
        return self.gpu_pod.key


def read_pod(pod: Object) -> ObservedPod | None:
    gpu_pod = read_gpu_pod(pod)
    if gpu_pod is None or not (gpu_pod.gpus or gpu_pod.shares):
        return None
    metadata = pod["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "annotations")
    return ObservedPod(
        gpu_pod,
        text(pod, "spec", "nodeName"),
        _gpus(pod),
        text(metadata, "labels", RESERVATION_LABEL),
        text(pod, "status", "phase") == "Running",
        saving_by(gpu_pod.annotations),
        {engine: name for engine, each in POD_ENGINES.items() if (name := each.queue_of(metadata))},
        {"metadata": {name: metadata[name] for name in names if name in metadata}},
    )


def _gpus(pod: Object) -> dict[str, int]:
    return {name: value for name, value in requests_of(mapping(pod, "spec")).items() if is_gpu(name)}


@dataclass(frozen=True)
class ObservedNode:
    """A node that takes pods; amounts are thousandths."""

    name: str
    amounts: Mapping[str, int]
    labels: Mapping[str, str]


def read_node(node: Object) -> ObservedNode | None:
    if not has_condition(node, "Ready") or at(node, "spec", "unschedulable") is True:
        return None
    amounts = {str(name): amount(value) for name, value in mapping(node, "status", "allocatable").items()}
    labels = {str(name): str(value) for name, value in mapping(node, "metadata", "labels").items()}
    return ObservedNode(text(node, "metadata", "name"), amounts, labels)


@dataclass(frozen=True)
class HoldJob:
    """A Job of ours that holds ``gpus`` milli-GPU. ``is_over``: it has ended, or is being deleted."""

    document: Object = field(compare=False, repr=False)
    key: Key
    uid: str
    owner_uid: str
    start_s: float | None
    gpus: int
    is_over: bool


START_ANNOTATION = "kaiwo.ai/reservation-start"


def read_hold_job(job: Object) -> HoldJob:
    metadata = job["metadata"]
    owner: Mapping[str, Any] = next(
        (item for _, item in items(metadata, "ownerReferences") if text(item, "kind") == KIND), {}
    )
    gpus = sum(_gpus({"spec": at(job, "spec", "template", "spec")}).values())
    over = has_condition(job, "Complete", "Failed")
    names = ("name", "namespace", "uid", "resourceVersion", "annotations")
    return HoldJob(
        {"metadata": {name: metadata[name] for name in names if name in metadata}},
        key_of(job),
        text(metadata, "uid"),
        text(owner, "uid"),
        seconds_or_none(text(metadata, "annotations", START_ANNOTATION)),
        gpus,
        over or bool(text(metadata, "deletionTimestamp")),
    )
