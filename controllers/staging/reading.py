"""Kubernetes objects as this controller sees them. What cannot be read is left out."""

from dataclasses import replace
from typing import Any

from kopt.cluster.client.resources import JOBS, PODS, Object, Resource, key_of
from kopt.cluster.holds.hold import HOLDABLE, holder_of, is_parked, next_holders, queue_of
from kopt.cluster.objects.custom.staged_data import request_of
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, slim, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.jobs import is_changeable
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.cluster.workloads.requests.gpus import milli_of
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION
from kopt.controllers.staging.views import (
    GATE,
    HOLDER,
    DownloadJob,
    DownloadPod,
    QueuedWorkload,
    RequestingWorkload,
    StagingNode,
)
from kopt.core.staging.staged_data import Request, StageResult
from kopt.core.times import seconds
from kopt.policies.staging.copies import Run, Verb
from kopt.policies.staging.nodes import Gang
from kopt.policies.staging.pod import (
    ATTEMPT_LABEL,
    CONTAINER,
    DATA_LABEL,
    GENERATION_LABEL,
    LOCATION_ANNOTATION,
    VERB_LABEL,
)

_ENDED = ("Complete", "Failed", "Succeeded", "Finished")
_ENDED_PHASES = ("Succeeded", "Failed")
_EVICTS = "NoExecute"
_LONGEST = 300


def read_workload(document: Object, resource: Resource) -> RequestingWorkload | None:
    """None for a workload that requests no data."""
    request, kind = request_of(document), HOLDABLE[resource]
    if not request:
        return None
    value = at(document, *kind.path, kind.field)
    runs, queued = value is None or value == kind.runs, bool(queue_of(document))
    workload = _asking(document, resource, request, queued=kind.queued and queued, runs=runs)
    stopped = not runs and not workload.holder and not queued
    changeable = resource != JOBS or is_changeable(document)
    return replace(workload, ran=_ran(document), stopped=stopped, finished=_finished(document), changeable=changeable)


def read_requesting_pod(document: Object) -> RequestingWorkload | None:
    """A pod that requests data itself; None for one that no longer does."""
    request = request_of(document)
    if not request:
        return None
    gated = any(text(item, "name") == GATE for _, item in items(document, "spec", "schedulingGates"))
    ended = text(document, "status", "phase") in _ENDED_PHASES or at(document, "metadata", "deletionTimestamp")
    workload = _asking(document, PODS, request, queued=bool(queue_of(document)), runs=not gated)
    return replace(workload, ran=bool(text(document, "spec", "nodeName")), finished=bool(ended))


def _asking(document: Object, resource: Resource, request: Request, *, queued: bool, runs: bool) -> RequestingWorkload:
    """What is read in the same way from every kind."""
    metadata, annotations = slim(document)["metadata"], mapping(document, "metadata", "annotations")
    pod_sets = BY_KEY[resource.group, resource.kind].pod_sets(document)
    return RequestingWorkload(
        document,
        metadata["resourceVersion"],
        resource,
        key_of(document),
        metadata["uid"],
        request,
        holder_of(document),
        HOLDER in next_holders(document),
        queued,
        runs,
        ran=False,
        stopped=False,
        finished=False,
        opted_out=annotations.get(OPT_OUT_ANNOTATION) == "true",
        mode=text(annotations, MODE_ANNOTATION),
        parked=is_parked(document),
        changeable=True,
        gangs=tuple(Gang(pod_set.pods, int(pod_set.gpus)) for pod_set in pod_sets if pod_set.pods and pod_set.gpus),
    )


def read_queued_workload(document: Object) -> QueuedWorkload:
    metadata = document["metadata"]
    slim = {
        "metadata": {key: value for key, value in metadata.items() if key != "managedFields"},
        "spec": {"active": at(document, "spec", "active")},
    }
    owner = next((text(item, "uid") for _, item in items(document, "metadata", "ownerReferences")), "")
    quota = has_condition(document, "QuotaReserved")
    active = at(document, "spec", "active") is not False
    return QueuedWorkload(
        slim, metadata["resourceVersion"], key_of(document), owner, holder_of(document), active, quota
    )


def _ran(document: Object) -> bool:
    """Whether a pod of it was ready or has ended, as far as the object itself shows."""
    status = mapping(document, "status")
    names = ("ready", "succeeded", "failed", "readyReplicas", "readyWorkerReplicas")
    return any(count(status, name, default=0) for name in names)


def _finished(document: Object) -> bool:
    ended = has_condition(document, *_ENDED)
    deploy = text(document, "status", "jobDeploymentStatus")
    return ended or deploy in ("Complete", "Failed") or at(document, "metadata", "deletionTimestamp") is not None


def read_node(document: Object) -> StagingNode:
    name, labels = text(document, "metadata", "name"), mapping(document, "metadata", "labels")
    ready = has_condition(document, "Ready")
    evicting = any(text(item, "effect") == _EVICTS for _, item in items(document, "spec", "taints"))
    cordoned = at(document, "spec", "unschedulable") is True
    gpus = sum(milli_of(str(key), amount) for key, amount in items(document, "status", "allocatable"))
    kept = tuple(sorted((str(key), str(value)) for key, value in labels.items()))
    machine = "/".join([text(document, "metadata", "uid"), text(document, "status", "nodeInfo", "machineID")])
    return StagingNode(
        name,
        text(labels, "kubernetes.io/hostname") or name,
        kept,
        gpus,
        ready and not evicting and not cordoned,
        machine,
    )


def read_job(document: Object) -> DownloadJob:
    """Raises KeyError or ValueError for a Job that is none of ours."""
    metadata = slim(document)["metadata"]
    labels, annotations = metadata["labels"], metadata.get("annotations") or {}
    ended, ok, ended_at_s = False, False, 0.0
    for _, item in items(document, "status", "conditions"):
        if text(item, "type") in ("Complete", "Failed") and text(item, "status") == "True":
            ended, ok = True, text(item, "type") == "Complete"
            ended_at_s = seconds(text(item, "lastTransitionTime"))
    suspended = "its Job waits in a queue" if at(document, "spec", "suspend") is True else ""
    run = Run(
        str(annotations.get(LOCATION_ANNOTATION, "")),
        Verb(labels[VERB_LABEL]),
        int(labels[ATTEMPT_LABEL]),
        int(labels[GENERATION_LABEL]),
        ended,
        ok,
        ended_at_s=ended_at_s,
        pending_reason=suspended,
        ending="deletionTimestamp" in metadata,
    )
    return DownloadJob(
        document, metadata["resourceVersion"], key_of(document), metadata["uid"], labels[DATA_LABEL], run
    )


def read_pod(document: Object) -> DownloadPod:
    metadata = document["metadata"]
    owner = next((text(item, "uid") for _, item in items(document, "metadata", "ownerReferences")), "")
    phase = text(document, "status", "phase")
    state: Any = next(
        (
            mapping(item, "state")
            for _, item in items(document, "status", "containerStatuses")
            if text(item, "name") == CONTAINER
        ),
        {},
    )
    ended = mapping(state, "terminated")
    finished, started = text(ended, "finishedAt"), text(state, "running", "startedAt")
    deleted_at = text(metadata, "deletionTimestamp")
    return DownloadPod(
        key_of(document),
        metadata["uid"],
        owner,
        bool(mapping(state, "running")),
        phase in ("Succeeded", "Failed"),
        "" if phase != "Pending" else _pending_reason(document, state),
        StageResult.from_json(text(ended, "message")),
        seconds(finished) if finished else 0.0,
        seconds(started) if started else 0.0,
        text(document, "spec", "nodeName"),
        _scheduled_s(document),
        _died(document, ended),
        seconds(deleted_at) if deleted_at else None,
    )


def _died(document: Object, ended: Any) -> str:
    """Why it ended, where that was not its own doing: the system's message."""
    if text(ended, "reason") == "OOMKilled":
        return "its pod was killed for lack of memory: raise staging.download.memoryLimit, or pack the objects"
    cause = " ".join(name for name in (text(document, "status", "reason"), text(document, "status", "message")) if name)
    return f"its pod was ended: {cause}"[:_LONGEST] if cause else ""


def _scheduled_s(document: Object) -> float | None:
    for _, item in items(document, "status", "conditions"):
        if text(item, "type") == "PodScheduled" and text(item, "status") == "True":
            at_ = text(item, "lastTransitionTime")
            return seconds(at_) if at_ else None
    return None


def _pending_reason(document: Object, state: Any) -> str:
    """Why a pod does not run: the scheduler's message, or the kubelet's."""
    for _, item in items(document, "status", "conditions"):
        if text(item, "type") == "PodScheduled" and text(item, "status") == "False":
            return f"its pod waits: {text(item, 'message')}"[:_LONGEST]
    reason, message = text(state, "waiting", "reason"), text(state, "waiting", "message")
    cause = " ".join(name for name in (reason, message) if name)
    return f"its pod waits: {cause}"[:_LONGEST] if cause and (reason != "ContainerCreating" or message) else ""
