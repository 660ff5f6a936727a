"""How many pods fit, what binds, and that trying changes leaves everything as it was."""

import numpy as np
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.diagnosis import Binding, ChangeKind
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import GIB, Bytes, MilliGpu
from kopt.policies.diagnosis import (
    PodShape,
    Rule,
    RunningWorkload,
    Situation,
    binding_constraints,
    fits,
    smallest_changes,
)
from kopt.policies.placement.choose import slots_for
from kopt.policies.placement.feasible import Refusal, capacity, refusals
from kopt.policies.placement.state import FleetState, allocate

GPU = "nvidia.com/gpu"


def requests() -> st.SearchStrategy[PodRequest]:
    shares = st.builds(GpuRequest, st.just(1), st.sampled_from([MilliGpu(250), MilliGpu(500), MilliGpu(700)]))
    several = st.builds(GpuRequest, st.sampled_from([2, 3]), st.sampled_from([MilliGpu(300), MilliGpu(500)]))
    whole = st.builds(GpuRequest, st.integers(1, 8))
    cpu, memory = st.integers(0, 40_000), st.integers(0, 200).map(lambda gib: Bytes(gib * GIB))
    return st.builds(PodRequest, cpu, memory, shares | several | whole)


def fleet_of(nodes: list[tuple[int, list[PodRequest]]]) -> tuple[FleetState, list[RunningWorkload]]:
    """Nodes with so many GPUs, and what could be placed of the pods that are to run on each."""
    state = FleetState(
        FleetNode(f"n{number}", 96_000, Bytes(512 * GIB), gpus) for number, (gpus, _) in enumerate(nodes)
    )
    running = []
    for number, (_, wanted) in enumerate(nodes):
        row = state.row(f"n{number}")
        for order, request in enumerate(wanted):
            if refusals(state, request, np.array([row]))[0] == Refusal.NONE:
                slots = slots_for(state, row, request)
                allocate(state, row, slots, request)
                running.append(RunningWorkload(f"w{number}-{order}", ((row, slots, request),), int(request.gpus.total)))
    return state, running


fleets = st.lists(st.tuples(st.integers(1, 8), st.lists(requests(), max_size=4)), min_size=1, max_size=4).map(fleet_of)


@settings(max_examples=examples(80), deadline=None)
@given(fleets, requests())
def test_capacity_is_what_placing_one_after_another_reaches(
    fleet: tuple[FleetState, list[RunningWorkload]], request: PodRequest
) -> None:
    state = fleet[0]
    expected = []
    for row in range(state.rows):
        trial, placed = state.copy(), 0
        while trial.ready[row] and refusals(trial, request, np.array([row]))[0] == Refusal.NONE:
            allocate(trial, row, slots_for(trial, row, request), request)
            placed += 1
        expected.append(placed)
    assert capacity(state, request).tolist() == expected


@settings(max_examples=examples(60), deadline=None)
@given(fleets, requests(), st.integers(1, 6), st.data())
def test_changes_make_it_fit_and_leave_no_trace(
    fleet: tuple[FleetState, list[RunningWorkload]], request: PodRequest, pods: int, data: st.DataObject
) -> None:
    state, running = fleet
    excluded = np.array([data.draw(st.booleans()) for _ in range(state.rows)])
    rules = (Rule(Binding.TAINT, "team=a:NoSchedule", excluded),)
    shape = PodShape("main", pods, data.draw(st.integers(1, pods)), request, GPU, rules)
    situation = Situation((shape,), state, running=tuple(running))
    before = state.gpu_free_milli.copy(), state.cpu_free_milli.copy(), state.version
    causes, changes = binding_constraints(situation), smallest_changes(situation)
    assert (state.gpu_free_milli == before[0]).all()
    assert (state.cpu_free_milli == before[1]).all()
    assert state.version == before[2]
    if fits(situation).ok:
        assert [cause.code for cause in causes] == [Binding.FITS_NOW]
        assert not changes
        return
    assert Binding.FITS_NOW not in {cause.code for cause in causes}
    assert all(change.verified for change in changes)
    for change in changes:
        if change.kind is ChangeKind.WAIT:
            assert set(change.names) <= {workload.name for workload in running}
    kinds = {change.kind for change in changes}
    if fits(Situation((PodShape("main", pods, shape.least, request, GPU),), state)).ok:
        assert ChangeKind.TOLERATE in kinds


def test_pods_of_several_shapes_share_the_nodes() -> None:
    state, _ = fleet_of([(8, []), (8, [])])
    large, small = PodRequest(gpus=GpuRequest(8)), PodRequest(gpus=GpuRequest(4))
    both = (PodShape("small", 2, 2, small, GPU), PodShape("large", 1, 1, large, GPU))
    assert fits(Situation(both, state)).ok
    three = (PodShape("small", 3, 3, small, GPU), PodShape("large", 1, 1, large, GPU))
    result = fits(Situation(three, state))
    assert not result.ok
    assert result.room == (2, 1)


def test_what_fits_is_counted_with_degraded_gpus_as_with_others() -> None:
    """Two pods with halves of two GPUs fit where the degraded one is taken first, and then there is no room for more.
    Pods are given healthy ones first."""
    state = FleetState([FleetNode("n", 96_000, Bytes(512 * GIB), 3, poor=0b100)])
    half = PodRequest(gpus=GpuRequest(1, MilliGpu(500)))
    for slot in (0, 1):
        allocate(state, 0, (slot,), half)
    several = PodRequest(gpus=GpuRequest(2, MilliGpu(500)))
    assert capacity(state, several).tolist() == [2]
    shapes = (PodShape("several", 2, 2, several, GPU), PodShape("half", 1, 1, half, GPU))
    assert fits(Situation(shapes, state)).room == (2, 0)
