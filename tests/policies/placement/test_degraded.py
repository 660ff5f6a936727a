"""A degraded node is avoided by pods that would feel it, and taken where nothing else is left."""

from collections.abc import Callable

import numpy as np
import pytest

from kopt.core.hardware.bandwidth import BandwidthKind, BandwidthMinimum
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import best, choose
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.typical import TypicalPods

Make = Callable[..., PodRequest]
MakeNode = Callable[..., FleetNode]
MINIMUM = BandwidthMinimum(BandwidthKind.LINK, 100.0)


@pytest.fixture
def cache(pod: Make) -> FragmentationCache:
    return FragmentationCache(TypicalPods.learn([pod(4)] * 10))


def two(node: MakeNode, poor: int = 0) -> FleetState:
    """The degraded one is fuller, so that it would be taken for its score."""
    state = FleetState([node("well"), node("ill", degraded=True, poor=poor)])
    allocate(state, "ill", [6, 7], PodRequest(gpus=GpuRequest(2)))
    return state


def test_gpus_that_talk_to_each_other_go_to_the_healthy_node(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = two(node)
    choice = choose(state, pod(gpus=4), cache=cache)
    assert choice.node == "well"
    assert choice.impaired == ("ill",)
    assert choice.rejected == {Refusal.DEGRADED: 1}
    assert choice.feasible == 1
    assert best(state, pod(gpus=4), cache=cache) == (state.index["well"], (0, 1, 2, 3))


def test_the_degraded_node_is_taken_where_nothing_else_fits(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = two(node)
    allocate(state, "well", range(5), pod(gpus=5))
    choice = choose(state, pod(gpus=4), cache=cache)
    assert (choice.node, choice.impaired, dict(choice.rejected)) == ("ill", ("ill",), {Refusal.GPU_FREE: 1})


def test_a_single_gpu_does_not_care_unless_it_is_its_own(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = two(node, poor=0b000001)
    choice = choose(state, pod(gpus=1), cache=cache)
    assert (choice.node, choice.gpus, choice.impaired) == ("ill", (1,), ())
    share = choose(state, pod(gpus=1, milli=300), cache=cache)
    assert (share.node, share.gpus) == ("ill", (1,))
    allocate(state, "ill", range(1, 6), pod(gpus=5))
    choice = choose(state, pod(gpus=1), cache=cache)
    assert (choice.node, choice.impaired) == ("well", ("ill",))
    allocate(state, "well", range(8), pod(gpus=8))
    choice = choose(state, pod(gpus=1), cache=cache)
    assert (choice.node, choice.gpus) == ("ill", (0,))


def test_a_single_gpu_of_a_gang_or_with_a_minimum_does_care(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = two(node)
    assert choose(state, pod(gpus=1), cache=cache).node == "ill"
    assert choose(state, pod(gpus=1, minimum=MINIMUM), cache=cache).node == "well"
    assert choose(state, pod(gpus=1), cache=cache, tiers=np.zeros(state.rows, np.int8)).node == "well"


def test_of_a_gang_those_near_it_come_first_and_health_before_that(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node("far"), node("near"), node("ill", degraded=True)])
    tiers = np.array([2 if name == "far" else 0 for name in state.names], np.int8)
    choice = choose(state, pod(gpus=8), cache=cache, tiers=tiers)
    assert choice.node == "near"
    assert choice.rejected == {Refusal.DEGRADED: 1, Refusal.ELSEWHERE: 1}
    allocate(state, "near", range(8), pod(gpus=8))
    assert choose(state, pod(gpus=8), cache=cache, tiers=tiers).node == "far"


def test_a_row_that_is_used_again_is_healthy(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("ill", degraded=True, poor=3)])
    state.remove_node("ill")
    state.set_node(node("new"))
    choice = choose(state, pod(gpus=2), cache=cache)
    assert (choice.node, choice.impaired) == ("new", ())


def test_where_every_node_is_degraded_those_left_out_are_further_from_the_gang(
    pod: Make, node: MakeNode, cache: FragmentationCache
) -> None:
    state = FleetState([node(name, degraded=True) for name in ("far", "near", "farther")])
    tiers = np.array([{"far": 1, "near": 0, "farther": 2}[name] for name in state.names], np.int8)
    choice = choose(state, pod(gpus=2), cache=cache, tiers=tiers)
    assert (choice.node, choice.rejected) == ("near", {Refusal.ELSEWHERE: 2})


def test_a_pod_without_gpus_does_not_care_even_in_a_gang(pod: Make, node: MakeNode, cache: FragmentationCache) -> None:
    state = FleetState([node("well", cores=96), node("ill", cores=48, degraded=True)])
    choice = choose(state, pod(gpus=0), cache=cache, tiers=np.zeros(state.rows, np.int8), weights={"cpu_fit": 1.0})
    assert (choice.node, choice.rejected, choice.impaired) == ("ill", {}, ())


@pytest.mark.parametrize("gpus", [62, 63, 80])
def test_gpus_of_the_largest_nodes_are_told_apart_too(
    pod: Make, node: MakeNode, cache: FragmentationCache, gpus: int
) -> None:
    state = FleetState([node("n", gpus=gpus, degraded=True, poor=0b11)])
    choice = choose(state, pod(gpus=1), cache=cache)
    assert (choice.gpus, choice.impaired) == ((2,), ())
    allocate(state, "n", range(2, gpus), pod(gpus=gpus - 2))
    choice = choose(state, pod(gpus=1), cache=cache)
    assert (choice.gpus, choice.impaired) == ((0,), ("n",))
