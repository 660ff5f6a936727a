"""Shapes of replicas: what is selected, why others are not, and that nothing that cannot run is ever selected."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.scheduling.replicas import NodeGpus, ReplicaAdvice, Shape, ShapeEstimate
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.policies.diagnosis import QueuedGpus, QueueModel, RunningGpus
from kopt.policies.replicas import ReplicaQuestion, by_smallest_node, replica_advice, shapes_of, slowdown
from kopt.simulator.replicas import placed


def nodes(*free: int, of: int = 8) -> tuple[NodeGpus, ...]:
    return tuple(NodeGpus(f"node-{row}", of, amount) for row, amount in enumerate(free))


def of_shape(advice: ReplicaAdvice, replicas: int) -> ShapeEstimate:
    assert advice.selected is not None
    return next(each for each in (advice.selected, *advice.rejected) if each.shape.replicas == replicas)


def test_the_fastest_shape_that_fits_is_selected_where_waits_are_not_known() -> None:
    advice = replica_advice(ReplicaQuestion(24, nodes(8, 8, 4, 4, 2), 3600.0))
    assert advice.selected is not None
    assert advice.selected.shape == Shape(6, 4)
    assert advice.by_smallest_node == Shape(3, 8)
    codes = {each.shape: each.reason.code for each in advice.rejected}
    assert codes[Shape(3, 8)] == "SHAPE_WAIT_UNKNOWN"
    assert codes[Shape(12, 2)] == "SHAPE_SLOWER"
    assert codes[Shape(1, 24)] == "SHAPE_LARGER_THAN_NODE"


@pytest.mark.parametrize(("ends_s", "selected"), [(100.0, Shape(1, 8)), (20_000.0, Shape(2, 4))])
def test_a_short_wait_for_a_faster_shape_is_worth_it_and_a_long_one_is_not(ends_s: float, selected: Shape) -> None:
    model = QueueModel((RunningGpus("a/other", {"node-0": 4000}),))
    times = {"a/other": RunTimeQuantiles((0.5,), (ends_s,))}
    advice = replica_advice(ReplicaQuestion(8, nodes(4, 4), 36_000.0, model=model, run_times=times))
    assert advice.selected is not None
    assert advice.selected.shape == selected
    assert of_shape(advice, 1).wait_seconds == pytest.approx(ends_s)
    if selected.replicas == 2:
        assert of_shape(advice, 1).reason.code == "SHAPE_WAITS"


def test_what_waits_already_starts_first() -> None:
    model = QueueModel((RunningGpus("a/other", {"node-1": 4000}),), (QueuedGpus("a/ahead", 1, 4000),))
    times = {
        "a/other": RunTimeQuantiles((0.5,), (600.0,)),
        "a/ahead": RunTimeQuantiles((0.5,), (50_000.0,)),
    }
    advice = replica_advice(ReplicaQuestion(4, nodes(4, 0, of=4), 3600.0, model=model, run_times=times))
    assert of_shape(advice, 1).fits_now
    assert of_shape(advice, 1).wait_seconds == pytest.approx(600.0)


def test_of_shapes_that_are_equally_fast_the_one_that_strands_least_is_selected() -> None:
    steps = dict.fromkeys((1, 2, 4), 1.0)
    usual = {4: 1.0}
    advice = replica_advice(ReplicaQuestion(4, nodes(4, 2, 2), 3600.0, steps, usual=usual))
    assert advice.selected is not None
    assert advice.selected.shape == Shape(2, 2)
    assert of_shape(advice, 1).reason.code == "SHAPE_STRANDS"


def test_shapes_without_memory_are_refused_and_the_rest_goes_by_step_times() -> None:
    advice = replica_advice(ReplicaQuestion(16, nodes(8, 8), 3600.0, {8: 2.0, 4: 3.0}))
    assert advice.selected is not None
    assert advice.selected.shape == Shape(2, 8)
    assert advice.selected.step_seconds == 2.0
    assert of_shape(advice, 4).slowdown == 1.5
    assert of_shape(advice, 8).reason.code == "SHAPE_OUT_OF_MEMORY"


def test_shapes_that_hardly_differ_leave_the_fewest_replicas() -> None:
    steps = {1: 1.0, 2: 1.001, 4: 1.002, 8: 1.003}
    advice = replica_advice(ReplicaQuestion(8, nodes(8, 8), 3600.0, steps))
    assert advice.selected is not None
    assert advice.selected.shape == Shape(1, 8)
    assert of_shape(advice, 8).reason.code == "SHAPE_EQUAL"


def test_where_nothing_can_ever_run_nothing_is_selected() -> None:
    advice = replica_advice(ReplicaQuestion(24, nodes(8, 8), 3600.0))
    assert advice.selected is None
    assert advice.reasons[0].code == "NO_SHAPE"
    assert {each.reason.code for each in advice.rejected} == {"SHAPE_LARGER_THAN_NODE", "SHAPE_NEVER_FITS"}


@given(
    total=st.integers(1, 64),
    sizes=st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), st.integers(0, 8)), min_size=1, max_size=9),
)
@settings(max_examples=150, deadline=None)
def test_what_is_selected_can_run_and_every_shape_has_one_reason(total: int, sizes: list[tuple[int, int]]) -> None:
    fleet = tuple(NodeGpus(str(row), gpus, min(free, gpus)) for row, (gpus, free) in enumerate(sizes))
    advice = replica_advice(ReplicaQuestion(total, fleet, 3600.0))
    listed = [*advice.rejected, *([advice.selected] if advice.selected else [])]
    assert sorted(each.shape for each in listed) == sorted(shapes_of(total))
    assert all(each.reason.message for each in listed)
    if advice.selected is None:
        assert all(sum(node.gpus // shape.gpus for node in fleet) < shape.replicas for shape in shapes_of(total))
        return
    selected = advice.selected
    assert sum(node.gpus // selected.shape.gpus for node in fleet) >= selected.shape.replicas
    free = [node.free for node in fleet]
    assert selected.fits_now == (placed(free, selected.shape) is not None)
    if any(placed(free, shape) for shape in shapes_of(total)):
        assert selected.fits_now


def test_the_law_is_the_ring_over_nodes() -> None:
    assert slowdown(1) == 1
    assert slowdown(2) == pytest.approx(114.8 / 98.0)
    assert slowdown(1000) < 1 + 2 * (114.8 / 98.0 - 1)
    with pytest.raises(ValueError, match="0 nodes"):
        slowdown(0)


def test_by_smallest_node_is_kaiwos_formula() -> None:
    assert by_smallest_node(24, nodes(0, 0)) == Shape(3, 8)
    assert by_smallest_node(10, nodes(0, of=4)) == Shape(3, 3)
    with pytest.raises(ValueError, match="no node"):
        by_smallest_node(4, (NodeGpus("cpu", 0, 0),))


@pytest.mark.parametrize("run_s", [0.0, -1.0, math.inf, math.nan])
def test_run_times_that_cannot_be_are_refused(run_s: float) -> None:
    with pytest.raises(ValueError, match="a run of"):
        ReplicaQuestion(8, nodes(8), run_s)
