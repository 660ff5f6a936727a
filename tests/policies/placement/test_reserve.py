"""Room for pods on several GPUs: sites, their prices, and what a pod breaks up."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.policies.placement import state as state_module
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.reserve import Room, Sizes
from kopt.policies.placement.state import FleetState, allocate, release
from kopt.policies.placement.typical import TypicalPods

Make = Callable[..., PodRequest]
MakeNode = Callable[..., FleetNode]


@pytest.fixture
def sizes(pod: Make) -> Sizes:
    """Of ten pods five are on one GPU, one on half of one, three on four, with little or much CPU, and one on eight."""
    fours = [pod(8, gpus=4), pod(16, gpus=4), pod(32, gpus=4)]
    return Sizes.of(TypicalPods.learn([*[pod(4)] * 5, pod(2, milli=500), *fours, pod(64, gpus=8), *[pod(1, gpus=0)]]))


@pytest.fixture
def fleet(node: MakeNode) -> FleetState:
    return FleetState([node(f"n{number}", cores=96) for number in range(12)])


def test_sizes_are_how_often_pods_on_several_gpus_come_and_what_cpu_they_need(sizes: Sizes) -> None:
    assert sizes.gpus.tolist() == [4, 8]
    assert sizes.chance.tolist() == pytest.approx([0.3, 0.1])
    assert sizes.cpu_milli.tolist() == [32_000, 64_000]
    assert sizes.mean_gpus == pytest.approx((5 * 1 + 0.5 + 3 * 4 + 8) / 10)


@pytest.mark.parametrize(
    ("many", "few", "cpu_milli"), [(4, 1, 8_000), (3, 1, 16_000), (79, 21, 16_000), (8, 2, 8_000), (7, 2, 16_000)]
)
def test_the_cpu_of_a_size_is_what_four_of_five_such_pods_do_not_exceed(
    pod: Make, many: int, few: int, cpu_milli: int
) -> None:
    history = [*[pod(8, gpus=2)] * many, *[pod(16, gpus=2)] * few]
    assert Sizes.of(TypicalPods.learn(history)).cpu_milli.tolist() == [cpu_milli]


def test_a_fleet_without_pods_on_several_gpus_has_no_sizes(pod: Make) -> None:
    sizes = Sizes.of(TypicalPods.learn([pod(4)]))
    assert (sizes.gpus.size, sizes.chance.size, sizes.cpu_milli.size) == (0, 0, 0)


def test_a_site_has_its_gpus_and_the_cpu_for_them(sizes: Sizes) -> None:
    whole, cpu = np.array([8, 8, 8, 7, 3, 16]), np.array([96_000, 63_999, 31_999, 96_000, 96_000, -5])
    assert sizes.sites(whole, cpu).tolist() == [[2, 1], [1, 0], [0, 0], [1, 0], [0, 0], [0, 0]]


def test_a_size_that_needs_no_cpu_has_as_many_sites_as_groups_of_gpus(pod: Make) -> None:
    sizes = Sizes.of(TypicalPods.learn([pod(0, gpus=2)]))
    assert sizes.sites(np.array([8, 3]), np.array([1000, 1]))[:, 0].tolist() == [4, 1]
    assert sizes.sites(np.array([8]), np.array([2])).tolist() == [[2]]


def test_a_size_that_needs_next_to_no_cpu_needs_some_all_the_same(pod: Make) -> None:
    for cores in (0, 0.001):
        sizes = Sizes.of(TypicalPods.learn([pod(cores, gpus=2)]))
        assert sizes.sites(np.array([8, 8]), np.array([0, 3]))[:, 0].tolist() == [0, 3]
        nodes = [FleetNode(f"n{milli}", milli, pod().memory_bytes, 8) for milli in (0, 3)]
        state, room = FleetState(nodes), Room(sizes)
        assert room.prices(state).tolist() == sizes.prices(16.0, np.array([3])).tolist()


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4, 8])
def test_a_price_follows_from_the_pods_to_be_expected_until_the_free_gpus_are_used_up(sizes: Sizes, left: int) -> None:
    prices = sizes.prices(20.0, np.array([left, left]))
    for size, (gpus, chance) in enumerate([(4, 0.3), (8, 0.1)]):
        expected = chance * 20.0 / 2.55
        short = (expected + math.sqrt(expected) - left) / math.sqrt(expected + 1)
        assert prices[size] == pytest.approx(gpus / (1 + math.exp(-1.7 * short)))


def test_where_most_pods_share_a_gpu_more_of_them_come_before_all_are_used_up(pod: Make) -> None:
    sizes = Sizes.of(TypicalPods.learn([*[pod(1, milli=100)] * 9, pod(8, gpus=2)]))
    expected = 0.1 * 20.0 / 0.29
    short = (expected + math.sqrt(expected) - 8) / math.sqrt(expected + 1)
    assert sizes.prices(20.0, np.array([8])).tolist() == pytest.approx([2 / (1 + math.exp(-1.7 * short))])


def test_prices_stay_finite_where_nothing_is_known_or_far_too_little_is_left() -> None:
    sizes = Sizes(np.array([8]), np.array([1.0]), np.array([0]), 0.0)
    assert sizes.prices(1e6, np.array([0])).tolist() == [8.0]
    assert sizes.prices(0.0, np.array([50])).tolist() == pytest.approx([8 / (1 + math.exp(1.7 * 30))], abs=0)
    assert sizes.prices(0.0, np.array([5000])).tolist() == pytest.approx([8 / (1 + math.exp(1.7 * 30))], abs=0)
    assert sizes.prices(0.0, np.array([10])).tolist() == pytest.approx([8 / (1 + math.exp(1.7 * 10))])


def counted(sizes: Sizes, state: FleetState) -> list[float]:
    """The prices, with every site and free GPU counted one by one."""
    left, free = [0] * len(sizes.gpus), 0
    for row in range(state.rows):
        if state.ready[row]:
            whole = sum(1 for milli in state.gpu_free_milli[row].tolist() if milli == 1000)
            free += sum(state.gpu_free_milli[row].tolist())
            for size, (gpus, cpu) in enumerate(zip(sizes.gpus.tolist(), sizes.cpu_milli.tolist(), strict=True)):
                left[size] += min(whole // gpus, max(0, int(state.cpu_free_milli[row])) // cpu)
    return sizes.prices(free / 1000, np.array(left)).tolist()  # type: ignore[no-any-return]


def test_prices_are_kept_up_to_date_whatever_changes(
    pod: Make, node: MakeNode, sizes: Sizes, fleet: FleetState
) -> None:
    room = Room(sizes)

    def check() -> None:
        assert room.prices(fleet).tolist() == pytest.approx(counted(sizes, fleet), rel=1e-12)

    check()
    half = pod(4, milli=500)
    allocate(fleet, "n0", [0], half)
    check()
    allocate(fleet, "n1", range(4), pod(70, gpus=4))
    check()
    fleet.set_node(node("n2", cores=96, ready=False))
    check()
    fleet.set_node(node("n2", cores=96))
    fleet.remove_node("n3")
    check()
    for number in range(4, 12):
        allocate(fleet, f"n{number}", range(4, 8), pod(40, gpus=4))
    check()
    for number in (*range(4, 12), 1):
        allocate(fleet, f"n{number}", [0], half) if number != 1 else release(fleet, "n0", [0], half)
    fleet.set_node(node("n11", cores=96, ready=False))
    check()
    for number in range(12, 40):
        fleet.set_node(node(f"n{number}", cores=96))
    check()
    fleet.set_node(node("large", gpus=16, cores=192))
    check()
    fleet.set_node(node("n1", cores=20))
    assert fleet.cpu_free_milli[fleet.row("n1")] < 0
    check()


def test_a_row_and_many_rows_are_brought_up_to_date_alike(
    pod: Make, node: MakeNode, sizes: Sizes, fleet: FleetState
) -> None:
    few, many = Room(sizes), Room(sizes)
    few.prices(fleet)
    many.prices(fleet)
    for number in range(12):
        allocate(fleet, f"n{number}", [number % 8], pod(4 * number, milli=500))
        few.prices(fleet)
    fleet.set_node(node("n5", cores=96, ready=False))
    assert few.prices(fleet).tolist() == many.prices(fleet).tolist() == Room(sizes).prices(fleet).tolist()


def test_after_more_changes_than_a_fleet_remembers_everything_is_counted_anew(
    pod: Make, sizes: Sizes, fleet: FleetState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "_LOG_LIMIT", 4)
    room = Room(sizes)
    room.prices(fleet)
    version = fleet.version
    for number in range(12):
        allocate(fleet, f"n{number}", [0], pod(4))
    assert fleet.changed_since(version) is None
    assert room.prices(fleet).tolist() == counted(sizes, fleet)


def test_a_pod_breaks_up_the_sites_that_are_not_left_after_it(pod: Make, sizes: Sizes, fleet: FleetState) -> None:
    allocate(fleet, "n1", range(4), pod(4, gpus=4))
    allocate(fleet, "n2", range(1), pod(4))
    rows, room = np.array([fleet.row(name) for name in ["n0", "n1", "n2"]], dtype=np.int64), Room(sizes)
    single = np.array([1, 1, 1])
    assert room.broken(fleet, rows, single, 4_000, 1).tolist() == [[1, 1], [1, 0], [0, 0]]
    assert room.broken(fleet, rows, 0 * single, 40_000, 1).tolist() == [[1, 1], [0, 0], [0, 0]]
    assert room.broken(fleet, rows, 4 * single, 4_000, 4).tolist() == [[0, 1], [0, 0], [0, 0]], "none of its own size"
    assert room.broken(fleet, rows, 8 * single, 64_000, 8)[0].tolist() == [2, 0]


def test_shares_of_several_gpus_break_up_the_whole_gpus_that_they_get(pod: Make, node: MakeNode) -> None:
    """Four halves on four GPUs of which two are whole: they get these, and no site of four is meant for them."""
    kinds = [pod(4), pod(8, gpus=2), pod(8, gpus=4), pod(4, gpus=3, milli=500)]
    cache = FragmentationCache(TypicalPods.learn(kinds))
    fleet = FleetState([node("whole"), node("used")])
    for slot in range(6):
        allocate(fleet, "used", [slot], pod(1, milli=500))
    outlook = cache.outlook(fleet, pod(1, gpus=4, milli=500))
    sizes = cache.room.sizes.gpus.tolist()
    broken = {name: dict(zip(sizes, outlook.broken[fleet.row(name)].tolist(), strict=True)) for name in fleet.index}
    assert broken == {"whole": {2: 2, 4: 1}, "used": {2: 1, 4: 0}}
