"""Waiting pods seen together: nobody loses what one by one would give, and more finds a place."""

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import GIB, Bytes, MilliGpu
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.joint import pack, upper_bound
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.typical import TypicalPods

Make = Callable[..., PodRequest]
FREE = st.lists(st.integers(0, 8), min_size=1, max_size=4)
SIZES = st.lists(st.sampled_from([0.3, 0.5, 1, 1, 2, 3, 4, 5, 8]), min_size=1, max_size=8)


def fleet(free: Sequence[int]) -> FleetState:
    """Nodes with 8 GPUs, so many of them free."""
    state = FleetState(FleetNode(f"n{i}", 96_000, Bytes(1024 * GIB), 8) for i in range(len(free)))
    for row, left in enumerate(free):
        allocate(state, row, range(8 - left), asking(8 - left, cpu_milli=0))
    return state


def asking(gpus: float, cpu_milli: int = 1000) -> PodRequest:
    share = GpuRequest(1, MilliGpu(round(1000 * gpus))) if 0 < gpus < 1 else GpuRequest(int(gpus))
    return PodRequest(cpu_milli, Bytes(0), share)


def cache_for(requests: Sequence[PodRequest]) -> FragmentationCache:
    return FragmentationCache(TypicalPods.learn(requests))


def numbers(state: FleetState) -> list[bytes]:
    return [
        state.gpu_free_milli.tobytes(),
        state.cpu_free_milli.tobytes(),
        state.memory_free_bytes.tobytes(),
        state.gpu_free_total.tobytes(),
    ]


@settings(max_examples=examples(60), deadline=None)
@given(FREE, SIZES)
def test_every_pod_that_had_a_place_alone_has_one_and_the_state_is_as_it_was(
    free: list[int], sizes: list[float]
) -> None:
    state, requests = fleet(free), [asking(size) for size in sizes]
    cache, before = cache_for(requests), numbers(state)
    alone, together = pack(state, requests, cache=cache, rounds=1), pack(state, requests, cache=cache)
    assert numbers(state) == before
    assert sorted(together.order) == list(range(len(requests)))
    assert all(
        new is not None for new, old in zip(together.placements, alone.placements, strict=True) if old is not None
    )
    assert alone.allocated <= together.allocated <= together.bound
    # No GPU is given twice, no node more than it has: the fleet takes them all.
    for one in together.order:
        taken = together.placements[one]
        if taken is not None:
            allocate(state, *taken, requests[one])
    assert (state.gpu_free_milli >= 0).all()


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_no_plan_at_all_exceeds_the_bound(free: list[int], sizes: list[int]) -> None:
    state, requests = fleet(free), [asking(size) for size in sizes]
    most = 0
    for places in itertools.product(range(-1, len(free)), repeat=len(sizes)):
        held = [sum(size for size, row in zip(sizes, places, strict=True) if row == node) for node in range(len(free))]
        if all(taken <= left for taken, left in zip(held, free, strict=True)):
            most = max(most, sum(held))
    assert 1000 * most <= upper_bound(state, requests)
    assert pack(state, requests, cache=cache_for(requests)).allocated <= 1000 * most


def test_a_large_pod_behind_small_ones_finds_its_place() -> None:
    """Best fit puts 3 beside 1 free and 2 beside 3: the pod on 4 behind them would wait."""
    state, requests = fleet([5, 4]), [asking(3), asking(2), asking(4)]
    cache = cache_for(requests)
    placed = [sum(one is not None for one in pack(state, requests, cache=cache, rounds=r).placements) for r in (1, 8)]
    assert placed[1] == 3
    assert pack(state, requests, cache=cache).allocated == pack(state, requests, cache=cache).bound


def test_only_the_rows_that_may_be_used_are() -> None:
    state, requests = fleet([8, 8]), [asking(8), asking(8)]
    packing = pack(state, requests, cache=cache_for(requests), candidates=np.array([1]))
    assert [one[0] if one else None for one in packing.placements] == [1, None]
    assert packing.bound == 8000


def test_where_all_have_a_place_alone_nothing_else_is_tried() -> None:
    state, requests = fleet([8, 8]), [asking(1)] * 8
    assert pack(state, requests, cache=cache_for(requests)).rounds == 1


@pytest.mark.parametrize("seed", range(3))
def test_on_a_nearly_full_fleet_bursts_fill_more_together_than_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    alone = together = bound = 0
    for _ in range(20):
        state = fleet([chance.choice([0, 0, 1, 2, 3, 4, 5, 6, 8]) for _ in range(30)])
        requests = [asking(chance.choice([0.5, 1, 1, 2, 2, 3, 4, 5, 8])) for _ in range(32)]
        cache = cache_for(requests)
        alone += pack(state, requests, cache=cache, rounds=1).allocated
        found = pack(state, requests, cache=cache)
        together, bound = together + found.allocated, bound + found.bound
    # One by one reaches 98 to 99 % of the bound already; a twentieth of what is missing, and more, is found.
    assert alone < together <= bound
    assert bound - together < 0.96 * (bound - alone)


@settings(max_examples=examples(40), deadline=None)
@given(FREE, st.lists(st.tuples(st.sampled_from([0.3, 0.5, 1, 2, 4]), st.integers(1, 60)), min_size=1, max_size=8))
def test_looking_up_what_a_like_node_was_worth_changes_no_decision(
    free: list[int], asked: list[tuple[float, int]]
) -> None:
    state, requests = fleet(free), [asking(size, 1000 * cores) for size, cores in asked]
    typical = TypicalPods.learn(requests)
    kept = FragmentationCache(typical)
    for _ in kept.prepare(state, requests[0], at_once=1):
        pass
    for request in requests:
        seen, anew = kept.outlook(state, request), FragmentationCache(typical).outlook(state, request)
        assert seen.refusal.tolist() == anew.refusal.tolist()
        fits = anew.refusal == 0
        assert seen.loss[fits].tolist() == anew.loss[fits].tolist()
        assert seen.slot[fits].tolist() == anew.slot[fits].tolist()
        assert seen.broken[fits].tolist() == anew.broken[fits].tolist()
        fresh = FragmentationCache(typical)
        fresh.outlook(state, request)
        assert kept.room.prices(state).tolist() == fresh.room.prices(state).tolist()
        packing = pack(state, [request], cache=kept)
        if packing.placements[0] is not None:
            allocate(state, *packing.placements[0], request)
