"""What components did to objects, as records of the audit log say it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kopt.core.audit import AuditError, StoredRecord, read_record


@dataclass(frozen=True)
class RecordedAction:
    """``at_s`` is Unix time by the clock of the component; ``kind`` is write, event or decision. ``uid`` is that of the
    object, empty where it is not known."""

    at_s: float
    component: str
    kind: str
    verb: str
    object_kind: str
    name: str
    text: str
    uid: str = ""


def actions_in(stored: Iterable[StoredRecord]) -> Iterator[RecordedAction]:
    """In their order, without records that are damaged."""
    for each in stored:
        try:
            entry = read_record(each.record)
        except AuditError:
            # `kopt audit verify` says what is wrong with it.
            continue
        # A decision about a pod that is to be made has the uid of the question.
        uid = "" if entry.kind == "decision" else entry.uid
        yield RecordedAction(
            entry.at_s, entry.component, entry.kind, entry.verb, entry.object_kind, entry.name, entry.summary, uid
        )
