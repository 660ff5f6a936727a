"""The steps of ``kopt fractions sharing apply`` as a function of the node's state, ended at each of them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.sharing_changes import SHARING_CHANGES, sharing_changes_of, written_changes
from kopt.core.sharing.change import ChangeOutcome, ReplicaState, SharingChange
from kopt.core.sharing.modes import SharingMode
from kopt.policies.fractions.applying import NodeState, Step, after_step, in_force, next_step, steps

WHOLE = ReplicaState(None, SharingMode.EXCLUSIVE)
TURNS = ReplicaState("kopt-time-slicing-4", SharingMode.TIME_SLICING, 4)
BY_MPS = ReplicaState("kopt-mps-2", SharingMode.MPS, 2)
MAP = ("gpu-operator", "device-plugin-config")
STATES = st.sampled_from([WHOLE, replace(WHOLE, label="default"), TURNS, BY_MPS])


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[NodeState, SharingChange]:
    before = draw(STATES)
    after = draw(STATES.filter(lambda state: state.label not in (None, before.label)))
    gpus, cordoned = draw(st.integers(1, 16)), draw(st.booleans())
    discovered = (before.mode, before.replicas) if draw(st.booleans()) else None
    ready = True if before.mode is SharingMode.MPS else draw(st.sampled_from([None, False]))
    pods = ("lab/chat-0",) if draw(st.booleans()) else ()
    state = NodeState(before.label, cordoned, gpus * before.replicas, discovered, ready, pods)
    return state, SharingChange(before, after, gpus, MAP, cordoned, 0.0)


@given(beginnings(), st.data())
def test_ended_anywhere_it_goes_on_or_everything_is_as_before(
    beginning: tuple[NodeState, SharingChange], data: st.DataObject
) -> None:
    start, change = beginning
    path = steps(start, change)
    at = data.draw(st.integers(0, len(path) - 1))
    state = path[at][1]
    if data.draw(st.booleans(), label="goes on"):
        assert steps(state, change) == path[at:]
        end = after_step(*(path[-1][1], change, Step.FINISH))
        assert (end.label, end.is_cordoned) == (change.after.label, start.is_cordoned)
        assert in_force(end, change.after, change.gpus)
    else:
        undoing = replace(change, outcome=ChangeOutcome.UNDOING)
        last, state = steps(state, undoing)[-1]
        end = after_step(state, undoing, last)
        assert replace(end, pods=start.pods, mps_ready=start.mps_ready) == start


@given(beginnings())
def test_the_label_changes_only_on_a_cordoned_node_without_pods_that_is_configured(
    beginning: tuple[NodeState, SharingChange],
) -> None:
    path = steps(*beginning)
    (labelled,) = [state for step, state in path if step is Step.LABEL]
    assert (labelled.is_cordoned, labelled.is_configured, labelled.pods) == (True, True, ())
    undoing = replace(beginning[1], outcome=ChangeOutcome.UNDOING)
    back = steps(replace(path[-1][1], pods=("lab/late",)), undoing)
    assert [step for step, _ in back][:2] == [Step.DRAIN, Step.LABEL]


def test_a_label_of_others_is_left_to_them() -> None:
    change = SharingChange(WHOLE, TURNS, 4, MAP, False, 0.0)
    theirs = NodeState("theirs", True, 4, holds=True)
    assert next_step(theirs, change) is Step.FOREIGN
    back = [step for step, _ in steps(theirs, replace(change, outcome=ChangeOutcome.UNDOING))]
    assert back == [Step.RELEASE, Step.FINISH]
    with pytest.raises(ValueError, match="applied"):
        next_step(theirs, replace(change, outcome=ChangeOutcome.APPLIED))


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (NodeState("kopt-mps-2", True, 8, (SharingMode.MPS, 2), True), True),
        (NodeState("kopt-mps-2", True, 8, None, True), True),
        (NodeState("kopt-mps-2", True, 8, (SharingMode.MPS, 2), False), False),
        (NodeState("kopt-mps-2", True, 8, (SharingMode.MPS, 2), None), False),
        (NodeState("kopt-mps-2", True, 8, (SharingMode.TIME_SLICING, 2), True), False),
        (NodeState("kopt-mps-2", True, 0, (SharingMode.MPS, 2), True), False),
    ],
)
def test_in_force_is_what_the_node_offers_with_its_daemon(state: NodeState, holds: bool) -> None:
    assert in_force(state, BY_MPS, 4) is holds


def test_what_is_recorded_is_read_again_and_nonsense_is_refused() -> None:
    change = SharingChange(WHOLE, BY_MPS, 4, MAP, True, 5.0, ChangeOutcome.UNDONE, 9.0, "It was interrupted.")
    node = {"metadata": {"annotations": {SHARING_CHANGES: written_changes([change])}}}
    assert sharing_changes_of(node) == [change]
    (entry,) = json.loads(written_changes([change]))
    bad: list[Any] = [{}, 5, [5], [{**entry, "gpus": 0}], [{**entry, "outcome": "so"}], [{**entry, "configMap": "x"}]]
    for nonsense in bad:
        node["metadata"]["annotations"][SHARING_CHANGES] = json.dumps(nonsense)
        with pytest.raises(AnnotationError):
            sharing_changes_of(node)
