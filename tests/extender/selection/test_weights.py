"""What a NodeSelectionPolicy changes of the choice of nodes, and that without one nothing is changed."""

from typing import Any

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.objects.custom.node_selection_policy import in_force, policy_of, stored_of
from kopt.controllers.extender.node_list import NodeNames
from kopt.core.hardware.complaint import Complaint
from kopt.core.hardware.node_selection import NodeSelectionPolicy, SelectionWeights, UtilisationHistory
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.scores import SCORES, WEIGHTS
from tests.extender.test_books import asking, node, take
from tests.extender.test_degraded_nodes import Scene

Object = dict[str, Any]
NAMES = ("a", "b", "c", "d")


def document(name: str = "fleet", *, created: str = "2026-11-30T10:00:00Z", window: str = "", **weights: Any) -> Object:
    spec: Object = {"weights": weights} | ({"utilisationHistory": {"window": window}} if window else {})
    metadata = {"name": name, "uid": name, "creationTimestamp": created, "generation": 1, "resourceVersion": "1"}
    return {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "NodeSelectionPolicy", "metadata": metadata, "spec": spec}


def fleet_with(held: list[tuple[str, int]], health: dict[str, float], use: dict[str, float]) -> Fleet:
    fleet = Fleet()
    for name in NAMES:
        fleet.set_node(name, node(name))
    for name, score in health.items():
        fleet.set_complaint(name, "health", Complaint("worn", degraded=False, score=score))
    for number, (name, gpus) in enumerate(held):
        take(fleet, f"held-{number}", asking(gpus), name)
    fleet.set_history(UtilisationHistory(3600.0, use))
    return fleet


SHARES = st.floats(0, 1, allow_nan=False)
HELD = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from((1, 2, 4, 8))), max_size=12)


@settings(max_examples=examples(60))
@given(HELD, st.dictionaries(st.sampled_from(NAMES), SHARES), st.dictionaries(st.sampled_from(NAMES), SHARES))
def test_the_defaults_choose_and_score_exactly_as_no_policy(
    held: list[tuple[str, int]], health: dict[str, float], use: dict[str, float]
) -> None:
    without, by_defaults = fleet_with(held, health, {}), fleet_with(held, health, use)
    by_defaults.select_by(NodeSelectionPolicy("fleet"))
    for gpus, apart in ((1, ()), (2, ("a",)), (8, ())):
        choices = [
            fleet.choose(asking(gpus), NodeNames.of(NAMES), apart=apart).choice for fleet in (without, by_defaults)
        ]
        assert choices[0] == choices[1]


def test_the_defaults_are_the_weights_of_before() -> None:
    assert set(WEIGHTS) == set(SCORES)
    assert policy_of(document()).weights == SelectionWeights()


@settings(max_examples=examples(60))
@given(st.dictionaries(st.sampled_from(NAMES), SHARES, min_size=1), st.floats(0.5, 100))
def test_of_nodes_that_are_alike_the_least_used_is_chosen(use: dict[str, float], weight: float) -> None:
    fleet = fleet_with([], {}, use)
    fleet.select_by(NodeSelectionPolicy("fleet", SelectionWeights(weight)))
    choice = fleet.choose(asking(1), NodeNames.of(NAMES)).choice
    shares = {name: use.get(name, sum(use.values()) / len(use)) for name in NAMES}
    assert shares[str(choice.node)] == pytest.approx(min(shares.values()), abs=1e-9)
    assert choice.breakdown["utilisation"] == pytest.approx(weight * (1 - shares[str(choice.node)]))


def test_weights_of_health_and_distribution_can_be_set_against_room() -> None:
    fleet = fleet_with([("a", 4)], {"a": 0.9}, {})
    assert fleet.choose(asking(1), NodeNames.of("ab")).choice.node == "b"
    fleet.select_by(NodeSelectionPolicy("fleet", SelectionWeights(health=0.0)))
    assert fleet.choose(asking(1), NodeNames.of("ab")).choice.node == "a"
    assert fleet.choose(asking(1), NodeNames.of("ab"), apart=("a",)).choice.node == "b"
    fleet.select_by(NodeSelectionPolicy("fleet", SelectionWeights(health=0.0, distribution=0.0)))
    assert fleet.choose(asking(1), NodeNames.of("ab"), apart=("a",)).choice.node == "a"
    fleet.select_by(None)
    assert fleet.choose(asking(1), NodeNames.of("ab")).choice.node == "b"


def test_a_node_that_is_set_anew_keeps_its_use() -> None:
    fleet = fleet_with([], {}, {"a": 0.5, "b": 0.1})
    fleet.set_complaint("a", "health", Complaint("worn", degraded=False, score=0.9))
    fleet.set_node("e", node("e"))
    state = fleet.pools["nvidia.com/gpu"].state
    assert [state.utilisation[state.index[name]] for name in "abce"] == pytest.approx([0.5, 0.1, 0.3, 0.3])


async def test_the_decision_says_by_which_weights_and_uses() -> None:
    scene = Scene()
    scene.extender.fleet.set_history(UtilisationHistory(3600.0, {"a": 0.88}))
    scene.offer("before", 1)
    assert "NODE_WEIGHTS" not in scene.told("before")
    scene.extender.fleet.select_by(policy_of(document(utilisationHistory=4)))
    scene.extender.fleet.set_history(UtilisationHistory(3600.0, {"a": 0.88, "b": 0.12}))
    assert scene.offer("pod", 1)["NodeNames"] == ["b"]
    assert scene.told("pod")["NODE_WEIGHTS"] == (
        "Weights in GPUs by NodeSelectionPolicy fleet: utilisationHistory 4, health 8, topology 2, distribution 0.5. "
        "GPUs in use over the last 60 min: b 12%, a 88%."
    )


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"health": -1}, "spec.weights.health is -1; a weight is 0 to 1000 GPUs"),
        ({"health": 1001}, "spec.weights.health is 1001; a weight is 0 to 1000 GPUs"),
        ({"health": float("nan")}, "spec.weights.health is nan; a weight is 0 to 1000 GPUs"),
        ({"health": "high"}, "spec.weights.health is a number of GPUs, not 'high'"),
        ({"health": True}, "spec.weights.health is a number of GPUs, not 'True'"),
        ({"utilization": 3}, "spec.weights.utilization is no field of a NodeSelectionPolicy; there are utilisationH"),
        (
            dict.fromkeys(SelectionWeights().by_field(), 0),
            "all of spec.weights are 0, so that nothing would be weighed",
        ),
    ],
)
def test_weights_that_cannot_be_meant_are_refused(weights: Object, words: str) -> None:
    stored = stored_of(document(**weights))
    assert stored.policy is None
    assert stored.error.startswith(words)


@pytest.mark.parametrize("window", ["4m", "8d", "169h", "1w", "0h", "1h30m", "x"])
def test_a_window_is_five_minutes_to_seven_days(window: str) -> None:
    assert stored_of(document(window=window)).error.startswith("spec.utilisationHistory.window is 5m to 7d")
    assert policy_of(document(window="90m")).window_s == 5400.0


def test_the_oldest_that_can_be_meant_is_in_force() -> None:
    broken = stored_of(document("broken", created="2026-11-01T00:00:00Z", health=-1))
    older, newer = (
        stored_of(document(name, created=f"2026-11-0{day}T00:00:00Z")) for name, day in (("z", 2), ("a", 3))
    )
    assert in_force([newer, broken, older]) is older
    assert in_force([broken]) is None
