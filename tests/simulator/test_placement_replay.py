"""The protocol of the replay, and what no policy may do in it."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kopt.core.scheduling.cluster import Node
from kopt.core.scheduling.placement import PodRequest
from kopt.data.jobs.openb import TracePod, read_nodes, read_pods
from kopt.policies.placement.policies import POLICIES
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.typical import TypicalPods
from kopt.simulator.placement.load import arrivals, capacity_milli
from kopt.simulator.placement.replay import Replay, fleet, replay
from kopt.simulator.placement.study import Expectation, Run, Scenario, simulate, study

Nodes = tuple[Node, ...]
Pods = tuple[TracePod, ...]


def asked(requests: list[PodRequest]) -> int:
    return sum(request.gpus.total for request in requests)


def test_copies_are_appended_until_the_next_would_pass_the_load(nodes: Nodes, pods: Pods) -> None:
    capacity = capacity_milli(nodes)
    assert capacity == 20_000
    for seed in range(5):
        made = arrivals(pods, capacity, 1.3, seed)
        assert 26_000 - 2_000 < asked(made) <= 26_000
        assert sorted(map(repr, made[:30])) == sorted(repr(pod.request) for pod in pods), "the trace itself comes first"
        assert set(made) <= {pod.request for pod in pods}


def test_pods_are_removed_where_the_trace_asks_for_more(nodes: Nodes, pods: Pods) -> None:
    made = arrivals(pods, capacity_milli(nodes), 0.4, 1)
    assert 8_000 - 2_000 < asked(made) <= 8_000
    everything = [pod.request for pod in pods]
    for request in set(made):
        assert made.count(request) <= everything.count(request)


def test_arrivals_follow_from_names_and_seed_alone(nodes: Nodes, pods: Pods) -> None:
    mixed = list(pods)
    random.Random(3).shuffle(mixed)
    assert arrivals(pods, 20_000, 1.3, 7) == arrivals(mixed, 20_000, 1.3, 7)
    assert arrivals(pods, 20_000, 1.3, 7) != arrivals(pods, 20_000, 1.3, 8)


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan")])
def test_a_load_that_cannot_be_made_is_refused(pods: Pods, load: float) -> None:
    with pytest.raises(ValueError, match="needs GPU pods"):
        arrivals(pods, 20_000, load, 1)


def test_a_trace_without_gpu_pods_is_refused(pods: Pods) -> None:
    with pytest.raises(ValueError, match="needs GPU pods"):
        arrivals([pod for pod in pods if not pod.request.gpus.count], 20_000, 1.3, 1)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_places_whatever_fits_and_nothing_else(nodes: Nodes, pods: Pods, policy: str) -> None:
    requests = arrivals(pods, capacity_milli(nodes), 1.3, 1)
    state = fleet(nodes)
    chosen = POLICIES[policy](TypicalPods.learn(requests), np.random.default_rng(1))
    placed = 0
    for request in requests:
        found = chosen.select(state, request)
        room = any(_fits(state, row, request) for row in range(state.rows))
        assert (found is not None) == room
        if found is not None:
            allocate(state, *found, request)
            placed += request.gpus.total
    result = replay(nodes, requests, policy, 1, TypicalPods.learn(requests))
    assert result.allocated == placed / 20_000
    assert result.placed + result.refused == len(requests)


def _fits(state: FleetState, row: int, request: PodRequest) -> bool:
    """Feasibility once more, in plain words."""
    gpus = request.gpus
    model = state.models[state.model[row]]
    return (
        state.cpu_free_milli[row] >= request.cpu_milli
        and state.memory_free_bytes[row] >= request.memory_bytes
        and (not gpus.count or not gpus.models or model in gpus.models)
        and sum(free >= gpus.share for free in state.gpu_free_milli[row].tolist()) >= gpus.count
    )


def test_what_comes_later_changes_nothing_that_was_decided(nodes: Nodes, pods: Pods) -> None:
    requests = arrivals(pods, capacity_milli(nodes), 1.3, 1)
    other = [*requests[:20], *reversed(requests[20:]), *requests[:5]]
    decisions = []
    for listed in (requests, other):
        state, chosen = fleet(nodes), POLICIES["kopt"](None, np.random.default_rng(1))
        mine = []
        for request in listed[:20]:
            found = chosen.select(state, request)
            mine.append(found)
            if found is not None:
                allocate(state, *found, request)
        decisions.append(mine)
    assert decisions[0] == decisions[1]


def test_curves_end_at_the_result_and_never_fall(nodes: Nodes, pods: Pods) -> None:
    result = simulate(Scenario(nodes, pods), Run("kopt", 1))
    assert result.allocation[-1] == result.allocated
    assert (np.diff(result.allocation) >= 0).all()
    assert result.requested[-1] <= 1.3
    assert (result.allocation <= result.requested + 1e-12).all()
    assert (result.fragmented >= 0).all()
    assert (result.fragmented + result.allocation <= 1 + 1e-9).all()


def test_processes_give_the_same_results_in_the_order_asked_for(nodes: Nodes, pods: Pods) -> None:
    scenario = Scenario(nodes, pods)
    runs = [Run(policy, seed) for policy in ("kopt", "random") for seed in (3, 1, 2)]
    seen: list[int] = []
    both = study(scenario, runs, 2, lambda done, total: seen.append(done)), study(scenario, runs, 1)
    assert [(one.policy, one.seed) for one in both[0]] == [(run.policy, run.seed) for run in runs]
    assert [one.allocated for one in both[0]] == [one.allocated for one in both[1]]
    assert seen == [1, 2, 3, 4, 5, 6]


Simulate = Callable[[str, str], Replay]


@pytest.fixture(scope="module")
def simulated(openb_data_dir: Path) -> Simulate:
    """``simulated(variant, policy)``: a variant of the real trace; each is worked out once."""

    @cache
    def result(variant: str, policy: str) -> Replay:
        nodes = read_nodes(openb_data_dir / "openb_node_list_gpu_node.csv")
        assert capacity_milli(nodes) == 6_212_000
        pods = read_pods(openb_data_dir / f"openb_pod_list_{variant}.csv")
        return simulate(Scenario(nodes, pods), Run(policy, 7))

    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "reach"),
    [
        ("default", 95.6),
        pytest.param("gpuspec33", 94.55, marks=pytest.mark.long),
        pytest.param("cpu250", 93.41, marks=pytest.mark.thorough),
        pytest.param("gpushare100", 86.90, marks=pytest.mark.thorough),
        pytest.param("multigpu50", 97.18, marks=pytest.mark.thorough),
    ],
)
def test_the_real_trace_fills_more_than_published(simulated: Simulate, variant: str, reach: float) -> None:
    ours, theirs = simulated(variant, "kopt"), simulated(variant, "fgd")
    assert 100 * ours.allocated > reach
    assert ours.allocated > theirs.allocated
    assert 130 >= 100 * ours.requested[-1] > 129.9


@pytest.mark.long
def test_the_baselines_come_near_the_published_figures(simulated: Simulate) -> None:
    for policy, published in (
        ("fgd", 95.4),
        ("best-fit", 93.1),
        ("packing", 92.0),
        ("dot-product", 90.9),
        ("random", 87.5),
    ):
        assert 100 * simulated("default", policy).allocated == pytest.approx(published, abs=0.8)


def test_given_the_trace_a_policy_knows_its_kinds_from_the_start(nodes: Nodes, pods: Pods) -> None:
    scenario = replace(Scenario(nodes, pods), load=1.0)
    knowing = simulate(scenario, Run("kopt", 2, Expectation.TRACE))
    learning = simulate(scenario, Run("kopt", 2))
    assert knowing.allocated != learning.allocated or knowing.fragmented.tolist() != learning.fragmented.tolist()
