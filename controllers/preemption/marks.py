"""What is written onto Workloads: covers, notices to victims, decisions. Every mark says how it is taken back."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kopt.cluster.held import HELD_LABEL, UNDO_ANNOTATION, marks
from kopt.cluster.resources import Object
from kopt.controllers.preemption.views import DECISION_ANNOTATION, EVICTING_ANNOTATION, HOLDER, MINE, WorkloadView
from kopt.controllers.webhook.objects import at
from kopt.core.saving import REQUEST_ANNOTATION, SaveRequest
from kopt.policies.preemption import PreemptionDecision

_LONGEST = 900


def covered(view: WorkloadView, waiting: WorkloadView, until_s: float) -> Object:
    """The patch that lifts a running Workload above one that waits; Kueue cannot choose it then."""
    before = view.cover.priority if view.cover and view.cover.stands else at(view.document, "spec", "priority")
    raised = waiting.priority + 1
    undo = {"priority": before, "raised": raised, "for": waiting.uid, "until": stamp(until_s)}
    return {"metadata": marks(HOLDER, undo), "spec": {"priority": raised}}


def held(undo: Mapping[str, Any], verdict: Mapping[str, Any] | None = None) -> Object:
    """The patch that takes a pending Workload out of its queue for a while."""
    metadata = marks(HOLDER, undo)
    if verdict is not None:
        metadata["annotations"][DECISION_ANNOTATION] = _line(verdict)
    return {"metadata": metadata, "spec": {"active": False}}


def hold_operations(document: Object, since_s: float | None = None, *, again: bool = False) -> list[Object]:
    """The JSON patch that holds a Workload as it is created, or comes at ``since_s``: its budget counts from there.

    What was decided about it before counts no more, unless it is held ``again``.
    """
    metadata = document.get("metadata") or {}
    decided = not again and DECISION_ANNOTATION in (metadata.get("annotations") or {})
    made = marks(HOLDER, {"active": True} | ({} if since_s is None else {"since": stamp(since_s)}))
    operations: list[Object] = []
    for section in ("labels", "annotations"):
        operations += [] if metadata.get(section) else [{"op": "add", "path": f"/metadata/{section}", "value": {}}]
        operations += [{"op": "add", "path": f"/metadata/{section}/{_escaped(name)}", "value": value}
                       for name, value in made[section].items()]  # fmt: skip
    if decided:
        operations.append({"op": "remove", "path": f"/metadata/annotations/{_escaped(DECISION_ANNOTATION)}"})
    return [*operations, {"op": "add", "path": "/spec/active", "value": False}]


def released(verdict: Mapping[str, Any]) -> Object:
    """The patch that gives a held Workload back to its queue, with what was decided."""
    return {"metadata": {"labels": {HELD_LABEL: None},
                         "annotations": {UNDO_ANNOTATION: None, DECISION_ANNOTATION: _line(verdict)}},
            "spec": {"active": True}}  # fmt: skip


def advised(verdict: Mapping[str, Any]) -> Object:
    """The patch that only says what would have been decided."""
    return {"metadata": {"annotations": {DECISION_ANNOTATION: _line(verdict)}}}


def told(waiting: str, at_s: float, reason: str, more: Mapping[str, Any]) -> Object:
    """The patch that tells a victim, and whoever keeps the ledger, why it has to go."""
    notice = {"by": MINE, "cause": "Preempted", "for": waiting, "at": stamp(at_s), "reason": reason[:_LONGEST]}
    return {"metadata": {"annotations": {EVICTING_ANNOTATION: _line(notice | dict(more))}}}


def asked(request: SaveRequest) -> Object:
    """The patch that asks a pod's program to save."""
    return {"metadata": {"annotations": {REQUEST_ANNOTATION: request.to_text()}}}


def untold() -> Object:
    return {"metadata": {"annotations": {EVICTING_ANNOTATION: None}}}


def verdict_of(decision: PreemptionDecision, at_s: float, until_s: float, models: Iterable[str]) -> dict[str, Any]:
    """What stands on the waiting Workload: the verdict, who makes room, why, and by which models."""
    reason = decision.reasons[0]
    found: dict[str, Any] = {
        "verdict": decision.verdict.value, "at": stamp(at_s), "code": reason.code, "reason": reason.message[:_LONGEST],
        "victims": list(decision.victims), "models": sorted(set(models)),
    }  # fmt: skip
    if decision.lost_gpu_s is not None:
        found["lostGpuSeconds"] = round(decision.lost_gpu_s)
    return found | ({"until": stamp(until_s)} if until_s else {})


def word(verdict: str, at_s: float, code: str, reason: str, until_s: float = 0.0) -> dict[str, Any]:
    found = {"verdict": verdict, "at": stamp(at_s), "code": code, "reason": reason[:_LONGEST]}
    return found | ({"until": stamp(until_s)} if until_s else {})


def stamp(at_s: float) -> str:
    """Unix seconds as RFC 3339, with milliseconds: covers end to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
