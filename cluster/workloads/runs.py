"""Runs, as Workloads of Kueue's and batch Jobs show them. Nothing that anybody may have written makes this raise."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.conditions import condition, since_s, turned_s
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.cluster.workloads.requests.gpus import gpus_of, milli_of
from kopt.core.times import seconds_or_none
from kopt.core.workload.run_time import MAX_GPUS, JobKind, JobRun

JOB_TYPE_LABEL = "kaiwo.ai/job-type"
_KUEUE_QUEUE, _KAI_QUEUES = "kueue.x-k8s.io/queue-name", ("kai.scheduler/queue", "runai/queue")
_SUFFIX = re.compile(r"(?:[-_.](?=[a-z0-9]*\d)[a-z0-9]+)+$")
"""What tells objects of one type apart at the end of their names: numbers, dates, hashes with a digit."""
_MILLI = 1000


def run_of_workload(workload: Object) -> JobRun | None:
    """The current or last run of a Workload, by its admission; None for one without GPUs, and for one that waits."""
    admitted_s = since_s(workload, "Admitted")
    if admitted_s is None:
        # It lost its admission: the condition says when it turned false, not when it had turned true.
        return None
    ended_s, interrupted, started_s = since_s(workload, "Finished"), False, admitted_s
    ready_s = since_s(workload, "PodsReady")
    if ready_s is not None and ready_s >= admitted_s and (ended_s is None or ready_s <= ended_s):
        started_s = ready_s
    evicted_s = since_s(workload, "Evicted")
    if ended_s is None and evicted_s is not None and evicted_s >= admitted_s:
        ended_s, interrupted = evicted_s, True
    kind = kind_of_workload(workload, text(workload, "status", "admission", "clusterQueue"))
    run = _run(f"{text(workload, 'metadata', 'uid')}/{admitted_s:.0f}", kind, started_s, ended_s, interrupted)
    return run and replace(run, submitted_s=_queued_since_s(workload, admitted_s), pool=_flavor(workload))


def _queued_since_s(workload: Object, admitted_s: float) -> float | None:
    """Since when it had waited as it was admitted; None for one that was evicted before, where nothing says when it was
    queued again."""
    requeued_s = turned_s(condition(workload, "Requeued"))
    if requeued_s is not None and requeued_s <= admitted_s:
        return requeued_s
    evicted_s = turned_s(condition(workload, "Evicted"))
    was_evicted = evicted_s is not None and evicted_s <= admitted_s
    created_s = seconds_or_none(text(workload, "metadata", "creationTimestamp"))
    return None if was_evicted or created_s is None or created_s > admitted_s else created_s


def _flavor(workload: Object) -> str:
    """The ResourceFlavor that gave it GPUs; of several the first by the name of the resource."""
    assigned = [mapping(item, "flavors") for _, item in items(workload, "status", "admission", "podSetAssignments")]
    flavors = [item for each in assigned for item in each.items() if isinstance(item[1], str) and milli_of(item[0], 1)]
    return min(flavors)[1] if flavors else ""


def kind_of_workload(workload: Object, queue: str) -> JobKind | None:
    """What is known of a Workload before it starts; ``queue`` is its ClusterQueue. None for one without GPUs."""
    metadata = mapping(workload, "metadata")
    gpus = sum(
        count(item, "count") * gpus_of(mapping(item, "template", "spec"), {})
        for _, item in items(workload, "spec", "podSets")
    )
    owner: Any = next((item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), {})
    return _kind(
        queue or text(workload, "spec", "queueName"),
        gpus,
        text(metadata, "labels", JOB_TYPE_LABEL) or job_type(text(owner, "name") or text(metadata, "name")),
        text(metadata, "namespace"),
    )


def kind_of_pods(pods: Sequence[Object], name: str) -> JobKind | None:
    """The same of the pods of one workload ``name`` that no queueing system but KAI manages."""
    first = pods[0] if pods else {}
    labels = mapping(first, "metadata", "labels")
    namespace = text(first, "metadata", "namespace")
    return _kind(
        next((queue for key in _KAI_QUEUES if (queue := text(labels, key))), "") or namespace,
        sum(int(gpus_of(mapping(pod, "spec"), mapping(pod, "metadata", "annotations"))) for pod in pods),
        text(labels, JOB_TYPE_LABEL) or job_type(name),
        namespace,
    )


def run_of_job(job: Object) -> JobRun | None:
    """The run of a batch Job; None for one without GPUs, one that has not started, and those that have a Workload."""
    metadata, status = mapping(job, "metadata"), mapping(job, "status")
    labels = mapping(metadata, "labels")
    is_owned = any(at(item, "controller") is True for _, item in items(metadata, "ownerReferences"))
    if is_owned or text(labels, _KUEUE_QUEUE):
        return None
    template = mapping(job, "spec", "template")
    each = gpus_of(mapping(template, "spec"), mapping(template, "metadata", "annotations"))
    started_s = seconds_or_none(text(status, "startTime"))
    if started_s is None or not each:
        return None
    ended_s = seconds_or_none(text(status, "completionTime")) or since_s(job, "Failed")
    suspended_s = since_s(job, "Suspended")
    interrupted = ended_s is None and suspended_s is not None and suspended_s >= started_s
    pod_labels = mapping(template, "metadata", "labels")
    queue = next((name for key in _KAI_QUEUES for of in (labels, pod_labels) if (name := text(of, key))), "")
    kind = _kind(
        queue or text(metadata, "namespace"),
        each * count(job, "spec", "parallelism", default=1),
        text(labels, JOB_TYPE_LABEL) or job_type(text(metadata, "generateName") or text(metadata, "name")),
        text(metadata, "namespace"),
    )
    last_s = suspended_s if interrupted else ended_s
    run = _run(f"{text(metadata, 'uid')}/{started_s:.0f}", kind, started_s, last_s, interrupted)
    created_s = seconds_or_none(text(metadata, "creationTimestamp"))
    # One that was suspended before has waited since nobody says when.
    is_recorded = created_s is not None and created_s <= started_s and not condition(job, "Suspended")
    return replace(run, submitted_s=created_s) if run is not None and is_recorded else run


def has_pods(job: Object) -> bool:
    """Whether pods of a Job have begun; its ``startTime`` is when they were made, which may be long before."""
    return any(count(job, "status", what, default=0) for what in ("ready", "succeeded", "failed"))


def job_type(name: str) -> str:
    """A name without what tells its runs apart: ``finetune-llama-20260101-x7k2p`` is a ``finetune-llama``."""
    return _SUFFIX.sub("", name.rstrip("-_.")) or name


def _kind(queue: str, gpus_milli: int, name: str, namespace: str) -> JobKind | None:
    """Fractions of a GPU count as one."""
    gpus = -(-gpus_milli // _MILLI)
    return JobKind(queue, gpus, name, namespace) if 0 < gpus <= MAX_GPUS else None


def _run(
    job: str, kind: JobKind | None, started_s: float | None, ended_s: float | None, interrupted: bool
) -> JobRun | None:
    """None where the times contradict each other."""
    if kind is None or started_s is None or (ended_s is not None and ended_s < started_s):
        return None
    return JobRun(job, kind, started_s, ended_s, interrupted)
