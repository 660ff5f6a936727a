"""One winner for each pod, with its reasons."""

from collections.abc import Callable

import numpy as np
import pytest

from kopt.core.scheduling.placement import FleetNode, PodRequest, TopologyPreference
from kopt.core.units import GIB, Bytes
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import choose, explain
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.scores import SCORES, WEIGHTS
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.topology import GpuLinks, Topologies
from kopt.policies.placement.typical import TypicalPods

Make = Callable[..., PodRequest]
MakeNode = Callable[..., FleetNode]


@pytest.fixture
def cache(pod: Make) -> FragmentationCache:
    """Expects halves, whole GPUs and now and then eight of them."""
    return FragmentationCache(TypicalPods.learn([*[pod(4, milli=500)] * 10, *[pod(8)] * 10, pod(64, gpus=8)]))


def test_a_half_goes_beside_a_half_rather_than_onto_a_free_gpu(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("a"), node("b")])
    allocate(state, "b", [3], pod(4, milli=500))
    choice = choose(state, pod(4, milli=500), cache=cache)
    assert (choice.node, choice.gpus) == ("b", (3,))


def test_a_node_with_another_replica_of_the_service_costs_half_a_gpu(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("a"), node("b"), node("c")])
    assert choose(state, pod(4), cache=cache).node == "a"
    choice = choose(state, pod(4), cache=cache, apart=[0, 2])
    assert choice.node == "b"
    parts = {ranked.node: ranked.breakdown["apart"] for ranked in choice.runner_ups}
    assert (choice.breakdown["apart"], parts) == (0.0, {"a": -WEIGHTS["apart"], "c": -WEIGHTS["apart"]})


def test_of_one_tier_the_node_without_another_replica_is_chosen(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("a"), node("b"), node("c")])
    tiers = np.array([2, 1, 1], np.int8)
    assert choose(state, pod(4), cache=cache, tiers=tiers).node == "b"
    assert choose(state, pod(4), cache=cache, tiers=tiers, apart=[1]).node == "c"


def test_no_gpu_is_left_without_cpu_where_that_can_be_helped(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("scarce", cores=64), node("ample", cores=250)])
    assert choose(state, pod(60, milli=500), cache=cache).node == "ample"
    assert choose(state, pod(60, gpus=0), cache=cache).node == "ample"


def test_pods_without_gpus_go_where_the_gpus_are_taken(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("free"), node("full")])
    allocate(state, "full", range(8), pod(8, gpus=8))
    assert choose(state, pod(32, gpus=0), cache=cache).node == "full"


def test_the_last_room_for_eight_gpus_is_kept_while_such_pods_can_be_expected(pod: Make, node: MakeNode) -> None:
    typical = TypicalPods.learn([*[pod(1)] * 10, *[pod(64, gpus=8)] * 3])
    state = FleetState([node("whole"), node("open", cores=12)])
    allocate(state, "open", range(3), pod(3, gpus=3))
    kept = choose(state, pod(1), cache=FragmentationCache(typical))
    assert kept.node == "open"
    assert kept.breakdown["reserve"] == 0
    assert kept.runner_ups[0].breakdown["reserve"] < -0.1
    allocate(state, "open", range(3, 8), pod(5, gpus=5))
    assert choose(state, pod(1), cache=FragmentationCache(typical)).node == "whole", "nothing is refused to keep room"


def test_room_for_eight_gpus_costs_nothing_to_a_pod_on_eight(pod: Make, node: MakeNode) -> None:
    typical = TypicalPods.learn([*[pod(1)] * 10, *[pod(64, gpus=8)] * 3])
    choice = choose(FleetState([node("whole")]), pod(64, gpus=8), cache=FragmentationCache(typical))
    assert choice.node == "whole"
    assert choice.breakdown["reserve"] == 0


def test_pods_without_gpus_leave_the_larger_cpu_gaps(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("larger", gpus=0, cores=96), node("smaller", gpus=0, cores=64)])
    choice = choose(state, pod(4, gpus=0), cache=cache)
    assert choice.node == "smaller"
    assert choice.breakdown["cpu_fit"] > choice.runner_ups[0].breakdown["cpu_fit"]


def test_memory_that_is_not_there_is_not_given(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([FleetNode("n", 96_000, Bytes(6 * GIB), 8, "a100")])
    allocate(state, "n", [0], pod(1))
    assert choose(state, pod(1), cache=cache).rejected == {Refusal.MEMORY: 1}


def test_equal_nodes_are_told_apart_always_in_the_same_way(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node(f"n{i}") for i in range(50)])
    assert {choose(state, pod(4), cache=cache).node for _ in range(3)} == {"n0"}
    other = FragmentationCache(cache.typical)
    assert choose(state, pod(4), cache=other) == choose(state, pod(4), cache=cache)


def test_only_candidates_are_looked_at(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("a"), node("b"), node("c")])
    rows = np.array([state.row("c"), state.row("b")])
    choice = choose(state, pod(4), rows, cache=cache)
    assert choice.node in ("b", "c")
    assert choice.considered == 2
    assert choose(state, pod(4), np.array([], dtype=np.int64), cache=cache).node is None


def test_every_refusal_is_counted_under_its_reason(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState(
        [
            node("gone", ready=False),
            node("t4", model="t4"),
            node("small", gpus=1),
            node("busy"),
            node("taken"),
            node("fits", gpu_memory_bytes=80 << 30),
            node("none", gpus=0),
        ]
    )
    allocate(state, "busy", (), pod(95, gpus=0))
    allocate(state, "taken", range(7), pod(7, gpus=7))
    choice = choose(state, pod(4, gpus=2, models=("a100", "h100")), np.arange(state.rows), cache=cache)
    assert choice.node == "fits"
    assert dict(choice.rejected) == {
        Refusal.NOT_READY: 1,
        Refusal.GPU_MODEL: 2,
        Refusal.GPU_COUNT: 1,
        Refusal.CPU: 1,
        Refusal.GPU_FREE: 1,
    }
    assert choice.feasible == 1


def test_reasons_name_the_winner_the_next_and_what_spoke_against_the_rest(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("a"), node("b"), node("old", model="k80")])
    allocate(state, "b", [3], pod(4, milli=500))
    choice = choose(state, pod(4, milli=500, models=("a100",)), cache=cache)
    first, second, third = explain(choice)
    assert first.code == "BEST_NODE"
    assert "Node b, GPU 3: the best of 2 nodes with room for 4 CPU and 0.5 GPU (a100)" in first.message
    assert second.code == "RUNNER_UP"
    assert second.message.startswith("Node a scores")
    assert "mostly because of reserve" in second.message
    assert (third.code, third.numbers["nodes"]) == ("GPU_MODEL", 1)
    assert sum(choice.breakdown.values()) == pytest.approx(choice.score)


def test_a_pod_that_waits_is_told_what_it_waits_for(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("a", gpus=2)])
    allocate(state, "a", [0], pod(4, milli=500))
    waiting = explain(choose(state, pod(4, gpus=2), cache=cache))[0]
    assert waiting.code == "NO_NODE"
    assert "1 too little GPU left. It waits for room." in waiting.message
    never = explain(choose(state, pod(4, gpus=4), cache=cache))[0]
    assert "fewer GPUs than asked for. Request what a node has." in never.message
    assert "there are no nodes" in explain(choose(FleetState(), pod(), cache=cache))[0].message


def test_an_unhealthy_node_is_taken_last(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("ill", health=0.2), node("well")])
    allocate(state, "ill", [0], pod(4, milli=500))
    assert choose(state, pod(4, milli=500), cache=cache).node == "well"
    blind = {**WEIGHTS, "health": 0.0}
    assert choose(state, pod(4, milli=500), cache=cache, weights=blind).node == "ill"


def test_cost_counts_when_it_is_given_a_weight(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("dear", cost=3.0), node("cheap", cost=1.0)])
    assert choose(state, pod(4), cache=cache).node == "dear"
    assert choose(state, pod(4), cache=cache, weights={**WEIGHTS, "cost": 1.0}).node == "cheap"


def test_every_weight_belongs_to_a_score(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    assert set(WEIGHTS) == set(SCORES)
    with pytest.raises(ValueError, match="no score 'luck'"):
        choose(FleetState([node("a")]), pod(), cache=cache, weights={"luck": 1.0})


PAIRS = GpuLinks(
    tuple(tuple(300.0 if a // 2 == b // 2 and a != b else 0.0 for b in range(4)) for a in range(4)),
    (0, 0, 1, 1),
    (0, 0, 0, 0),
)
FLAT = GpuLinks(tuple(tuple(0.0 for _ in range(4)) for _ in range(4)), (0, 1, 2, 3), (0, 0, 1, 1))


def test_linked_gpus_are_preferred_and_named(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("flat", gpus=4, topology="flat"), node("pairs", gpus=4, topology="pairs")])
    allocate(state, "pairs", [0], pod(4, milli=500))
    wish = pod(4, gpus=2, topology=TopologyPreference.NVLINK_OPTIMAL)
    links = Topologies({"flat": FLAT, "pairs": PAIRS})
    choice = choose(state, wish, cache=cache, topologies=links)
    assert (choice.node, choice.gpus) == ("pairs", (2, 3))


def test_a_required_topology_refuses_nodes_that_cannot_keep_it(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState(
        [node("flat", gpus=4, topology="flat"), node("pairs", gpus=4, topology="pairs"), node("unknown", gpus=4)]
    )
    must = pod(4, gpus=2, topology=TopologyPreference.SAME_SWITCH, topology_required=True)
    links = Topologies({"flat": FLAT, "pairs": PAIRS})
    choice = choose(state, must, cache=cache, topologies=links)
    assert choice.node == "pairs"
    assert choice.rejected == {Refusal.TOPOLOGY: 2}
    allocate(state, "pairs", [0], pod(1))
    allocate(state, "pairs", [2], pod(1))
    assert choose(state, must, cache=cache, topologies=links).node is None
    assert choose(state, must, cache=cache).node is None, "without links nobody can promise"


def test_gpus_without_a_link_do_not_keep_a_required_nvlink(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("flat", gpus=4, topology="flat"), node("pairs", gpus=4, topology="pairs")])
    must = pod(4, gpus=2, topology=TopologyPreference.NVLINK_OPTIMAL, topology_required=True)
    links = Topologies({"flat": FLAT, "pairs": PAIRS})
    assert choose(state, must, cache=cache, topologies=links).rejected == {Refusal.TOPOLOGY: 1}
    four = pod(4, gpus=4, topology=TopologyPreference.NVLINK_OPTIMAL, topology_required=True)
    assert choose(state, four, cache=cache, topologies=links).node is None


@pytest.mark.parametrize(
    ("preference", "slots"),
    [
        (TopologyPreference.SAME_NUMA, {(0, 1), (2, 3)}),
        (TopologyPreference.SPREAD, {(0, 2), (0, 3), (1, 2), (1, 3)}),
    ],
)
def test_numa_nodes_are_shared_or_spread_over(
    pod: Make, node: MakeNode, cache: FragmentationCache, preference: TopologyPreference, slots: set[tuple[int, int]]
) -> None:
    state = FleetState([node("flat", gpus=4, topology="flat")])
    choice = choose(state, pod(1, gpus=2, topology=preference), cache=cache, topologies=Topologies({"flat": FLAT}))
    assert choice.gpus in slots
    assert choice.breakdown["topology"] == WEIGHTS["topology"]
