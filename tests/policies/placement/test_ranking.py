"""The order of the nodes, what is said of it, and which GPUs are named."""

from collections.abc import Callable

import numpy as np
import pytest
from node_outputs import CUBE_MESH

from kopt.core.hardware.bandwidth import BandwidthKind, BandwidthMinimum
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.core.scheduling.placement import FleetNode, PodRequest, TopologyPreference
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import best, choose, explain, slots_for
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.links import links_of
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.topology import Topologies
from kopt.policies.placement.typical import TypicalPods

Make = Callable[..., PodRequest]
MakeNode = Callable[..., FleetNode]
BY_COST = {"cost": 1.0}


@pytest.fixture
def cache(pod: Make) -> FragmentationCache:
    return FragmentationCache(TypicalPods.learn([*[pod(4)] * 10, pod(64, gpus=8)]))


def priced(node: MakeNode, costs: list[float]) -> FleetState:
    return FleetState([node(f"n{number}", cost=cost) for number, cost in enumerate(costs)])


@pytest.mark.parametrize("nodes", [7, 255, 256, 257, 400])
def test_the_best_four_are_named_in_order_and_the_first_rows_among_equals(
    pod: Make, node: MakeNode, cache: FragmentationCache, nodes: int
) -> None:
    costs = [3.0] * nodes
    costs[-1], costs[2], costs[4] = 1.0, 2.0, 2.0
    choice = choose(priced(node, costs), pod(1), cache=cache, weights=BY_COST)
    assert [choice.node, *(other.node for other in choice.runner_ups)] == [f"n{nodes - 1}", "n2", "n4", "n0"]
    assert [other.score for other in choice.runner_ups] == pytest.approx([-2 / 3, -2 / 3, -1.0])
    assert (choice.considered, choice.feasible) == (nodes, nodes)


def test_in_a_large_fleet_better_nodes_come_first_wherever_they_stand(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    costs = [float(5 + number % 7) for number in range(300)]
    costs[299], costs[150], costs[10], costs[200], costs[20] = 1.0, 2.0, 3.0, 4.0, 4.0
    choice = choose(priced(node, costs), pod(1), cache=cache, weights=BY_COST)
    assert [choice.node, *(other.node for other in choice.runner_ups)] == ["n299", "n150", "n10", "n20"]


def test_the_best_is_what_choose_names(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = priced(node, [3.0, 1.0, 2.0])
    assert best(state, pod(1), cache=cache, weights=BY_COST) == (state.row("n1"), (0,))
    candidates = np.array([state.row(name) for name in ["n0", "n2"]], dtype=np.int64)
    assert best(state, pod(1), cache=cache, weights=BY_COST, candidates=candidates) == (state.row("n2"), (0,))
    assert best(state, pod(1), cache=cache, candidates=candidates[:0]) is None
    assert best(state, pod(200), cache=cache) is None
    state.set_node(node("n1", cost=1.0, ready=False))
    assert best(state, pod(1), cache=cache, weights=BY_COST) == (state.row("n2"), (0,))


def test_numbers_for_programs_say_what_the_sentences_say(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("dear", cost=4.0), node("cheap", cost=1.0), node("old", model="k80")])
    weights = {"cost": 2.0, "health": 8.0}
    first, second, third = explain(choose(state, pod(1, models=("a100",)), cache=cache, weights=weights))
    parts = {"cost": -0.5, "health": 8.0}
    assert first.numbers == {"node": "cheap", "score": 7.5, "feasible": 2, **parts}
    assert first.message.endswith("score 7.500 GPUs (cost -0.500, health +8.000).")
    assert second.numbers == {"node": "dear", "score": 6.0, "cost": -2.0, "health": 8.0}
    assert second.message == "Node dear scores 1.500 GPUs less, mostly because of cost."
    assert third.message == "1 node: another GPU model than asked for."
    (none,) = explain(choose(state, pod(1, models=("h100",)), cache=cache))
    assert none.numbers == {"considered": 3}


def test_a_pod_without_gpus_is_told_of_none(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    first, *_ = explain(choose(FleetState([node("a")]), pod(2, gpus=0), cache=cache))
    assert first.message.startswith("Node a: the only node with room for 2 CPU, score ")
    (none,) = explain(choose(FleetState([node("a")]), pod(97.5, gpus=0), cache=cache))
    assert none.message == "The only node has no room for 97.5 CPU: 1 too little CPU left. It waits for room."


@pytest.mark.parametrize(
    ("gpus", "milli", "models", "phrase"),
    [
        (2, 1000, (), "1 CPU and 2 GPU: "),
        (1, 250, (), "1 CPU and 0.25 GPU: "),
        (2, 1000, ("h100", "h200"), "1 CPU and 2 GPU (h100 or h200): "),
    ],
)
def test_what_was_asked_for_is_said(
    pod: Make, cache: FragmentationCache, gpus: int, milli: int, models: tuple[str, ...], phrase: str
) -> None:
    (reason,) = explain(choose(FleetState(), pod(1, gpus, milli, models), cache=cache))
    assert reason.message == f"None of 0 nodes has room for {phrase}there are no nodes. Request what a node has."


def test_several_refusals_are_all_said(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("a", gpus=1), node("b", gpus=1), node("c", cores=1)])
    (reason,) = explain(choose(state, pod(4, gpus=2), cache=cache))
    assert ": 2 fewer GPUs than asked for; 1 too little CPU left. It waits for room." in reason.message


def test_nodes_that_are_not_ready_are_no_candidates_unless_named(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("a"), node("b", ready=False)])
    assert choose(state, pod(1), cache=cache).considered == 1
    choice = choose(state, pod(1), np.array([state.row(name) for name in ["b"]], dtype=np.int64), cache=cache)
    assert (choice.node, choice.rejected) == (None, {Refusal.NOT_READY: 1})


MESH = links_of(
    NodeTopology(
        "mesh",
        tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=index // 4) for index in range(8)),
        tuple(
            TopologyLink(a, b, LinkType.NVLINK, CUBE_MESH[a, b])
            if (a, b) in CUBE_MESH
            else TopologyLink(a, b, LinkType.SYS)
            for a in range(8)
            for b in range(a + 1, 8)
        ),
    )
)


def asking(pod: Make, gpus: int, gigabytes: float | None, **more: object) -> PodRequest:
    minimum = None if gigabytes is None else BandwidthMinimum(BandwidthKind.LINK, gigabytes)
    return pod(1, gpus=gpus, minimum=minimum, **more)


def test_a_minimum_refuses_nodes_that_cannot_reach_it_only_where_it_is_asked_for(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("unknown", cost=2.0), node("mesh", topology="mesh", cost=1.0)])
    links = Topologies({"mesh": MESH})

    def choice(gigabytes: float | None, gpus: int = 4, **more: object) -> tuple[str | None, dict[Refusal, int]]:
        result = choose(state, asking(pod, gpus, gigabytes, **more), cache=cache, topologies=links, weights=BY_COST)
        return result.node, dict(result.rejected)

    assert choice(None) == ("mesh", {})
    assert choice(200.0) == ("mesh", {})
    assert choice(201.0) == ("unknown", {Refusal.TOPOLOGY: 1}), "what is not known does not refuse"
    assert choice(201.0, topology_required=True) == (None, {Refusal.TOPOLOGY: 2})
    assert choice(201.0, gpus=1) == ("mesh", {}), "a single GPU has none to talk to"
    assert choice(201.0, gpus=1, topology_required=True) == ("mesh", {})
    assert choice(400.0, gpus=2) == ("unknown", {Refusal.TOPOLOGY: 1})
    assert choice(None, topology_required=True) == ("mesh", {}), "no preference that could be kept"
    without = choose(state, asking(pod, 4, 200.0), cache=cache, weights=BY_COST)
    assert (without.node, dict(without.rejected)) == ("mesh", {}), "no links are known"
    must = asking(pod, 4, 200.0, topology_required=True)
    assert choose(state, must, cache=cache).rejected == {Refusal.TOPOLOGY: 2}


def test_refusals_for_topology_are_counted_beside_the_others(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("small", gpus=2), node("mesh", topology="mesh"), node("unknown"), node("unknown too")])
    links = Topologies({"mesh": MESH})
    must = asking(pod, 4, 200.0, topology_required=True)
    choice = choose(state, must, cache=cache, topologies=links)
    assert (choice.node, choice.gpus) == ("mesh", (0, 1, 2, 3))
    assert dict(choice.rejected) == {Refusal.GPU_COUNT: 1, Refusal.TOPOLOGY: 2}
    assert choice.feasible == 1


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_preference_ranks_pods_on_several_gpus_only(
    pod: Make, node: MakeNode, cache: FragmentationCache, gpus: int
) -> None:
    state = FleetState([node("unknown", cost=1.0), node("mesh", topology="mesh", cost=1.1)])
    wish = pod(1, gpus=gpus, topology=TopologyPreference.NVLINK_OPTIMAL, topology_required=gpus == 1)
    weights = {"topology": 2.0, "cost": 1.0}
    choice = choose(state, wish, cache=cache, topologies=Topologies({"mesh": MESH}), weights=weights)
    assert (choice.node, choice.gpus) == (("unknown", (0,)) if gpus == 1 else ("mesh", (0, 3)))
    assert choice.breakdown["topology"] == (0.0 if gpus == 1 else 2.0)


def test_a_required_nvlink_is_kept_by_slower_links_too(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("mesh", topology="mesh")])
    allocate(state, "mesh", range(2, 8), pod(1, gpus=6))
    must = pod(1, gpus=2, topology=TopologyPreference.NVLINK_OPTIMAL, topology_required=True)
    choice = choose(state, must, cache=cache, topologies=Topologies({"mesh": MESH}), weights={"topology": 1.0})
    assert (choice.node, choice.gpus) == ("mesh", (0, 1))
    assert 0 < choice.score < 1


def test_links_say_nothing_of_which_gpu_a_share_is_on(pod: Make, node: MakeNode) -> None:
    cache = FragmentationCache(TypicalPods.learn([*[pod(4, milli=500)] * 10, *[pod(8)] * 10]))
    state = FleetState([node("mesh", topology="mesh")])
    allocate(state, "mesh", [3], pod(4, milli=500))
    share = pod(4, milli=500)
    assert choose(state, share, cache=cache, topologies=Topologies({"mesh": MESH})).gpus == (3,)


def test_of_nodes_that_keep_a_preference_each_has_its_own_rating(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("ill", topology="mesh", degraded=True), node("none"), node("mesh", topology="mesh")])
    wish = pod(1, gpus=2, topology=TopologyPreference.NVLINK_OPTIMAL)
    choice = choose(state, wish, cache=cache, topologies=Topologies({"mesh": MESH}), weights={"topology": 1.0})
    assert (choice.node, choice.score) == ("mesh", 1.0)
    assert [(other.node, other.score) for other in choice.runner_ups] == [("none", 0.0)]
    assert choice.rejected == {Refusal.DEGRADED: 1}
    assert best(state, wish, cache=cache, topologies=Topologies({"mesh": MESH})) == (state.row("mesh"), (0, 3))


def test_lower_tiers_come_first_and_scores_count_within_one(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = priced(node, [1.0, 3.0, 2.0, 9.0])
    tiers = np.zeros(state.rows, np.int8)
    tiers[state.row("n0")], tiers[state.row("n3")] = 2, 1
    choice = choose(state, pod(1), cache=cache, tiers=tiers, weights=BY_COST)
    assert [choice.node, *(other.node for other in choice.runner_ups)] == ["n2", "n1"]
    assert choice.rejected == {Refusal.ELSEWHERE: 2}
    assert choice.impaired == ()


def test_the_degraded_nodes_with_room_are_named_up_to_four(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node(f"n{number}", degraded=True, cost=6.0 - number) for number in range(6)])
    choice = choose(state, pod(1, gpus=2), cache=cache, weights=BY_COST)
    assert choice.node == "n5"
    assert choice.impaired == ("n5", "n0", "n1", "n2", "n3"), "the chosen one in front"
    assert choice.rejected == {}
    state = FleetState([node("a", degraded=True), node("well"), node("c", degraded=True)])
    choice = choose(state, pod(1, gpus=2), cache=cache)
    assert (choice.node, choice.impaired) == ("well", ("a", "c"))
    assert choose(state, pod(1, gpus=0), cache=cache).impaired == ()


def test_a_single_gpu_of_a_gang_feels_every_degraded_part(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("a", degraded=True, cost=2.0), node("b", degraded=True, cost=1.0)])
    tiers = np.zeros(state.rows, np.int8)
    gang = choose(state, pod(1), cache=cache, weights=BY_COST, tiers=tiers)
    assert (gang.node, gang.impaired) == ("b", ("b", "a"))
    assert choose(state, pod(1), cache=cache, weights=BY_COST).impaired == ()


def test_degraded_nodes_are_named_where_none_can_keep_a_topology(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("ill", degraded=True), node("well"), node("full")])
    allocate(state, "full", range(8), pod(1, gpus=8))
    must = pod(1, gpus=2, topology=TopologyPreference.SAME_NUMA, topology_required=True)
    choice = choose(state, must, cache=cache)
    assert (choice.node, choice.impaired) == (None, ("ill",))
    assert choice.rejected == {Refusal.GPU_FREE: 1, Refusal.TOPOLOGY: 2}
    assert choice.request is must
    assert (choice.considered, choice.feasible) == (3, 0)


def test_healthy_slots_are_named_first_then_the_preferred_then_for_a_share_the_fullest(
    pod: Make, node: MakeNode
) -> None:
    state = FleetState([node("n", gpus=4, degraded=True, poor=0b0001)])
    row = state.row("n")
    allocate(state, row, [2], pod(1, milli=500))
    allocate(state, row, [3], pod(1, milli=300))
    share = pod(1, milli=400)
    assert slots_for(state, row, share) == (2,)
    assert slots_for(state, row, share, preferred=1) == (1,)
    assert slots_for(state, row, share, preferred=0) == (2,), "the preferred one is degraded"
    assert slots_for(state, row, pod(1, milli=600)) == (3,), "too little is left on the fullest"
    assert slots_for(state, row, pod(1)) == (1,)
    assert slots_for(state, row, pod(1, gpus=2)) == (1, 0)


def test_without_degraded_slots_the_preferred_one_is_named_else_the_first_with_enough(
    pod: Make, node: MakeNode
) -> None:
    state = FleetState([node("n", gpus=4)])
    allocate(state, "n", [0], pod(1, milli=500))
    assert slots_for(state, 0, pod(1, milli=500), preferred=2) == (2,)
    assert slots_for(state, 0, pod(1, milli=500), preferred=0) == (0,)
    assert slots_for(state, 0, pod(1, milli=500)) == (0,)
    assert slots_for(state, 0, pod(1, gpus=2)) == (1, 2)
