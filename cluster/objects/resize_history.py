"""``kaiwo.ai/resizes`` on a pod: the changes of its CPU and memory while it ran, the newest first; on a job: those of
its width.

The entry is written before the change, so that whoever finds it open knows what to put back. While one is open the
object has the label ``kaiwo.ai/resizing``; where the controller made it, an annotation of that name as well, with the
entry and a proof: whoever may write a pod may write any history, and a controller puts back only what it had itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.annotations import records_of, records_text
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.seals import SEAL
from kopt.core.times import seconds, stamp
from kopt.core.untrusted import UnreadableError
from kopt.core.workload.rightsizing import (
    AnyRecord,
    Batch,
    Bounds,
    ChangeRecord,
    Lever,
    Outcome,
    Resize,
    ResizeRecord,
    WidthChange,
    WidthRecord,
)

RESIZES, RESIZING = "kaiwo.ai/resizes", "kaiwo.ai/resizing"
MOST_KEPT = 10
_LONGEST_REASON = 300
_WIDTH = "width"
_MOST_WORKERS = 1_000_000
_LONGEST_STEP_S = 1e7


def resizes_of(pod: Object) -> list[ResizeRecord]:
    """Raises AnnotationError for what cannot be read."""
    return records_of(pod, RESIZES, _record, MOST_KEPT)


def widths_of(job: Object) -> list[WidthRecord]:
    """Raises AnnotationError for what cannot be read."""
    return records_of(job, RESIZES, _width_record, MOST_KEPT)


def changes_of(document: Object) -> list[AnyRecord]:
    """Of a pod or of a job. Raises AnnotationError for what cannot be read."""
    return records_of(document, RESIZES, _any_record, MOST_KEPT)


def written(records: Sequence[AnyRecord]) -> str:
    """As the annotation holds them."""
    return records_text(map(_entry, records), MOST_KEPT)


def marked_open(record: ResizeRecord, uid: str, *, sealed: bool) -> Object:
    """Metadata of the pod ``uid`` while the change is open; ``sealed``: for a controller that watches it."""
    note = SEAL.sealed(RESIZING, uid, _entry(record)) if sealed else None
    return {"labels": {RESIZING: "open"}, "annotations": {RESIZING: note}}


def marked_closed() -> Object:
    return {"labels": {RESIZING: None}, "annotations": {RESIZING: None}}


def sealed_change(pod: Object) -> ResizeRecord | None:
    """The change that a controller of ours left open on a pod; None for none, and for what has no valid proof."""
    uid, note = text(pod, "metadata", "uid"), mapping(pod, "metadata", "annotations").get(RESIZING)
    entry = None if note is None else SEAL.opened(RESIZING, uid, note)
    return None if entry is None else _record(entry)


def open_change(document: Object) -> AnyRecord | None:
    """The change that is open by the history of a pod or of a job, whoever made it. Raises AnnotationError."""
    return next((record for record in changes_of(document) if record.outcome is Outcome.OPEN), None)


def _entry(record: AnyRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {"at": stamp(record.at_s), **_change(record.resize), "outcome": record.outcome.value}
    if record.ended_s is not None:
        entry |= {"ended": stamp(record.ended_s), "reason": record.reason[:_LONGEST_REASON]}
    if record.step_seconds is not None:
        entry["stepSeconds"] = [float(f"{each:.4g}") for each in record.step_seconds]
    return entry


def _change(change: Resize | WidthChange) -> dict[str, Any]:
    if isinstance(change, WidthChange):
        return {
            "resource": _WIDTH,
            "before": {"workers": change.before},
            "after": {"workers": change.after},
            "batch": change.batch.value,
        }
    return {
        "container": change.container,
        "resource": change.lever.value,
        "before": _bounds(change.before),
        "after": _bounds(change.after),
    }


def _bounds(bounds: Bounds) -> dict[str, int]:
    """In milli-CPU or bytes, so that nothing is rounded."""
    amounts = {"request": bounds.request, "limit": bounds.limit}
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _any_record(entry: dict[str, Any]) -> AnyRecord:
    return _width_record(entry) if entry["resource"] == _WIDTH else _record(entry)


def _record(entry: dict[str, Any]) -> ResizeRecord:
    resize = Resize(
        str(entry["container"]), Lever(entry["resource"]), _read_bounds(entry["before"]), _read_bounds(entry["after"])
    )
    return ChangeRecord(resize, **_ending(entry))


def _width_record(entry: dict[str, Any]) -> WidthRecord:
    if entry["resource"] != _WIDTH:
        raise UnreadableError("a change of a container on an object that has none")
    change = WidthChange(_workers(entry["before"]), _workers(entry["after"]), Batch(entry["batch"]))
    if abs(change.after - change.before) != 1:
        raise UnreadableError("widths that are not beside each other, as no change of ours has")
    return ChangeRecord(change, **_ending(entry))


def _ending(entry: dict[str, Any]) -> dict[str, Any]:
    ended = entry.get("ended")
    return {
        "at_s": seconds(str(entry["at"])),
        "outcome": Outcome(entry["outcome"]),
        "ended_s": None if ended is None else seconds(str(ended)),
        "reason": str(entry.get("reason", ""))[:_LONGEST_REASON],
        "step_seconds": _step_seconds(entry.get("stepSeconds")),
    }


def _step_seconds(entry: Any) -> tuple[float, float] | None:
    if entry is None:
        return None
    before, after = (float(each) for each in entry)
    if not (0 < before < _LONGEST_STEP_S and 0 < after < _LONGEST_STEP_S):
        raise UnreadableError("times of steps that cannot be")
    return before, after


def _workers(entry: Any) -> int:
    number = entry.get("workers") if isinstance(entry, Mapping) else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= _MOST_WORKERS:
        raise UnreadableError("a width that is no number of workers")
    return number


def _read_bounds(entry: Any) -> Bounds:
    if not isinstance(entry, dict):
        raise UnreadableError("amounts that are no object")
    amounts = [entry.get(name) for name in ("request", "limit")]
    for amount in amounts:
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int) or amount <= 0):
            raise UnreadableError("an amount that is no positive whole number")
    return Bounds(*amounts)
