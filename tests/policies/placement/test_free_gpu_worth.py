"""What free GPUs are worth: the tables against plain recursion and plain counting."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import Bytes, MilliGpu
from kopt.policies.placement import expected_fill
from kopt.policies.placement.fragmentation import UsableTables
from kopt.policies.placement.reserve import Sizes
from kopt.policies.placement.typical import History, TypicalPods

Make = Callable[..., PodRequest]
MIX = st.lists(
    st.tuples(
        st.sampled_from([500, 1_500, 4_000, 12_000]), st.sampled_from([1, 2, 8]), st.sampled_from([110, 320, 810, 1000])
    ),
    min_size=1,
    max_size=6,
)


def learned(mix: list[tuple[int, int, int]]) -> TypicalPods:
    return TypicalPods.learn(
        PodRequest(cpu, Bytes(0), GpuRequest(count, MilliGpu(milli if count == 1 else 1000)))
        for cpu, count, milli in mix
    )


@settings(max_examples=examples(15))
@given(mix=MIX, cpu=st.integers(0, 24), milli=st.integers(0, 100))
def test_expected_fill_is_that_of_pods_offered_one_after_another(
    mix: list[tuple[int, int, int]], cpu: int, milli: int
) -> None:
    typical = learned(mix)
    tables = expected_fill.build(typical, ["m"], 8, 24_000)
    assert tables.cpu_step == 500

    @lru_cache(None)
    def fill(offers: int, steps: int, tens: int) -> float:
        if not offers:
            return 0.0
        total = fill(offers - 1, steps, tens)
        for (needed, count, share, _), weight in typical.weights.items():
            left, rest = steps - -(-needed // 500), tens - -(-share // 10)
            if count == 1 and left >= 0 and rest >= 0:
                taken = 10 * (tens - rest) + fill(offers - 1, left, rest)
                total += weight * (taken - fill(offers - 1, steps, tens))
        return total

    expected = 0.0
    for part in expected_fill.PARTS:
        at = min(cpu * part, expected_fill.CPU_ROWS - 1)
        low = min(int(at), expected_fill.CPU_ROWS - 2)
        over = at - low
        expected += fill(32, low, milli) * (1 - over) + fill(32, low + 1, milli) * over
    assert tables.gap[0, cpu, milli] == pytest.approx(expected / len(expected_fill.PARTS))


@given(
    mix=MIX, free=st.lists(st.sampled_from([0, 60, 190, 530, 1000]), min_size=4, max_size=4), cpu=st.integers(0, 60_000)
)
def test_usable_gpu_is_what_the_paper_counts(mix: list[tuple[int, int, int]], free: list[int], cpu: int) -> None:
    typical = learned(mix)
    tables = UsableTables.build(typical, ["m"], 4)
    expected = 0.0
    for (needed, count, share, _), weight in typical.weights.items():
        enough = [milli for milli in free if milli >= share]
        if needed <= cpu and len(enough) >= count:
            expected += weight * sum(enough)
    found = tables.values(np.array([0]), np.array([cpu]), np.array([free], dtype=np.int32))
    assert found[0] == pytest.approx(expected)


@settings(max_examples=examples(20))
@given(mix=MIX, free=st.lists(st.integers(0, 1000), min_size=4, max_size=4), cpu=st.integers(0, 60_000))
def test_nodes_are_worth_no_more_than_their_free_gpus(
    mix: list[tuple[int, int, int]], free: list[int], cpu: int
) -> None:
    tables = expected_fill.build(learned(mix), ["m"], 4, 60_000)
    worth = tables.values(np.array([0]), np.array([cpu]), np.array([free], dtype=np.int32))[0]
    assert 0 <= worth <= sum(free) + 1e-6
    none = tables.values(np.array([0]), np.array([cpu]), np.zeros((1, 4), dtype=np.int32))[0]
    assert none == 0


def test_gpus_are_worth_nothing_to_pods_that_want_another_model(pod: Make) -> None:
    tables = expected_fill.build(TypicalPods.learn([pod(1, models=("h100",))]), ["t4", "h100"], 8, 96_000)
    free = np.full((2, 8), 1000, dtype=np.int32)
    worth = tables.values(np.array([0, 1]), np.array([96_000, 96_000]), free)
    assert worth[0] == 0
    assert worth[1] > 7_900


def test_a_fleet_that_nothing_is_known_of_has_tables_too() -> None:
    tables = expected_fill.build(TypicalPods({}), [], 0, 0)
    assert tables.values(np.array([-1]), np.array([0]), np.zeros((1, 0), dtype=np.int32)).tolist() == [0]


def test_a_site_costs_its_gpus_when_few_are_left_and_nothing_while_there_are_plenty(pod: Make) -> None:
    sizes = Sizes.of(TypicalPods.learn([*[pod(1)] * 99, pod(64, gpus=8), *[pod(2, milli=500)] * 20]))
    assert sizes.gpus.tolist() == [8]
    short, plenty = (float(sizes.prices(1_000, np.array([left]))[0]) for left in (2, 60))
    assert short == pytest.approx(8, abs=0.1)
    assert plenty == pytest.approx(0, abs=1e-3)
    assert sizes.sites(np.array([8, 7, 8, 17]), np.array([64_000, 96_000, 63_000, 128_000]))[:, 0].tolist() == [
        1,
        0,
        0,
        2,
    ]


def test_history_asks_to_be_learned_from_at_every_doubling(pod: Make) -> None:
    history = History(first=2, every=8)
    due = [number for number in range(1, 41) if history.add(pod(number % 3))]
    assert due == [2, 4, 8, 16, 24, 32, 40]
    assert sum(history.typical().weights.values()) == pytest.approx(1)


def test_rare_kinds_are_left_out_and_cpu_pods_counted_apart(pod: Make) -> None:
    typical = TypicalPods.learn([*[pod(1)] * 3, *[pod(2)] * 2, pod(3), *[pod(4, gpus=0)] * 6], most=2)
    assert {key[0]: weight for key, weight in typical.weights.items()} == {1000: 0.6, 2000: 0.4}
    assert typical.cpu_only == 0.5


def test_shares_of_several_gpus_are_worth_as_shares_and_not_as_whole_gpus() -> None:
    several = TypicalPods.learn([PodRequest(1000, Bytes(0), GpuRequest(2, MilliGpu(500)))])
    one = TypicalPods.learn([PodRequest(1000, Bytes(0), GpuRequest(1, MilliGpu(500)))])
    tables, expected = (expected_fill.build(typical, ["m"], 8, 24_000) for typical in (several, one))
    np.testing.assert_array_equal(tables.gap, expected.gap)
    assert not tables.bonus.any()
