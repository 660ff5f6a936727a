"""What a new CustomResourceDefinition would take from stored objects."""

import copy
from typing import Any

import pytest

from kopt.policies.definitions import changes, has, losses, lost_versions

Object = dict[str, Any]
SPEC: Object = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "phase": {"type": "string", "enum": ["A", "B"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


def definition(spec: Object, name: str = "v1", stored: tuple[str, ...] = ("v1",)) -> Object:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    version = {"name": name, "served": True, "storage": True, "schema": schema}
    return {"spec": {"versions": [version]}, "status": {"storedVersions": list(stored)}}


def changed(change: Any) -> Object:
    spec = copy.deepcopy(SPEC)
    change(spec["properties"])
    return definition(spec)


def named(new: Object) -> list[str]:
    return [str(loss) for loss in losses(definition(SPEC), new)]


@pytest.mark.parametrize(
    ("change", "lost", "user", "other"),
    [
        (lambda of: of.pop("name"), "spec.name", {"name": "x"}, {"phase": "A"}),
        (lambda of: of["name"].update(type="integer"), "spec.name", {"name": "x"}, {}),
        (lambda of: of["phase"].update(enum=["A"]), "spec.phase = B", {"phase": "B"}, {"phase": "A"}),
        (
            lambda of: of["parts"]["items"]["properties"].pop("size"),
            "spec.parts[].size",
            {"parts": [{}, {"size": 1}]},
            {"parts": [{}]},
        ),
        (
            lambda of: of.update(labels={"type": "object", "properties": {"a": {"type": "string"}}}),
            "spec.labels.*",
            {"labels": {"a": "1", "b": "2"}},
            {"labels": {"a": "1"}},
        ),
        (
            lambda of: of["open"].pop("x-kubernetes-preserve-unknown-fields"),
            "spec.open.*",
            {"open": {"any": 1}},
            {"open": {}},
        ),
    ],
)
def test_a_loss_is_named_and_found_in_the_objects_that_have_it(
    change: Any, lost: str, user: Object, other: Object
) -> None:
    new = changed(change)
    assert named(new) == [lost]
    (loss,) = losses(definition(SPEC), new)
    assert has({"spec": user}, loss)
    assert not has({"spec": other}, loss)
    assert not has({"spec": None}, loss)


@pytest.mark.parametrize(
    "change",
    [
        lambda of: None,
        lambda of: of.update(more={"type": "string"}),
        lambda of: of["phase"].update(enum=["A", "B", "C"]),
        lambda of: of["phase"].pop("enum"),
        lambda of: of["name"].update(description="other words"),
    ],
)
def test_what_only_adds_takes_nothing(change: Any) -> None:
    assert named(changed(change)) == []


def test_a_new_stored_version_is_held_against_the_one_before() -> None:
    new = definition({"type": "object", "properties": {}}, "v2")
    assert "spec.name" in named(new)
    assert lost_versions(definition(SPEC), new) == ["v1"]
    assert lost_versions(definition(SPEC, stored=("v2",)), new) == []


def test_items_are_told_apart_by_their_names() -> None:
    before = {"versions": [{"name": "v1", "served": True}, {"name": "v2", "served": True}]}
    after = {"versions": [{"name": "v2", "served": False}, {"name": "v1", "served": True}]}
    (change,) = changes(before, after)
    assert (change.path, change.before, change.after) == ("versions.v2.served", True, False)
