"""``kaiwo.ai/sharing-changes`` on a node: how its GPUs were shared by ``kopt fractions sharing apply``, newest first.

The entry is written before the first change, so that it says what to put back wherever the command was killed.
"""

from collections.abc import Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.annotations import records_of, records_text
from kopt.core.sharing.change import ChangeOutcome, ReplicaState, SharingChange
from kopt.core.sharing.modes import SharingMode
from kopt.core.times import seconds, stamp
from kopt.core.untrusted import UnreadableError

SHARING_CHANGES = "kaiwo.ai/sharing-changes"
MOST_KEPT = 10
_LONGEST_REASON, _LONGEST_LABEL, _MOST = 300, 63, 4096


def sharing_changes_of(node: Object) -> list[SharingChange]:
    """Raises AnnotationError for what cannot be read."""
    return records_of(node, SHARING_CHANGES, _change, MOST_KEPT)


def written_changes(changes: Sequence[SharingChange]) -> str:
    """As the annotation holds them."""
    return records_text(map(_entry, changes), MOST_KEPT)


def _entry(change: SharingChange) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "at": stamp(change.at_s),
        "before": _state(change.before),
        "after": _state(change.after),
        "gpus": change.gpus,
        "configMap": "/".join(change.config_map),
        "wasCordoned": change.was_cordoned,
        "outcome": change.outcome.value,
    }
    if change.ended_s is not None:
        entry["ended"] = stamp(change.ended_s)
    if change.reason:
        entry["reason"] = change.reason[:_LONGEST_REASON]
    return entry


def _state(state: ReplicaState) -> dict[str, Any]:
    return {"label": state.label, "mode": str(state.mode), "replicas": state.replicas}


def _change(entry: dict[str, Any]) -> SharingChange:
    namespace, slash, name = str(entry["configMap"]).partition("/")
    if not (namespace and slash and name):
        raise UnreadableError("a ConfigMap without namespace or name")
    ended = entry.get("ended")
    return SharingChange(
        _read_state(entry["before"]),
        _read_state(entry["after"]),
        _number(entry["gpus"]),
        (namespace, name),
        entry["wasCordoned"] is True,
        seconds(str(entry["at"])),
        ChangeOutcome(entry["outcome"]),
        None if ended is None else seconds(str(ended)),
        str(entry.get("reason", ""))[:_LONGEST_REASON],
    )


def _read_state(entry: Any) -> ReplicaState:
    if not isinstance(entry, dict):
        raise UnreadableError("a state that is no object")
    label = entry["label"]
    if label is not None and (not isinstance(label, str) or not 0 < len(label) <= _LONGEST_LABEL):
        raise UnreadableError("a label that is none")
    return ReplicaState(label, SharingMode(entry["mode"]), _number(entry["replicas"]))


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise UnreadableError("a number that is out of range")
    return value
