"""``Eviction`` objects as core types, and the notices of our own evictions."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from kopt.cluster.client.resources import COMPONENT_LABEL, PART_OF, PART_OF_LABEL, Object
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.seals import SEAL
from kopt.core.scheduling.eviction import Cause, Entry, Eviction, Notice, Phase, Return, System, Verified, WorkloadRef
from kopt.core.times import optional_stamp, seconds, stamp
from kopt.core.untrusted import word
from kopt.core.workload.checkpoint import Source

N = TypeVar("N", int, float)
EVICTING_ANNOTATION = "kaiwo.ai/evicting"
"""JSON of a Notice, on what one of our own evicts: a Kueue Workload, or the Job or the pods where there is none."""
WORKLOAD_LABEL = "kaiwo.ai/evicted-uid"
_LONGEST = 1024
_LONGEST_WHO = 253


def name_of(workload: WorkloadRef, system: System, at_s: float) -> str:
    """One name per eviction, whichever replica writes it: ``at_s`` is the time of the eviction itself."""
    text = f"{workload.uid}/{system}/{at_s:.0f}"
    return f"{workload.name[:180].rstrip('.-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}".lower()


def notice_of(document: Object) -> Notice | None:
    """The notice in an annotation, whoever wrote it; None without a readable one."""
    result = mapping_of(document["metadata"].get("annotations") or {}, EVICTING_ANNOTATION)
    try:
        return Notice.from_dict(result, seconds(str(result["at"])))
    except (ValueError, KeyError):
        return None


def proven_notice_of(document: Object) -> Notice | None:
    """The same if one of our components wrote it and it is unchanged since (``cluster.objects.seals``)."""
    metadata = document["metadata"]
    text = (metadata.get("annotations") or {}).get(EVICTING_ANNOTATION)
    return None if SEAL.opened(EVICTING_ANNOTATION, metadata.get("uid", ""), text) is None else notice_of(document)


def notice_text(notice: Notice, uid: str = "") -> str:
    """The value of the annotation on the object ``uid``; without a uid one that only people read."""
    result = {
        "by": notice.by,
        "cause": notice.cause.value,
        "for": notice.for_whom,
        "at": stamp(notice.at_s),
        "reason": notice.reason,
    }
    return SEAL.sealed(EVICTING_ANNOTATION, uid, result)


def entry_of(document: Object) -> Entry:
    """Raises ValueError for an object that cannot be read."""
    metadata = document["metadata"]
    try:
        spec, status = document["spec"], document.get("status") or {}
        ref = spec["workload"]
        ref_fields = [word(ref, name) for name in ("apiVersion", "kind", "name", "uid")]
        workload = WorkloadRef(*ref_fields)
        eviction = Eviction(
            metadata["namespace"],
            metadata["name"],
            workload,
            System(spec["system"]),
            seconds(spec["evictedAt"]),
            Cause(spec["cause"]),
            str(spec.get("by", "")),
            str(spec.get("for", "")),
            str(spec.get("reason", "")),
            int(spec["gpus"]),
            int(spec["order"]),
            _optional(int, spec.get("lastDurableStep")),
            _seconds(spec.get("lastDurableAt")),
            _optional(float, spec.get("lostGpuSeconds")),
            Source(spec["checkpointSource"]) if spec.get("checkpointSource") else None,
        )
        verified = status.get("verified")
        outcome = Return(
            Phase(status.get("phase") or Phase.WAITING),
            _seconds(status.get("resumedAt")),
            _optional(int, status.get("resumedStep")),
            Verified(verified) if verified else None,
            str(status.get("message", "")),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"Eviction {metadata.get('name')} cannot be read ({error!r})") from error
    return Entry(eviction, outcome)


def body_of(eviction: Eviction) -> Object:
    """The object as it is created."""
    workload_ref = eviction.workload
    spec: dict[str, Any] = {
        "workload": {
            "apiVersion": workload_ref.api_version,
            "kind": workload_ref.kind,
            "name": workload_ref.name,
            "uid": workload_ref.uid,
        },
        "system": eviction.system.value,
        "evictedAt": stamp(eviction.evicted_at_s),
        "cause": eviction.cause.value,
        "by": eviction.by[:_LONGEST_WHO],
        "for": eviction.for_whom[: 2 * _LONGEST_WHO],
        "reason": eviction.reason[:_LONGEST],
        "gpus": eviction.gpus,
        "order": eviction.order,
        "lastDurableStep": eviction.last_durable_step,
        "lastDurableAt": optional_stamp(eviction.last_durable_at_s),
        "lostGpuSeconds": None if eviction.lost_gpu_s is None else round(eviction.lost_gpu_s, 1),
        "checkpointSource": eviction.source and eviction.source.value,
    }
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: "ledger", WORKLOAD_LABEL: workload_ref.uid[:63]}
    return {
        "metadata": {"name": eviction.name, "namespace": eviction.namespace, "labels": labels},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def status_of(outcome: Return) -> Object:
    """The ``status`` of the object."""
    result = {
        "phase": outcome.phase.value,
        "resumedAt": optional_stamp(outcome.resumed_at_s),
        "resumedStep": outcome.resumed_step,
        "verified": outcome.verified and outcome.verified.value,
        "message": outcome.message[:_LONGEST] or None,
    }
    return {key: value for key, value in result.items() if value is not None}


def _optional(kind: Callable[[Any], N], value: Any) -> N | None:
    return None if value is None else kind(value)


def _seconds(text: str | None) -> float | None:
    return seconds(text) if text else None
