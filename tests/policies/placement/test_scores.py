"""Each score by itself, on numbers that can be checked by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.policies.placement.feasible import Refusal, refusal_counts, refusals
from kopt.policies.placement.scores import SCORES, Scored, weigh
from kopt.policies.placement.state import FleetState, allocate

Make = Callable[..., PodRequest]
MakeNode = Callable[..., FleetNode]


@pytest.fixture
def scored(pod: Make, node: MakeNode) -> Scored:
    """The second and third of three nodes, the third with half of its GPUs and a quarter of its CPU taken."""
    nodes = [
        node("out", cost=9.0, utilisation=0.9, health=0.1),
        node("b", gpus=4, cores=48, cost=1.0, utilisation=0.25, health=1.0),
        node("c", cost=4.0, utilisation=0.75, health=0.5),
    ]
    state = FleetState(nodes)
    allocate(state, "c", range(4), pod(24, gpus=4))
    broken = np.array([[9, 9], [1, 0], [2, 3]], np.int16)
    rows, loss = np.array([state.row(name) for name in ["b", "c"]], dtype=np.int64), np.array([500.0, 2000.0])
    return Scored(state, pod(1), rows, loss, broken, np.array([0.5, 2.0]), np.array([1.0, 0.25]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fragmentation", [-0.5, -2.0]),
        ("reserve", [-0.5, -1.0 - 6.0]),
        ("topology", [1.0, 0.25]),
        ("utilisation", [0.75, 0.25]),
        ("cost", [-0.25, -1.0]),
        ("health", [1.0, 0.5]),
        ("fit", [-(0.5 + 0.5) / 2, -(0.75 + 0.5) / 2]),
        ("cpu_fit", 0.0),
    ],
)
def test_a_score_is_what_its_sentence_says(scored: Scored, name: str, values: list[float] | float) -> None:
    result = SCORES[name](scored)
    assert (result if isinstance(result, float) else result.tolist()) == pytest.approx(values)


def test_prices_next_to_nothing_are_left_out(scored: Scored) -> None:
    none = Scored(scored.state, scored.request, scored.rows, scored.loss, scored.broken, np.array([1e-4, 0.0]))
    assert SCORES["reserve"](none) == 0.0
    above = Scored(scored.state, scored.request, scored.rows, scored.loss, scored.broken, np.array([1e-4, 0.01]))
    assert np.asarray(SCORES["reserve"](above)).tolist() == pytest.approx([0.0, -0.03])


def test_pods_without_gpus_prefer_the_node_with_the_least_cpu(pod: Make, scored: Scored) -> None:
    plain = Scored(scored.state, pod(1, gpus=0), scored.rows, scored.loss, scored.broken, scored.prices)
    assert np.asarray(SCORES["cpu_fit"](plain)).tolist() == pytest.approx([-0.5, -0.75])


def test_costs_below_one_count_like_others_and_without_any_nothing_is_dear(pod: Make, node: MakeNode) -> None:
    state = FleetState([node("a", cost=0.25), node("b", cost=0.5)])
    rows = np.array([state.row(name) for name in ["a", "b"]], dtype=np.int64)
    scored = Scored(state, pod(1), rows, np.zeros(2), np.zeros((2, 0), np.int16), np.zeros(0))
    assert np.asarray(SCORES["cost"](scored)).tolist() == pytest.approx([-0.5, -1.0])
    free = FleetState([node("a"), node("b")])
    scored = Scored(free, pod(1), rows, np.zeros(2), np.zeros((2, 0), np.int16), np.zeros(0))
    assert np.asarray(SCORES["cost"](scored)).tolist() == [0.0, 0.0]
    nothing = Scored(free, pod(1), rows[:0], np.zeros(0), np.zeros((2, 0), np.int16), np.zeros(0))
    assert np.asarray(SCORES["cost"](nothing)).tolist() == []


def test_a_fleet_without_cpu_or_gpus_is_as_full_as_any(pod: Make) -> None:
    state = FleetState([FleetNode("n", 0, pod(1).memory_bytes)])
    scored = Scored(state, pod(0, gpus=0), np.array([0]), np.zeros(1), np.zeros((1, 0), np.int16), np.zeros(0))
    assert np.asarray(SCORES["fit"](scored)).tolist() == [0.0]
    assert np.asarray(SCORES["cpu_fit"](scored)).tolist() == [0.0]


def test_a_fleet_of_small_nodes_is_as_full_as_its_numbers(pod: Make) -> None:
    state = FleetState([FleetNode("n", 1, pod(1).memory_bytes, 1, "t4")])
    scored = Scored(state, pod(0), np.array([0]), np.zeros(1), np.zeros((1, 0), np.int16), np.zeros(0))
    assert np.asarray(SCORES["fit"](scored)).tolist() == [-1.0]
    plain = Scored(state, pod(0, gpus=0), np.array([0]), np.zeros(1), np.zeros((1, 0), np.int16), np.zeros(0))
    assert np.asarray(SCORES["cpu_fit"](plain)).tolist() == [-1.0]


def test_the_sum_weighs_each_part_and_leaves_out_those_without_weight(scored: Scored) -> None:
    total, parts = weigh(scored, {"fragmentation": 2.0, "health": 10.0, "cost": 0.0, "cpu_fit": 3.0})
    assert set(parts) == {"fragmentation", "health", "cpu_fit"}
    assert np.asarray(parts["fragmentation"]).tolist() == [-1.0, -4.0]
    assert total.tolist() == pytest.approx([9.0, 1.0])
    with pytest.raises(ValueError, match="no score 'grace'; there are fragmentation, reserve, "):
        weigh(scored, {"luck": 1.0, "health": 1.0, "grace": 1.0})


def test_a_node_that_has_exactly_what_is_asked_for_refuses_nothing(pod: Make, node: MakeNode) -> None:
    request = pod(96, gpus=8)
    exact = FleetNode("exact", 96_000, request.memory_bytes, 8, "a100")
    less = FleetNode("less", 96_000, type(request.memory_bytes)(request.memory_bytes - 1), 8, "a100")
    assert refusals(FleetState([exact, less]), request).tolist() == [Refusal.NONE, Refusal.MEMORY]


def test_the_first_refusal_that_applies_is_told_and_hard_ones_before_others(pod: Make, node: MakeNode) -> None:
    nodes = [
        node("all", gpus=1, cores=1, model="t4", ready=False),
        node("model", gpus=1, cores=1, model="t4"),
        node("count", gpus=1, cores=1),
        node("cpu", cores=1),
        FleetNode("memory", 96_000, type(pod().memory_bytes)(1), 8, "a100"),
        node("free"),
    ]
    state = FleetState(nodes)
    allocate(state, "free", [0], pod(1, milli=500))
    codes = refusals(
        state,
        pod(4, gpus=8, models=("a100",)),
        np.array([state.row(name) for name in [each.name for each in nodes]], dtype=np.int64),
    )
    names = ["NOT_READY", "GPU_MODEL", "GPU_COUNT", "CPU", "MEMORY", "GPU_FREE"]
    assert [Refusal(int(code)).name for code in codes] == names


def test_refusals_are_counted_the_most_frequent_first_and_in_their_order_among_equals() -> None:
    codes = np.array([7, 0, 2, 7, 9, 3, 9, 0, 1], np.int8)
    expected = [(Refusal.CPU, 2), (Refusal.GPU_FREE, 2), (Refusal(1), 1), (Refusal(2), 1), (Refusal(3), 1)]
    assert list(refusal_counts(codes).items()) == expected
    assert refusal_counts(np.zeros(0, np.int8)) == {}
    assert refusal_counts(np.zeros(3, np.int8)) == {}


def test_only_what_an_empty_node_would_refuse_is_permanent() -> None:
    assert [code.name for code in Refusal if code.permanent] == ["GPU_MODEL", "GPU_MEMORY", "GPU_COUNT"]
