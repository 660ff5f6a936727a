"""Partitions get room where there is any; moves lose nothing and keep to their budget."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.policies.partitions.layouts import EMPTY, Instance, layouts_of
from kopt.policies.partitions.moves import consolidate, is_worth_moves, make_room
from kopt.policies.partitions.placement import POLICIES, Pool, UsableSlices
from kopt.simulator.partitions import PartitionStream, replay

H100 = mig_geometry(find_gpu("h100-80gb"))
LAYOUTS = layouts_of(H100)
pools = st.lists(st.integers(0, len(LAYOUTS) - 1), min_size=1, max_size=6).map(lambda numbers: np.array(numbers))
profiles = st.integers(0, len(H100.profiles) - 1)


def _held(pool: Pool) -> Counter[int]:
    """How many instances of each profile a pool has."""
    return Counter(profile for number in pool for profile, _ in LAYOUTS.layouts[number])


@pytest.mark.parametrize("name", POLICIES)
@given(pool=pools, profile=profiles)
def test_a_partition_is_placed_exactly_where_one_fits(name: str, pool: Pool, profile: int) -> None:
    placement = POLICIES[name](LAYOUTS).placement(profile, pool)
    assert (placement is not None) == bool((LAYOUTS.capacity[pool, profile] > 0).any())
    if placement is not None:
        added: Instance = profile, placement.start
        assert Counter(LAYOUTS.layouts[placement.layout]) == Counter([*LAYOUTS.layouts[pool[placement.gpu]], added])


@given(pool=pools, profile=profiles, most=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_room_is_made_by_few_moves_that_lose_nothing(pool: Pool, profile: int, most: int) -> None:
    policy = UsableSlices(LAYOUTS)
    before = pool.copy()
    if policy.placement(profile, pool) is not None:
        return
    relocation = make_room(policy, profile, pool, most)
    assert (pool == before).all()
    if relocation is None:
        return
    assert 1 <= len(relocation.moves) <= most
    assert _held(relocation.pool) == _held(pool) + Counter([profile])
    assert relocation.pool[relocation.placement.gpu] == relocation.placement.layout


@given(pool=pools)
@settings(deadline=None)
def test_one_move_against_fragmentation_loses_nothing_and_gains_a_slice(pool: Pool) -> None:
    policy = UsableSlices(LAYOUTS)
    if (better := consolidate(policy, pool)) is not None:
        move, after = better
        assert move.source != move.target
        assert _held(after) == _held(pool)
        assert policy.cost[after].sum() <= policy.cost[pool].sum() - 1


def test_room_for_a_half_is_made_by_moving_what_lies_across() -> None:
    one, three = H100.index("1g.10gb"), H100.index("3g.40gb")
    layouts = {layout: number for number, layout in enumerate(LAYOUTS.layouts)}
    pool = np.array([layouts[((one, 0), (one, 4))], layouts[((one, 0), (three, 4))]])
    assert UsableSlices(LAYOUTS).placement(three, pool) is None
    relocation = make_room(UsableSlices(LAYOUTS), three, pool, 2)
    assert relocation is not None
    assert len(relocation.moves) == 1


def test_a_whole_gpu_is_not_worth_moves() -> None:
    worth = [H100.profiles[at].name for at in range(len(H100.profiles)) if is_worth_moves(LAYOUTS, at)]
    assert worth == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]


@pytest.mark.parametrize("name", ["kopt", "first-fit", "best-fit"])
def test_seven_small_ones_fill_a_gpu_before_the_next_is_broken(name: str) -> None:
    policy, pool = POLICIES[name](LAYOUTS), np.full(3, EMPTY)
    for _ in range(7):
        placement = policy.placement(H100.index("1g.10gb"), pool)
        assert placement is not None
        pool[placement.gpu] = placement.layout
    assert sorted(LAYOUTS.used_slices[pool]) == [0, 0, 7]


def _stream(**options: float) -> PartitionStream:
    mix = {profile.name: 1.0 for profile in H100.profiles}
    return PartitionStream(H100, 20, mix, 1.0, requests=3_000, **options)  # type: ignore[arg-type]


def test_the_policy_accepts_more_than_first_fit_and_more_with_moves() -> None:
    first, ours, moved = (
        np.mean([replay(_stream(moves_per_request=moves), name, seed).accepted for seed in (1, 2, 3)])
        for name, moves in (("first-fit", 0), ("kopt", 0), ("kopt", 0.05))
    )
    assert first + 0.01 < ours < moved


def test_moves_keep_to_their_budget_and_a_seed_gives_the_same_run() -> None:
    run = replay(_stream(moves_per_request=0.02), "kopt", random.Random(5).randrange(100))
    assert 0 < run.moves_per_request <= 0.02
    assert run == replay(_stream(moves_per_request=0.02), "kopt", run.seed)
    assert 0 < run.slices_used < 1


@pytest.mark.parametrize(
    "options", [{"mix": {}}, {"mix": {"1g.10gb": -1.0}}, {"load": 0.0}, {"gpus": 0}, {"moves_per_request": -1.0}]
)
def test_a_stream_that_cannot_be_is_refused(options: dict[str, object]) -> None:
    valid = {"geometry": H100, "gpus": 1, "mix": {"1g.10gb": 1.0}, "load": 1.0}
    with pytest.raises(ValueError):
        PartitionStream(**(valid | options))  # type: ignore[arg-type]
