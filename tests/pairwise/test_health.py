"""Simulated clusters: sick nodes are named, their healthy partners and cut cables are not."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.hardware.pairwise import Health
from kopt.policies.pairwise.health import Evaluation, Result, evaluate


def cluster(
    nodes: int,
    sick: dict[str, float] | None = None,
    *,
    noise: float = 0.04,
    gbps: float = 92.0,
    seed: int = 0,
    kind: str = "H100",
    prefix: str = "node",
) -> list[Result]:
    """All pairs; a sick node leaves its pairs so much of their bandwidth, 0 for none at all."""
    chance, sick = random.Random(seed), sick or {}
    found = []
    for one, other in itertools.combinations([f"{prefix}-{n:02}" for n in range(nodes)], 2):
        share = min(sick.get(one, 1.0), sick.get(other, 1.0))
        value = gbps * share * math.exp(chance.gauss(0, noise))
        found.append(Result((one, other), "all_reduce", kind, value if share else None))
    return found


def unwell(judgement: Evaluation) -> dict[str, Health]:
    return {name: one.health for name, one in judgement.nodes.items() if one.health is not Health.HEALTHY}


@given(st.integers(4, 24), st.integers(0, 999), st.floats(0, 0.05))
def test_noise_alone_names_nobody(nodes: int, seed: int, noise: float) -> None:
    judgement = evaluate(cluster(nodes, noise=noise, seed=seed))
    assert unwell(judgement) == {}
    assert all(one.reason == "" for one in judgement.nodes.values())


@given(st.integers(4, 20), st.integers(0, 999), st.data())
def test_sick_nodes_are_named_and_nobody_else(nodes: int, seed: int, data: st.DataObject) -> None:
    most = (nodes - 1) // 2 if nodes > 4 else 1
    names = [f"node-{n:02}" for n in range(nodes)]
    chosen = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=most))
    sick = {name: data.draw(st.sampled_from([0.0, 0.2, 0.4, 0.6])) for name in sorted(chosen)}
    judgement = evaluate(cluster(nodes, sick, noise=0.02, seed=seed))
    assert set(unwell(judgement)) == set(sick)
    for name, share in sick.items():
        if not any(other == 0.0 for other in sick.values()):
            assert judgement.nodes[name].health is (Health.SLOW if share else Health.FAILED)


def test_it_says_why_with_figures() -> None:
    results = cluster(6, {"node-03": 0.41}, noise=0.0)
    judgement = evaluate(results)
    assert judgement.nodes["node-03"].reason == (
        "all_reduce with 5 of 5 nodes reaches 0.41 of what such pairs reach (median 92 GB/s)"
    )
    slow = [one for one in judgement.pairs if one.health is Health.SLOW]
    assert len(slow) == 5
    assert {one.reason for one in slow} == {
        "37.7 GB/s is 0.41 of the 92 GB/s that all_reduce reaches between such nodes (15 pairs)"
    }
    dead = evaluate(cluster(6, {"node-03": 0.0}))
    assert dead.nodes["node-03"].reason == "all_reduce with 5 of 5 nodes did not complete"
    assert {one.health for one in dead.pairs} == {Health.HEALTHY, Health.FAILED}


def test_a_cut_cable_between_two_nodes_names_neither() -> None:
    results = cluster(6)
    results[0] = Result(results[0].nodes, "all_reduce", "H100", 10.0)
    judgement = evaluate(results)
    assert judgement.pairs[0].health is Health.SLOW
    assert unwell(judgement) == {}


def test_few_pairs_give_no_verdict() -> None:
    assert unwell(evaluate(cluster(3, {"node-00": 0.1}))) == {}
    four = cluster(5)[:4]
    four[0] = Result(four[0].nodes, "all_reduce", "H100", 10.0)
    assert {one.health for one in evaluate(four).pairs} == {Health.HEALTHY}
    five = [*four, *cluster(5)[4:5]]
    assert evaluate(five).pairs[0].health is Health.SLOW


def test_half_of_its_pairs_are_not_most() -> None:
    slow = {("node-00", "node-01"), ("node-00", "node-02")}
    results = [Result(one.nodes, "all_reduce", "H100", 20.0 if one.nodes in slow else 92.0) for one in cluster(5)]
    assert unwell(evaluate(results)) == {}
    slow.add(("node-00", "node-03"))
    results = [Result(one.nodes, "all_reduce", "H100", 20.0 if one.nodes in slow else 92.0) for one in cluster(5)]
    assert set(unwell(evaluate(results))) == {"node-00"}


def test_a_healthy_node_that_met_mostly_sick_ones_is_not_named_for_it() -> None:
    met = {("node-08", "node-00"), ("node-08", "node-01"), ("node-08", "node-02")}
    results = [
        one
        for one in cluster(9, {"node-00": 0.4, "node-01": 0.4}, noise=0.01)
        if "node-08" not in one.nodes or tuple(reversed(one.nodes)) in met
    ]
    assert set(unwell(evaluate(results))) == {"node-00", "node-01"}


def test_where_everything_is_slow_or_fails_there_is_nothing_to_compare() -> None:
    assert unwell(evaluate(cluster(6, gbps=2.0))) == {}
    assert unwell(evaluate(cluster(6, dict.fromkeys([f"node-{n:02}" for n in range(6)], 0.0)))) == {}
    assert evaluate([]).nodes == {}


def test_other_hardware_is_another_yardstick() -> None:
    slower = cluster(6, gbps=11.0, kind="A100", prefix="old")
    judgement = evaluate(cluster(6) + slower)
    assert unwell(judgement) == {}
    mixed = evaluate([Result(one.nodes, one.collective, "any", one.gigabytes_per_s) for one in cluster(8) + slower])
    assert {one.health for one in mixed.pairs} == {Health.HEALTHY, Health.SLOW}, "the kind is what keeps them apart"


@pytest.mark.parametrize("seed", range(8))
def test_half_a_tournament_names_the_sick_node_already(seed: int) -> None:
    results = cluster(8, {"node-05": 0.4}, seed=seed)
    random.Random(seed).shuffle(results)
    some = [one for one in results if "node-05" in one.nodes][:3] + [
        one for one in results if "node-05" not in one.nodes
    ][:9]
    assert set(unwell(evaluate(some))) == {"node-05"}


def test_a_wide_spread_widens_what_is_healthy() -> None:
    quiet, wild = cluster(8, noise=0.01), cluster(8, noise=0.2)
    for results in (quiet, wild):
        results[0] = Result(results[0].nodes, "all_reduce", "H100", 92 * 0.7)
    assert evaluate(quiet).pairs[0].health is Health.SLOW
    assert evaluate(wild).pairs[0].health is Health.HEALTHY
