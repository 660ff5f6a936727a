"""Parts of a state machine as JSON and back: sessions outlive the process that holds them.

The names of stored fields never change, whatever the attributes are called: a stored session of an older release goes
on where it was.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from kopt.models.checkpoint.log_writers import LogWriters
from kopt.models.checkpoint.templates import LineTemplate, LineTemplates
from kopt.models.checkpoint.timing import JobClock, TrainingProgress
from kopt.models.checkpoint.write_statistics import WriteStatistics
from kopt.models.checkpoint.writes import DurableCheckpoint, OpenWrite

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_STORED_NAMES: Mapping[type, Mapping[str, str]] = {
    JobClock: {"silence_s": "_silence_s", "stepped_at_s": "_stepped_at_s"},
    TrainingProgress: {"stepped_since_end": "_stepped_since_end"},
    LogWriters: {"counts": "writers", "first": "lone"},
    DurableCheckpoint: {},
    OpenWrite: {
        "asynchronous": "aside",
        "template": "refrain",
        "step_named": "named",
        "last_template": "last_word",
    },
    WriteStatistics: {
        "reported_ends": "told_ends",
        "unannounced_ends": "ends_alone",
        "asynchronous": "aside",
        "last_template": "last_word",
        "last_template_count": "last_words",
        "mentioned_after_s": "spoken_s",
        "silences_s": "quiet_s",
        "saved_step_lines": "saved_counts",
        "recent_steps": "steps_seen",
    },
    LineTemplates: {"by_key": "known", "created": "numbered", "last_lines": "last", "late_keys": "since"},
}
"""Attributes that are stored under another name."""
_ADDED: Mapping[type, frozenset[str]] = {
    LineTemplates: frozenset({"recent_keys", "routine"}),
    TrainingProgress: frozenset({"active_since_end", "first_epoch"}),
    WriteStatistics: frozenset({"bar_times", "end_template", "late_end", "step_times", "ways"}),
}
"""Attributes that sessions of older releases have not."""
_REMOVED: Mapping[type, frozenset[str]] = {WriteStatistics: frozenset({"lines_after_ends"})}
"""What only sessions of older releases have."""


def plain(part: "DataclassInstance") -> dict[str, Any]:
    """The fields of a part by their stored names."""
    names = _STORED_NAMES[type(part)]
    return {names.get(field.name, field.name): _plain(getattr(part, field.name)) for field in fields(part)}


def fill(part: "DataclassInstance", document: Mapping[str, Any]) -> None:
    """Sets the fields of a part to what ``plain`` returned; deques keep their lengths. Raises ValueError otherwise."""
    removed = _REMOVED.get(type(part), frozenset())
    document = {name: value for name, value in document.items() if name not in removed}
    names, added = _STORED_NAMES[type(part)], added_to(part) - set(document)
    stored = [field for field in fields(part) if field.name not in added]
    if set(document) != {names.get(field.name, field.name) for field in stored}:
        raise ValueError("a part of a state machine of another version")
    for field in stored:
        value, present = document[names.get(field.name, field.name)], getattr(part, field.name)
        is_deque = isinstance(present, deque)
        setattr(part, field.name, deque(map(_as_tuple, value), present.maxlen) if is_deque else _plain(value))


def added_to(part: "DataclassInstance") -> frozenset[str]:
    """The fields that a part stored by an older release may lack."""
    return _ADDED.get(type(part), frozenset())


def write_from(document: Mapping[str, Any]) -> OpenWrite:
    attributes = {stored: name for name, stored in _STORED_NAMES[OpenWrite].items()}
    values = {attributes.get(name, name): value for name, value in document.items()}
    return OpenWrite(**{**values, "ending": _as_tuple(values["ending"])})


def templates_to(templates: LineTemplates) -> dict[str, Any]:
    return plain(templates) | {"known": [[key, *astuple(item)] for key, item in templates.by_key.items()]}


def templates_from(templates: LineTemplates, document: Mapping[str, Any]) -> None:
    """Fills ``templates`` with what ``templates_to`` returned."""
    fill(templates, document)
    templates.by_key = {int(key): LineTemplate(*item) for key, *item in document["known"]}
    templates.last_lines = {writer: _as_tuple(item) for writer, item in document["last"].items()}


def _plain(value: Any) -> Any:
    """A copy that shares no container with the part."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, deque | list) else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
