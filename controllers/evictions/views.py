"""Jobs, Kueue Workloads and PodGroups, reduced to what shows evictions, recovery and ends."""

from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.holds.hold import QUEUE_LABEL, holder_of
from kopt.cluster.objects.conditions import condition, since_s, turned_s
from kopt.cluster.objects.eviction import proven_notice_of
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.cluster.workloads.traced import TracedWorkload, read_traced_workload
from kopt.cluster.workloads.tracked_pod import controller_ref, ref_of
from kopt.core.scheduling.eviction import Notice, WorkloadRef
from kopt.core.times import seconds


@dataclass(frozen=True)
class TrackedJob:
    """A batch Job. ``pods`` may run at once; ``suspended_at_s``: since when it is, None while it is not."""

    key: Key
    uid: str
    ref: WorkloadRef
    owner: WorkloadRef | None
    pods: int
    gpus: int
    queued: bool
    suspended: bool
    suspended_at_s: float | None
    created_at_s: float
    ending: bool
    finished: bool
    deleting: bool
    holder: str
    notice: Notice | None


@dataclass(frozen=True)
class TrackedWorkload:
    """A Workload of Kueue's with GPUs. ``owner`` is None for a group of pods.

    ``evicted_at_s``: since when it is, None while it is not; ``ran``: it had been admitted when it was evicted.
    """

    key: Key
    uid: str
    ref: WorkloadRef
    owner: WorkloadRef | None
    pods: int
    gpus: int
    admitted_at_s: float | None
    evicted_at_s: float | None
    evicted_reason: str
    evicted_message: str
    preempted_message: str
    ran: bool
    finished: bool
    holder: str
    notice: Notice | None
    traced: TracedWorkload | None = None


@dataclass(frozen=True)
class TrackedPodGroup:
    """A PodGroup of KAI's."""

    key: Key
    ref: WorkloadRef
    owner: WorkloadRef | None
    deleting: bool


def read_job(job: Object) -> TrackedJob | None:
    """None for a Job without GPUs."""
    metadata, spec = job["metadata"], mapping(job, "spec")
    gpus = _template_gpus(spec)
    if not gpus:
        return None
    parallel = count(spec, "parallelism")
    pods = min(
        parallel, max(0, count(spec, "completions", default=parallel) - count(job, "status", "succeeded", default=0))
    )
    return TrackedJob(
        key_of(job),
        metadata["uid"],
        ref_of(job, "batch/v1", "Job"),
        controller_ref(metadata),
        pods,
        gpus * parallel,
        QUEUE_LABEL in mapping(metadata, "labels"),
        at(spec, "suspend") is True,
        since_s(job, "Suspended"),
        seconds(metadata["creationTimestamp"]),
        any(since_s(job, item) is not None for item in ("FailureTarget", "SuccessCriteriaMet")),
        any(since_s(job, item) is not None for item in ("Complete", "Failed")),
        "deletionTimestamp" in metadata,
        holder_of(job),
        proven_notice_of(job),
    )


def read_workload(workload: Object) -> TrackedWorkload | None:
    """None for a Workload without GPUs."""
    metadata = workload["metadata"]
    sets = [(count(item, "count"), _template_gpus(item)) for _, item in items(workload, "spec", "podSets")]
    gpus = sum(pods * each for pods, each in sets)
    if not gpus:
        return None
    evicted, evicted_at_s = condition(workload, "Evicted"), since_s(workload, "Evicted")
    admitted_at_s, turned_at_s = since_s(workload, "Admitted"), turned_s(condition(workload, "Admitted"))
    # Admitted turns false once it has stopped; one that was never admitted has no such condition, or an older one.
    ran = admitted_at_s is not None or (turned_at_s or 0.0) >= (evicted_at_s or 0.0) > 0
    return TrackedWorkload(
        key_of(workload),
        metadata["uid"],
        ref_of(workload, workload.get("apiVersion", ""), "Workload"),
        controller_ref(metadata),
        sum(pods for pods, each in sets if each),
        gpus,
        admitted_at_s,
        evicted_at_s,
        text(evicted, "reason"),
        text(evicted, "message"),
        text(condition(workload, "Preempted"), "message"),
        ran,
        since_s(workload, "Finished") is not None,
        holder_of(workload),
        proven_notice_of(workload),
        read_traced_workload(workload),
    )


def _template_gpus(owner: Any) -> int:
    return gpus_of(mapping(owner, "template", "spec"), mapping(owner, "template", "metadata", "annotations"))


def read_pod_group(group: Object) -> TrackedPodGroup:
    metadata = group["metadata"]
    return TrackedPodGroup(
        key_of(group),
        ref_of(group, group.get("apiVersion", ""), "PodGroup"),
        controller_ref(metadata),
        "deletionTimestamp" in metadata,
    )
