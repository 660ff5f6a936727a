"""The fleet's books: nothing is taken twice, and giving back restores them exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import Bytes, MilliGpu
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import best, choose, slots_for
from kopt.policies.placement.feasible import Refusal, capacity, refusals
from kopt.policies.placement.fragmentation import UsableTables, fragmented, gradient
from kopt.policies.placement.reserve import Room
from kopt.policies.placement.state import FleetState, PlacementError, allocate, occupy, release
from kopt.policies.placement.typical import TypicalPods

Make = Callable[..., PodRequest]
MakeNode = Callable[..., FleetNode]


def requests() -> st.SearchStrategy[PodRequest]:
    shares = st.sampled_from([50, 190, 320, 470, 500, 810, 1000])
    gpus = st.one_of(
        st.just(GpuRequest()),
        st.builds(lambda milli: GpuRequest(1, MilliGpu(milli)), shares),
        st.builds(lambda milli: GpuRequest(1, MilliGpu(milli), models=("t4",)), shares),
        st.builds(lambda count: GpuRequest(count), st.sampled_from([2, 4, 8])),
        st.builds(lambda count, milli: GpuRequest(count, MilliGpu(milli)), st.sampled_from([2, 4]), shares),
    )
    cpu = st.sampled_from([0, 500, 3152, 12_000, 40_000])
    return st.builds(PodRequest, cpu, st.sampled_from([Bytes(0), Bytes(1 << 30), Bytes(300 << 30)]), gpus)


HISTORY = [
    *[PodRequest(3_152, Bytes(0), GpuRequest(1, MilliGpu(810)))] * 3,
    *[PodRequest(11_300, Bytes(0), GpuRequest(1))] * 6,
    *[PodRequest(8_000, Bytes(0), GpuRequest(1, MilliGpu(470)))] * 3,
    PodRequest(64_000, Bytes(0), GpuRequest(8)),
    PodRequest(2_000, Bytes(0), GpuRequest(1, MilliGpu(190), models=("t4",))),
]


class Fleet(RuleBasedStateMachine):
    """Nodes come, change and go; pods are placed by the policy and released in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = FleetState([FleetNode("first", 96_000, Bytes(1 << 40), 8, "a100")])
        self.cache = FragmentationCache(TypicalPods.learn(HISTORY))
        self.holdings: list[tuple[str, tuple[int, ...], PodRequest]] = []

    @rule(
        number=st.integers(0, 5),
        gpus=st.sampled_from([0, 1, 2, 4, 8, 10]),
        cpu=st.sampled_from([8_000, 96_000]),
        model=st.sampled_from(["a100", "t4"]),
        ready=st.booleans(),
    )
    def add_node(self, number: int, gpus: int, cpu: int, model: str, ready: bool) -> None:
        name = f"node-{number}"
        if name not in {node for node, *_ in self.holdings}:
            self.state.set_node(FleetNode(name, cpu, Bytes(512 << 30), gpus, model, ready=ready))

    @rule(number=st.integers(0, 5))
    def remove_node(self, number: int) -> None:
        name = f"node-{number}"
        if name in self.state.index:
            self.state.remove_node(name)
            self.holdings = [one for one in self.holdings if one[0] != name]

    @rule(request=requests())
    def place_pod(self, request: PodRequest) -> None:
        choice = choose(self.state, request, cache=self.cache)
        fits = np.flatnonzero(refusals(self.state, request) == Refusal.NONE)
        assert (choice.node is None) == (len(fits) == 0)
        assert choice == choose(self.state, request, cache=self.cache), "the same question, another answer"
        if choice.node is not None:
            row = self.state.row(choice.node)
            assert row in fits
            assert best(self.state, request, cache=self.cache) == (row, choice.gpus)
            allocate(self.state, choice.node, choice.gpus, request)
            self.holdings.append((choice.node, choice.gpus, request))

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def release_pod(self, data: st.DataObject) -> None:
        release(self.state, *self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1))))

    @invariant()
    def nothing_is_taken_twice(self) -> None:
        state = self.state
        assert (state.cpu_free_milli >= 0).all()
        assert (state.memory_free_bytes >= 0).all()
        assert (state.gpu_free_milli >= 0).all()
        assert (state.gpu_free_milli <= 1000).all()

    @invariant()
    def the_books_are_those_of_the_pods_that_run(self) -> None:
        state = self.state
        for name, row in state.index.items():
            mine = [(gpus, request) for node, gpus, request in self.holdings if node == name]
            assert state.cpu_free_milli[row] == state.cpu_milli[row] - sum(request.cpu_milli for _, request in mine)
            free = [1000] * int(state.gpu_count[row]) + [0] * (state.slots - int(state.gpu_count[row]))
            for gpus, request in mine:
                for slot in gpus:
                    free[slot] -= request.gpus.share
            assert state.gpu_free_milli[row].tolist() == free
            assert state.gpu_free_total[row] == sum(free)

    @invariant()
    def what_is_cached_is_what_would_be_worked_out_anew(self) -> None:
        valuation = self.cache.valuation(self.state)
        for request in list(self.cache._outlooks):
            kept = self.cache.outlook(self.state, request)
            codes = refusals(self.state, request)
            assert kept.refusal.tolist() == codes.tolist()
            fits = np.flatnonzero(codes == Refusal.NONE)
            loss, slot = gradient(self.state, valuation, request, fits)
            np.testing.assert_allclose(kept.loss[fits], loss)
            assert kept.slot[fits].tolist() == slot.tolist()
        prices = self.cache.room.prices(self.state)
        np.testing.assert_allclose(prices, Room(self.cache.room.sizes).prices(self.state))


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=examples(20), stateful_step_count=20)


@given(request=requests(), more=requests())
def test_releasing_undoes_placing_exactly(request: PodRequest, more: PodRequest) -> None:
    state = FleetState([FleetNode("n", 200_000, Bytes(1 << 40), 16, "t4")])
    allocate(state, "n", tuple(range(more.gpus.count)), more)
    before = [column.copy() for column in state._columns()]
    gpus = tuple(range(8, 8 + request.gpus.count))
    allocate(state, "n", gpus, request)
    release(state, "n", gpus, request)
    for was, now in zip(before, state._columns(), strict=True):
        assert (was == now).all()


def test_more_than_is_left_is_refused_and_changes_nothing(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("n", gpus=2, cores=10)])
    allocate(state, "n", [0], pod(cores=4, milli=600))
    version = state.version
    for gpus, request in (
        ([0], pod(cores=1, milli=600)),
        ([1], pod(cores=7)),
        ([0, 1], pod(gpus=2)),
        ([1, 1], pod(gpus=2)),
        ([2], pod()),
        ([-1], pod()),
        ([], pod()),
    ):
        with pytest.raises(PlacementError):
            allocate(state, "n", gpus, request)
    assert state.version == version
    assert state.gpu_free_milli[0].tolist() == [400, 1000]
    assert state.cpu_free_milli[0] == 6_000


def test_more_than_was_placed_cannot_be_released(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("n", gpus=1)])
    with pytest.raises(PlacementError, match="more than it has"):
        release(state, "n", [0], pod())
    with pytest.raises(PlacementError, match="no node 'm'"):
        release(state, "m", [0], pod())


def test_a_pod_that_runs_already_is_booked_even_beyond_what_is_left(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("n", gpus=1, cores=2)])
    occupy(state, "n", [0], pod(cores=3))
    assert state.cpu_free_milli[0] == -1_000
    assert choose(state, pod(cores=0, gpus=0), cache=FragmentationCache(TypicalPods({}))).node is None
    release(state, "n", [0], pod(cores=3))
    assert state.gpu_free_milli[0, 0] == 1000


def test_a_node_that_changes_keeps_what_its_pods_hold(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("n", gpus=2, cores=10)])
    allocate(state, "n", [1], pod(cores=4, milli=300))
    state.set_node(node("n", gpus=4, cores=20))
    assert state.gpu_free_milli[0].tolist() == [1000, 700, 1000, 1000]
    assert state.cpu_free_milli[0] == 16_000
    state.set_node(node("n", gpus=1, cores=20))
    assert state.gpu_free_milli[0].tolist() == [1000, -300, 0, 0]
    release(state, "n", [1], pod(cores=4, milli=300))
    assert state.gpu_free_milli[0].tolist() == [1000, 0, 0, 0]


def test_a_long_absent_cache_is_told_to_start_again(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("a"), node("b")])
    cache = FragmentationCache(TypicalPods.learn(HISTORY))
    first = choose(state, pod(), cache=cache)
    version = state.version
    for _ in range(40_000):
        allocate(state, "a", [0], pod())
        release(state, "a", [0], pod())
    assert state.changed_since(version) is None
    for slot in range(8):
        allocate(state, str(first.node), [slot], pod())
    assert choose(state, pod(), cache=cache).node != first.node


@given(st.lists(st.integers(0, 10), min_size=8, max_size=8), st.sampled_from([2, 3]), st.sampled_from([200, 500, 700]))
def test_as_many_pods_find_room_as_are_counted(used: list[int], count: int, milli: int) -> None:
    """With the same share of several GPUs each, one after the other on the GPUs that are selected for them."""
    state = FleetState([FleetNode("one", 96_000, Bytes(1 << 40), 8, "a100")])
    for slot, tenths in enumerate(used):
        if tenths:
            allocate(state, "one", (slot,), PodRequest(0, Bytes(0), GpuRequest(1, MilliGpu(100 * tenths))))
    asked = PodRequest(0, Bytes(0), GpuRequest(count, MilliGpu(milli)))
    counted = int(capacity(state, asked)[0])
    for _ in range(counted):
        before = state.gpu_free_milli[0].tolist()
        allocate(state, "one", slots_for(state, 0, asked), asked)
        assert sum(left != had for left, had in zip(state.gpu_free_milli[0].tolist(), before, strict=True)) == count
    assert refusals(state, asked)[0] != Refusal.NONE


def test_what_a_share_of_several_gpus_costs_is_of_the_gpus_that_it_gets(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("n", gpus=3)])
    for slot in (0, 1):
        allocate(state, "n", [slot], pod(milli=500))
    asked = pod(gpus=2, milli=500)
    tables = UsableTables.build(TypicalPods.learn([pod(milli=1000)]), state.models, state.slots)
    loss, _ = gradient(state, tables, asked, np.array([0]))
    before = fragmented(state, tables)[0]
    allocate(state, "n", slots_for(state, 0, asked), asked)
    assert loss[0] == fragmented(state, tables)[0] - before == 0


def test_small_shares_of_several_gpus_are_counted_in_few_passes(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousandth of each of two GPUs, of which eight GPUs have 4000 each."""
    state = FleetState([node(f"n{number}") for number in range(100)])
    passes = 0
    minimum = np.minimum

    def counting(*args: Any, **more: Any) -> Any:
        nonlocal passes
        passes += 1
        return minimum(*args, **more)

    monkeypatch.setattr(np, "minimum", counting)
    asked = PodRequest(0, Bytes(0), GpuRequest(2, MilliGpu(1)))
    assert capacity(state, asked).tolist() == [4000] * 100
    assert passes < 30
