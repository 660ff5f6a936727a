"""Pods with GPUs, reduced to what shows how they run and what ends them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.objects.conditions import condition, since_s
from kopt.cluster.objects.custom.checkpoint import source_of
from kopt.cluster.objects.eviction import proven_notice_of
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.cluster.workloads.traced import TracedPod, read_traced_pod
from kopt.core.scheduling.eviction import LastReport, Notice, System, WorkloadRef
from kopt.core.times import seconds_or_none

# What agents/logtail/annotator.py writes on pods.
_OBSERVED_AT, _LAST_STEP = "kaiwo.ai/checkpoint-observed-at", "kaiwo.ai/last-checkpoint-step"
_LAST_TIME, _RISK = "kaiwo.ai/last-checkpoint-time", "kaiwo.ai/work-at-risk"
_FIRST_STEP = "kaiwo.ai/first-step"
_GROUP_ANNOTATIONS = ("pod-group-name", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_POD_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
_MANAGED_LABEL = "kueue.x-k8s.io/managed"
_SCHEDULERS = {"kai-scheduler": System.KAI, "volcano": System.VOLCANO}


@dataclass(frozen=True)
class Disruption:
    """The condition DisruptionTarget of a pod."""

    reason: str
    message: str
    at_s: float


def pod_group_of(annotations: Mapping[str, Any]) -> str:
    """The name of a pod's PodGroup, KAI's or Volcano's; empty for none."""
    return next((name for key in _GROUP_ANNOTATIONS if (name := text(annotations, key))), "")


def gang_name(metadata: Mapping[str, Any]) -> str:
    """The name of a pod's group, by Kueue's label or as ``pod_group_of``; empty for none."""
    return text(metadata, "labels", _POD_GROUP_LABEL) or pod_group_of(mapping(metadata, "annotations"))


def group_anchor(namespace: str, name: str) -> str:
    return f"group {namespace}/{name}"


@dataclass(frozen=True)
class TrackedPod:
    """A pod with GPUs. ``owner`` controls it, ``group`` is the name of its PodGroup, if any.

    ``started_at_s``: since when all its containers run, None while they do not.
    """

    key: Key
    uid: str
    ref: WorkloadRef
    owner: WorkloadRef | None
    group: str
    kueue_group: str
    system: System
    gpus: int
    ended: bool
    started_at_s: float | None
    deleted_at_s: float | None
    disruption: Disruption | None
    node_lost: bool
    notice: Notice | None
    report: LastReport | None
    traced: TracedPod | None = None

    @property
    def anchor(self) -> str:
        """What its workload is known by, whichever of its objects are known yet."""
        if self.owner is not None:
            return self.owner.uid
        name = self.kueue_group or self.group
        return group_anchor(self.key[0], name) if name else self.uid

    @property
    def lost(self) -> bool:
        return self.disruption is not None or self.deleted_at_s is not None


def read_pod(pod: Object) -> TrackedPod | None:
    """None for a pod without GPUs."""
    spec, metadata = mapping(pod, "spec"), pod["metadata"]
    annotations = mapping(metadata, "annotations")
    gpus = gpus_of(spec, annotations)
    if not gpus:
        return None
    system = (
        System.KUEUE
        if _MANAGED_LABEL in mapping(metadata, "labels")
        else _SCHEDULERS.get(text(spec, "schedulerName"), System.NONE)
    )
    grace_s = int(metadata.get("deletionGracePeriodSeconds") or 0)
    return TrackedPod(
        key_of(pod),
        metadata["uid"],
        ref_of(pod, "v1", "Pod"),
        controller_ref(metadata),
        pod_group_of(annotations),
        text(metadata, "labels", _POD_GROUP_LABEL),
        system,
        gpus,
        text(pod, "status", "phase") in ("Succeeded", "Failed"),
        _running_since(pod),
        _time_s(metadata, "deletionTimestamp", -grace_s),
        _disruption(pod),
        text(pod, "status", "reason") == "NodeLost",
        proven_notice_of(pod),
        _last_report(annotations),
        read_traced_pod(pod),
    )


def ref_of(document: Object, api_version: str, kind: str) -> WorkloadRef:
    # Items of a list carry no kind.
    return WorkloadRef(api_version, kind, document["metadata"]["name"], document["metadata"]["uid"])


def controller_ref(metadata: Mapping[str, Any]) -> WorkloadRef | None:
    owners = [item for _, item in items(metadata, "ownerReferences")]
    # KAI's PodGroups have an owner that is not marked as their controller.
    result = next(
        (owner for owner in owners if at(owner, "controller") is True), owners[0] if len(owners) == 1 else None
    )
    if result is None or (text(result, "kind") == "Pod" and at(result, "controller") is not True):
        return None
    return WorkloadRef(*(text(result, name) for name in ("apiVersion", "kind", "name", "uid")))


def _time_s(document: Any, name: str, plus_s: float = 0.0) -> float | None:
    at_s = seconds_or_none(text(document, name))
    return None if at_s is None else at_s + plus_s


def _running_since(pod: Object) -> float | None:
    if text(pod, "status", "phase") != "Running":
        return None
    starts = [
        _time_s(mapping(item, "state", "running"), "startedAt") for _, item in items(pod, "status", "containerStatuses")
    ]
    return max((start for start in starts if start is not None), default=_time_s(mapping(pod, "status"), "startTime"))


def _disruption(pod: Object) -> Disruption | None:
    at_s, result = since_s(pod, "DisruptionTarget"), condition(pod, "DisruptionTarget")
    return None if at_s is None else Disruption(text(result, "reason"), text(result, "message"), at_s)


def _last_report(annotations: Mapping[str, Any]) -> LastReport | None:
    observed_at_s = _time_s(annotations, _OBSERVED_AT)
    if observed_at_s is None:
        return None
    first, last = (_whole(annotations, name) for name in (_FIRST_STEP, _LAST_STEP))
    risk = _whole(annotations, _RISK)
    return LastReport(
        observed_at_s,
        last,
        _time_s(annotations, _LAST_TIME),
        None if risk is None else float(risk),
        first,
        source_of(annotations),
    )


def _whole(annotations: Mapping[str, Any], name: str) -> int | None:
    result = text(annotations, name)
    return int(result) if result.isascii() and result.isdigit() and len(result) < 16 else None
