"""Patches of Workloads: shields, notices to victims, decisions. Every mark contains how to undo it."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import HELD_LABEL, UNDO_ANNOTATION, hold_metadata
from kopt.cluster.objects.fields import at
from kopt.cluster.objects.seals import SEAL
from kopt.cluster.workloads.kueue.objects import DECISION_ANNOTATION, EVICTING_ANNOTATION, HOLDER, MINE, KueueWorkload
from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION, SaveRequest
from kopt.policies.preemption import PreemptionDecision

_LONGEST = 900


def shielded(workload: KueueWorkload, preemptor: KueueWorkload, until_s: float) -> Object:
    """The patch that raises a running Workload's priority above the preemptor's, so that Kueue cannot preempt it."""
    before = (
        workload.shield.priority
        if workload.shield and workload.shield.stands
        else at(workload.document, "spec", "priority")
    )
    raised = preemptor.priority + 1
    undo = {"priority": before, "raised": raised, "for": preemptor.uid, "until": stamp(until_s)}
    return {"metadata": hold_metadata(HOLDER, undo), "spec": {"priority": raised}}


def held(undo: Mapping[str, Any], uid: str = "", document: Mapping[str, Any] | None = None) -> Object:
    """The patch that takes a pending Workload out of its queue for a while."""
    metadata = hold_metadata(HOLDER, undo)
    if document is not None:
        metadata["annotations"][DECISION_ANNOTATION] = SEAL.sealed(DECISION_ANNOTATION, uid, document)
    return {"metadata": metadata, "spec": {"active": False}}


def hold_operations(document: Object, since_s: float | None = None, *, again: bool = False) -> list[Object]:
    """The JSON patch that holds a Workload on creation, or from ``since_s`` on: its budget counts from then.

    An earlier decision about it is removed, unless it is held ``again``.
    """
    metadata = document.get("metadata") or {}
    decided = not again and DECISION_ANNOTATION in (metadata.get("annotations") or {})
    made = hold_metadata(HOLDER, {"active": True} | ({} if since_s is None else {"since": stamp(since_s)}))
    operations: list[Object] = []
    for section in ("labels", "annotations"):
        operations += [] if metadata.get(section) else [{"op": "add", "path": f"/metadata/{section}", "value": {}}]
        operations += [
            {"op": "add", "path": f"/metadata/{section}/{_escaped(name)}", "value": value}
            for name, value in made[section].items()
        ]
    if decided:
        operations.append({"op": "remove", "path": f"/metadata/annotations/{_escaped(DECISION_ANNOTATION)}"})
    return [*operations, {"op": "add", "path": "/spec/active", "value": False}]


def released(uid: str, outcome: Mapping[str, Any]) -> Object:
    """The patch that returns the held Workload ``uid`` to its queue, with the decision."""
    decision = SEAL.sealed(DECISION_ANNOTATION, uid, outcome)
    return {
        "metadata": {
            "labels": {HELD_LABEL: None},
            "annotations": {UNDO_ANNOTATION: None, DECISION_ANNOTATION: decision},
        },
        "spec": {"active": True},
    }


def advised(uid: str, document: Mapping[str, Any]) -> Object:
    """The patch that only records the decision on the object ``uid``."""
    return {"metadata": {"annotations": {DECISION_ANNOTATION: SEAL.sealed(DECISION_ANNOTATION, uid, document)}}}


def eviction_notice(uid: str, preemptor: str, at_s: float, reason: str, more: Mapping[str, Any]) -> Object:
    """The patch with a notice for the victim ``uid`` and the evictions controller of why it is evicted."""
    notice: dict[str, Any] = {
        "by": MINE,
        "cause": "Preempted",
        "for": preemptor,
        "at": stamp(at_s),
        "reason": reason[:_LONGEST],
        **more,
    }
    return {"metadata": {"annotations": {EVICTING_ANNOTATION: SEAL.sealed(EVICTING_ANNOTATION, uid, notice)}}}


def save_request(uid: str, request: SaveRequest) -> Object:
    """The patch that asks the program of the pod ``uid`` to save."""
    text = SEAL.sealed(REQUEST_ANNOTATION, uid, request.to_document())
    return {"metadata": {"annotations": {REQUEST_ANNOTATION: text}}}


def no_eviction_notice() -> Object:
    return {"metadata": {"annotations": {EVICTING_ANNOTATION: None}}}


def decision_document(
    decision: PreemptionDecision, at_s: float, until_s: float, models: Iterable[str]
) -> dict[str, Any]:
    """The decision on the preemptor: the action, the victims, the reason, and the models."""
    reason = decision.reasons[0]
    result: dict[str, Any] = {
        "verdict": decision.action.value,
        "at": stamp(at_s),
        "code": reason.code,
        "reason": reason.message[:_LONGEST],
        "victims": list(decision.victims),
        "models": sorted(set(models)),
    }
    if decision.lost_gpu_s is not None:
        result["lostGpuSeconds"] = round(decision.lost_gpu_s)
    return result | ({"until": stamp(until_s)} if until_s else {})


def outcome_document(action: str, at_s: float, code: str, reason: str, until_s: float = 0.0) -> dict[str, Any]:
    result = {"verdict": action, "at": stamp(at_s), "code": code, "reason": reason[:_LONGEST]}
    return result | ({"until": stamp(until_s)} if until_s else {})


def stamp(at_s: float) -> str:
    """Unix seconds as RFC 3339 with milliseconds: shields need more than a second's resolution."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
