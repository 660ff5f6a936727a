"""What applying an object would change, field by field, before anything is written."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.units import UnitError, parse_thousandths

Path = tuple[str, ...]


class Action(StrEnum):
    """What is done to an object."""

    CREATE = "create"
    CHANGE = "change"
    KEEP = "keep"
    DELETE = "delete"
    RELEASE = "release"
    """Our fields of it are left to its other owners."""
    LEAVE = "leave"


@dataclass(frozen=True)
class FieldChange:
    """A field, with what stands there and what will; None is nothing."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class ObjectChange:
    """What becomes of one object. ``document`` is the desired one, or the one that is deleted or left."""

    action: Action
    document: Mapping[str, Any]
    fields: tuple[FieldChange, ...] = ()
    why: str = ""

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        """``namespace/name``, or the name alone."""
        metadata = self.document["metadata"]
        space = metadata.get("namespace")
        return f"{space}/{metadata['name']}" if space else str(metadata["name"])


@dataclass(frozen=True)
class ApplyPlan:
    """What is to be done, in this order; nothing is done while there are ``problems``."""

    changes: tuple[ObjectChange, ...]
    problems: tuple[str, ...] = ()

    @property
    def writes(self) -> list[ObjectChange]:
        """Changes that write something."""
        return [change for change in self.changes if change.action not in (Action.KEEP, Action.LEAVE)]


def change_of(desired: Mapping[str, Any], live: Mapping[str, Any] | None, owner: str) -> ObjectChange:
    """What server-side apply of ``desired`` as field manager ``owner`` does: fields that this manager alone has and no
    longer names go."""
    if live is None:
        return ObjectChange(Action.CREATE, desired, tuple(_changes(_written(desired), {}, ())))
    fields = [*_changes(_written(desired), live, ()), *_dropped(desired, live, owner)]
    return ObjectChange(Action.CHANGE if fields else Action.KEEP, desired, tuple(fields))


def as_written(desired: Any, live: Any) -> Any:
    """The desired value in the words of the live one where both mean the same: 1000 as 1k, and resources of a Kueue
    group in its order. Another spelling of a field that others own would be a conflict with them."""
    if isinstance(desired, dict) and isinstance(live, dict):
        ordered = _in_order(desired, live)
        return {key: as_written(value, live.get(key)) for key, value in ordered.items()}
    if isinstance(desired, list) and isinstance(live, list) and len(desired) == len(live):
        return [as_written(item, other) for item, other in zip(desired, live, strict=True)]
    return live if _same(desired, live) else desired


def _in_order(desired: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """A group whose resources are those of the live one, with these in its order; everything else as it is."""
    resources, other = desired.get("coveredResources"), live.get("coveredResources")
    if resources == other or not isinstance(resources, list) or not isinstance(other, list) or {*resources} != {*other}:
        return desired
    flavors = [
        {**flavor, "resources": sorted(flavor["resources"], key=lambda row: other.index(row["name"]))}
        for flavor in desired["flavors"]
    ]
    return {**desired, "coveredResources": other, "flavors": flavors}


def _written(desired: Mapping[str, Any]) -> dict[str, Any]:
    metadata = desired["metadata"]
    named = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {"metadata": named, "spec": desired["spec"]}


def _changes(desired: Any, live: Any, path: Path) -> Iterator[FieldChange]:
    if desired == live:
        return
    if isinstance(desired, dict) and desired and (isinstance(live, dict) or live is None):
        for key, value in desired.items():
            yield from _changes(value, None if live is None else live.get(key), (*path, str(key)))
    elif isinstance(desired, list) and isinstance(live, list) and len(desired) == len(live):
        # A list that is one field to the API server is written whole: what it has beside ours goes as well.
        for number, (item, other) in enumerate(zip(desired, live, strict=True)):
            yield from _changes(item, other, (*path, str(number)))
            extra = other.keys() - item.keys() if isinstance(item, dict) and isinstance(other, dict) else ()
            for key in sorted(extra):
                yield FieldChange(".".join((*path, str(number), key)), other[key], None)
    elif not _same(desired, live) and not (path == ("spec",) and not desired and not live):
        yield FieldChange(".".join(path), live, desired)


def _same(desired: Any, live: Any) -> bool:
    """Of what was written as 1000 the server makes 1k."""
    if isinstance(desired, str | int) and isinstance(live, str | int):
        try:
            return parse_thousandths(desired) == parse_thousandths(live)
        except UnitError:
            pass
    return bool(desired == live)


def _dropped(desired: Mapping[str, Any], live: Mapping[str, Any], owner: str) -> Iterator[FieldChange]:
    """Fields that ``owner`` alone has of the spec and that are not desired any more."""
    own, others = set[Path](), set[Path]()
    for entry in live["metadata"].get("managedFields") or ():
        fields = _leaf_paths((entry.get("fieldsV1") or {}).get("f:spec") or {}, ("spec",))
        (own if _applies(entry, owner) else others).update(fields)
    for path in sorted(own - others):
        if not _has(desired, path) and _has(live, path):
            yield FieldChange(".".join(path), _value(live, path), None)


def _applies(entry: Mapping[str, Any], owner: str) -> bool:
    return entry.get("manager") == owner and entry.get("operation") == "Apply"


def _leaf_paths(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for key, below in fields.items():
        if key.startswith("f:"):
            inner = [*_leaf_paths(below, (*path, key[2:]))] if isinstance(below, dict) else []
            yield from inner or [(*path, key[2:])]


def _value(document: Any, path: Path) -> Any:
    for step in path:
        document = document.get(step) if isinstance(document, dict) else None
    return document


def _has(document: Any, path: Path) -> bool:
    return _value(document, path) is not None


def in_words(value: Any) -> str:
    """A value in a line for people."""
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
