"""Pods and Kueue's Workloads that carry a trace context, reduced to when each phase of their life began and ended.

Kubernetes writes these times in whole seconds, rounded down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.conditions import condition, since_s, turned_s
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.cluster.runtime.tracing import TraceContext, context_of, job_context_of
from kopt.core.times import seconds_or_none


@dataclass(frozen=True)
class TracedPod:
    """Unix seconds, None for what has not happened. ``started_s``: all its containers had started, for the first time
    that its status still shows; ``restarted``: since then one has started again. ``failed``: why it ended badly, or was
    evicted; empty for neither."""

    context: TraceContext
    namespace: str
    name: str
    node: str
    created_s: float
    bound_s: float | None
    started_s: float | None
    ready_s: float | None
    ended_s: float | None
    deleted_s: float | None
    failed: str
    restarted: bool = False


@dataclass(frozen=True)
class TracedWorkload:
    """Unix seconds, None for what is not so now. ``was_evicted``: ever; ``checked``: it has admission checks."""

    context: TraceContext
    namespace: str
    name: str
    created_s: float
    reserved_s: float | None
    admitted_s: float | None
    evicted_s: float | None
    finished_s: float | None
    deleted_s: float | None
    was_evicted: bool
    checked: bool
    queue: str
    failed: str


def read_traced_pod(pod: Object) -> TracedPod | None:
    """None for a pod that is not traced."""
    context = context_of(pod)
    if context is None:
        return None
    metadata, status = mapping(pod, "metadata"), mapping(pod, "status")
    containers = [item for _, item in items(status, "containerStatuses")]
    wanted = sum(1 for _ in items(pod, "spec", "containers"))
    began = [at_s for item in containers if (at_s := _began_s(item)) is not None]
    ends = [seconds_or_none(text(item, "state", "terminated", "finishedAt")) for item in containers]
    disruption = condition(pod, "DisruptionTarget")
    disrupted_s, phase = since_s(pod, "DisruptionTarget"), text(status, "phase")
    failed = text(status, "reason") or "Failed" if phase == "Failed" else ""
    if disrupted_s is not None:
        failed = text(disruption, "reason") or "DisruptionTarget"
    ended_s = max((end for end in ends if end is not None), default=disrupted_s or _written_s(pod))
    grace_s = metadata.get("deletionGracePeriodSeconds")
    deleted_s = seconds_or_none(metadata.get("deletionTimestamp"))
    return TracedPod(
        context,
        text(metadata, "namespace"),
        text(metadata, "name"),
        text(pod, "spec", "nodeName"),
        seconds_or_none(metadata.get("creationTimestamp")) or 0.0,
        since_s(pod, "PodScheduled"),
        max(began) if began and len(began) >= wanted else None,
        since_s(pod, "Ready"),
        ended_s if phase in ("Succeeded", "Failed") else None,
        None if deleted_s is None else deleted_s - (grace_s if isinstance(grace_s, int) else 0),
        failed,
        any(count(item, "restartCount", default=0) > 0 for item in containers),
    )


def read_traced_workload(workload: Object) -> TracedWorkload | None:
    """None for a Workload whose Job is not traced."""
    context = next(
        (
            carried
            for _, item in items(workload, "spec", "podSets")
            if (carried := job_context_of(mapping(item, "template", "metadata"))) is not None and carried.sampled
        ),
        None,
    )
    if context is None:
        return None
    metadata, finished = mapping(workload, "metadata"), condition(workload, "Finished")
    return TracedWorkload(
        context,
        text(metadata, "namespace"),
        text(metadata, "name"),
        seconds_or_none(metadata.get("creationTimestamp")) or 0.0,
        since_s(workload, "QuotaReserved"),
        since_s(workload, "Admitted"),
        since_s(workload, "Evicted"),
        since_s(workload, "Finished"),
        seconds_or_none(metadata.get("deletionTimestamp")),
        turned_s(condition(workload, "Evicted")) is not None,
        next(items(workload, "status", "admissionChecks"), None) is not None,
        text(workload, "spec", "queueName"),
        _why_it_ended(condition(workload, "Evicted"), finished),
    )


def _why_it_ended(evicted: Mapping[str, Any], finished: Mapping[str, Any]) -> str:
    """Why a Workload lost its quota, or its Job failed; empty where it succeeded, or has not ended."""
    if text(evicted, "status") == "True":
        return f"evicted: {text(evicted, 'reason')}"
    reason = text(finished, "reason") if text(finished, "status") == "True" else ""
    return "" if reason in ("", "Succeeded", "JobFinished") else reason


def _began_s(container: Mapping[str, Any]) -> float | None:
    """The earliest start in a container's status, which keeps its present and its last run."""
    starts = [
        seconds_or_none(text(container, state, kind, "startedAt"))
        for state in ("lastState", "state")
        for kind in ("running", "terminated")
    ]
    return min((at_s for at_s in starts if at_s is not None), default=None)


def _written_s(pod: Object) -> float | None:
    """When its status last changed, for an end that no container has reported."""
    turned = [seconds_or_none(text(item, "lastTransitionTime")) for _, item in items(pod, "status", "conditions")]
    return max((at_s for at_s in turned if at_s is not None), default=None)
