"""What another CustomResourceDefinition would take from objects that are stored: versions, fields and values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.policies.queues.differences import FieldChange

Path = tuple[str, ...]
Schema = Mapping[str, Any]

EACH = "[]"
"""The items of a list, in a path."""
ANY = "*"
"""All keys of a mapping, in a path."""
_OPEN = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True)
class Loss:
    """A field that would be pruned or refused. ``kept`` are keys beside ``ANY`` that are not; ``values`` are the only
    ones that would be lost, where there are any."""

    path: Path
    kept: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()

    def __str__(self) -> str:
        name = ".".join(self.path).replace(f".{EACH}", EACH)
        return f"{name} = {', '.join(sorted(self.values))}" if self.values else name


def lost_versions(live: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Versions in which objects may be stored and that the new definition has not."""
    there = {version["name"] for version in new["spec"]["versions"]}
    return [name for name in (live.get("status") or {}).get("storedVersions") or () if name not in there]


def losses(live: Mapping[str, Any], new: Mapping[str, Any]) -> list[Loss]:
    """What objects may have by the live definition and not by the new one: in a version of both, and on the way from
    the version that is stored to the one that will be."""
    before = {version["name"]: version for version in live["spec"]["versions"]}
    after = {version["name"]: version for version in new["spec"]["versions"]}
    versions = [(before[name], after[name]) for name in before if name in after]
    versions += [
        (old, fresh) for old in before.values() for fresh in after.values() if old["storage"] and fresh["storage"]
    ]
    losses = (loss for old, fresh in versions for loss in _of_schema(_schema(old), _schema(fresh), ()))
    return list(dict.fromkeys(losses))


def has(document: Any, loss: Loss) -> bool:
    """Whether an object has what would be lost."""
    return _reaches(document, loss.path, loss)


def changes(before: Any, after: Any, path: Path = ()) -> Iterator[FieldChange]:
    """The fields in which two documents differ; items of lists are told apart by their names, where they have any."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from changes(before.get(key), after.get(key), (*path, str(key)))
    elif (old := _by_name(before)) and (new := _by_name(after)):
        yield from changes(old, new, path)
    else:
        yield FieldChange(".".join(path), before, after)


def _schema(version: Mapping[str, Any]) -> Schema:
    schema: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or {_OPEN: True}
    return schema


def _of_schema(live: Schema, new: Schema, path: Path) -> Iterator[Loss]:
    if _type(live) != _type(new):
        yield Loss(path)
        return
    removed = set(new.get("enum") or ()) and set(live.get("enum") or ()) - set(new.get("enum") or ())
    if removed:
        yield Loss(path, values=frozenset(map(str, removed)))
    yield from _of_properties(live, new, path)
    if isinstance(live.get("items"), dict):
        yield from _of_schema(live["items"], new.get("items") or {}, (*path, EACH))


def _of_properties(live: Schema, new: Schema, path: Path) -> Iterator[Loss]:
    if new.get(_OPEN):
        return
    kept, others = new.get("properties") or {}, new.get("additionalProperties")
    for name, schema in (live.get("properties") or {}).items():
        fresh = kept.get(name, others)
        if fresh is None or fresh is False:
            yield Loss((*path, name))
        elif isinstance(fresh, dict):
            yield from _of_schema(schema, fresh, (*path, name))
    if (live.get(_OPEN) or live.get("additionalProperties")) and not others:
        yield Loss((*path, ANY), kept=frozenset(kept))
    elif isinstance(live.get("additionalProperties"), dict) and isinstance(others, dict):
        yield from _of_schema(live["additionalProperties"], others, (*path, ANY))


def _type(schema: Schema) -> object:
    return "int-or-string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")


def _reaches(value: Any, path: Path, loss: Loss) -> bool:
    if not path:
        return value is not None and (not loss.values or str(value) in loss.values)
    step, rest = path[0], path[1:]
    if step == EACH:
        return isinstance(value, list) and any(_reaches(item, rest, loss) for item in value)
    if not isinstance(value, dict):
        return False
    if step == ANY:
        kept = loss.kept if not rest else frozenset[str]()
        return any(_reaches(item, rest, loss) for key, item in value.items() if key not in kept)
    return step in value and _reaches(value[step], rest, loss)


def _by_name(value: Any) -> dict[str, Any] | None:
    """The items of a list by their names, None where some have none or two have the same."""
    if not isinstance(value, list) or not all(isinstance(item, dict) and "name" in item for item in value):
        return None
    named = {str(item["name"]): item for item in value}
    return named if len(named) == len(value) else None
