"""``kaiwo.ai/resizes`` on a pod: the changes of its CPU and memory while it ran, the newest first.

The entry is written before the change, so that whoever finds it open knows what to put back. While one is open the pod
has the label ``kaiwo.ai/resizing``; where the controller made it, an annotation of that name as well, with the entry
and a proof: whoever may write a pod may write any history, and a controller puts back only what it had itself.
"""

from collections.abc import Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.annotations import records_of, records_text
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.seals import SEAL
from kopt.core.times import seconds, stamp
from kopt.core.untrusted import UnreadableError
from kopt.core.workload.rightsizing import Bounds, Lever, Outcome, Resize, ResizeRecord

RESIZES, RESIZING = "kaiwo.ai/resizes", "kaiwo.ai/resizing"
MOST_KEPT = 10
_LONGEST_REASON = 300


def resizes_of(pod: Object) -> list[ResizeRecord]:
    """Raises AnnotationError for what cannot be read."""
    return records_of(pod, RESIZES, _record, MOST_KEPT)


def written(records: Sequence[ResizeRecord]) -> str:
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


def open_change(pod: Object) -> ResizeRecord | None:
    """The change that is open by the history of a pod, whoever made it. Raises AnnotationError."""
    return next((record for record in resizes_of(pod) if record.outcome is Outcome.OPEN), None)


def _entry(record: ResizeRecord) -> dict[str, Any]:
    resize = record.resize
    entry: dict[str, Any] = {
        "at": stamp(record.at_s),
        "container": resize.container,
        "resource": resize.lever.value,
        "before": _bounds(resize.before),
        "after": _bounds(resize.after),
        "outcome": record.outcome.value,
    }
    if record.ended_s is not None:
        entry |= {"ended": stamp(record.ended_s), "reason": record.reason[:_LONGEST_REASON]}
    return entry


def _bounds(bounds: Bounds) -> dict[str, int]:
    """In milli-CPU or bytes, so that nothing is rounded."""
    amounts = {"request": bounds.request, "limit": bounds.limit}
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _record(entry: dict[str, Any]) -> ResizeRecord:
    ended = entry.get("ended")
    resize = Resize(
        str(entry["container"]), Lever(entry["resource"]), _read_bounds(entry["before"]), _read_bounds(entry["after"])
    )
    return ResizeRecord(
        resize,
        seconds(str(entry["at"])),
        Outcome(entry["outcome"]),
        None if ended is None else seconds(str(ended)),
        str(entry.get("reason", ""))[:_LONGEST_REASON],
    )


def _read_bounds(entry: Any) -> Bounds:
    if not isinstance(entry, dict):
        raise UnreadableError("amounts that are no object")
    amounts = [entry.get(name) for name in ("request", "limit")]
    for amount in amounts:
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int) or amount <= 0):
            raise UnreadableError("an amount that is no positive whole number")
    return Bounds(*amounts)
