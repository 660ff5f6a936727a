"""JSON patches: they bring about what was asked for, with no operation too many."""

import copy
from typing import Any

from admission.patching import patched
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.json_patch import JsonPatch, pointer

steps = st.sampled_from(["metadata", "labels", "a/b", "c~d", "spec"])
leaves = st.sampled_from(["x", "y", 3])
documents = st.recursive(
    st.dictionaries(steps, leaves, max_size=2), lambda inner: st.dictionaries(steps, inner, max_size=3), max_leaves=6
)
puts = st.lists(st.tuples(st.lists(steps, min_size=1, max_size=3).map(tuple), leaves), max_size=5)


@given(documents, puts)
def test_the_operations_bring_about_what_was_put(document: dict[str, Any], wanted: list[tuple[Any, Any]]) -> None:
    patch = JsonPatch(copy.deepcopy(document))
    for path, value in wanted:
        patch.put(path, value)
    assert patched(document, patch.operations) == patch.document


@given(documents, puts)
def test_what_is_there_already_costs_no_operation(document: dict[str, Any], wanted: list[tuple[Any, Any]]) -> None:
    patch = JsonPatch(copy.deepcopy(document))
    for path, value in wanted:
        patch.put(path, value)
        count = len(patch.operations)
        patch.put(path, value)
        assert len(patch.operations) == count


def test_an_operation_says_what_it_does_alone() -> None:
    patch = JsonPatch({})
    patch.put(("metadata", "labels", "a"), "1")
    patch.put(("metadata", "labels", "b"), "2")
    assert patch.operations == [
        {"op": "add", "path": "/metadata", "value": {"labels": {"a": "1"}}},
        {"op": "add", "path": "/metadata/labels/b", "value": "2"},
    ]


def test_where_a_mapping_should_be_and_something_else_is_nothing_is_touched() -> None:
    patch = JsonPatch({"metadata": {"labels": ["a"]}, "spec": 7})
    patch.put(("metadata", "labels", "a"), "1")
    patch.put(("spec", "template", "spec"), {})
    assert patch.operations == []


def test_pointers_are_escaped() -> None:
    assert pointer(("labels", "kai.scheduler/queue", "a~b", 0)) == "/labels/kai.scheduler~1queue/a~0b/0"
