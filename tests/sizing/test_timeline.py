"""A replayed trace says when memory peaked and what it held then."""

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sizing.traces import message, read, rows, training

from kopt.core.units import MIB, Bytes
from kopt.tracing.events import Event
from kopt.tracing.timeline import ModuleShare, by_depth, replay


def test_the_peak_is_split_by_role() -> None:
    found = replay(training(layers=4, weight=8 * MIB, activation=4 * MIB, steps=2))
    # Four layers: weights 32, gradients 32, optimizer 64, the workspace of 8, the first layer's activation still.
    assert found.breakdown.weights == found.breakdown.gradients == 32 * MIB
    assert found.breakdown.optimizer == 64 * MIB
    assert found.breakdown.temporary == 8 * MIB
    assert found.breakdown.activations == 4 * MIB
    assert found.breakdown.tensors == found.peak_allocated_bytes == 140 * MIB
    assert found.breakdown.total == found.peak_reserved_bytes


def test_each_phase_has_its_own_peak_and_the_first_step_differs() -> None:
    found = replay(training(steps=3))
    peaks = found.phase_peaks()
    assert set(peaks) == {"load", "forward", "backward", "optimizer"}
    assert peaks["load"].allocated_bytes == 32 * MIB
    assert max(one.allocated_bytes for one in peaks.values()) == found.peak_allocated_bytes
    forward = [one.allocated_bytes for one in found.phases if one.name == "forward"]
    assert forward[1] == forward[0] + 64 * MIB, "optimizer state appears in the first step"
    assert found.grows() == 0


def test_what_is_alive_at_the_peak_is_told_by_module() -> None:
    found = replay(training(layers=3))
    assert {one.name for one in found.modules} == {"layers.0", "layers.1", "layers.2"}
    assert sum(one.bytes for one in found.modules) == found.peak_allocated_bytes - 8 * MIB


def test_module_names_are_cut_until_they_are_few() -> None:
    shares = [ModuleShare(f"net.block{n // 4}.conv{n}", Bytes(n + 1)) for n in range(16)]
    assert [one.name for one in by_depth(shares, 4)] == ["net.block3", "net.block2", "net.block1", "net.block0"]
    cut = by_depth([ModuleShare(f"m{n}", Bytes(1)) for n in range(10)], 4)
    assert cut[-1] == ModuleShare("others", Bytes(7))
    assert sum(one.bytes for one in by_depth(shares, 3)) == sum(one.bytes for one in shares)


def test_a_model_that_leaks_is_seen_to_grow() -> None:
    events: list[tuple[int, ...]] = []
    for step in range(5):
        events += [(Event.PHASE, 1, step), (Event.ALLOC, step + 1, 10 * MIB)]
    assert replay(read(message(name=[1, "forward"]), rows(*events))).grows() == pytest.approx(0.25)


def test_at_a_capacity_that_is_too_small_the_replay_stops_and_says_so() -> None:
    trace = training()
    whole = replay(trace)
    assert not whole.out_of_memory
    short = replay(trace, capacity_bytes=whole.peak_allocated_bytes - 1)
    assert "do not fit" in short.out_of_memory
    assert short.peak_reserved_bytes < whole.peak_allocated_bytes


def test_workspaces_are_kept_once_and_grow_when_more_is_needed() -> None:
    work = [(Event.WORKSPACE, 1, 4 * MIB), (Event.WORKSPACE, 1, 4 * MIB), (Event.WORKSPACE, 1, 12 * MIB)]
    found = replay(read(message(name=[1, "gemm"]), rows(*work, (Event.WORKSPACE, 1, 4 * MIB, 3))))
    assert found.allocated.tolist() == [4 * MIB, 4 * MIB, 12 * MIB, 16 * MIB]


def test_an_empty_trace_has_no_memory() -> None:
    found = replay(read())
    assert found.peak_reserved_bytes == 0
    assert not found.phases
    assert not found.modules


def test_a_rank_is_replayed_alone() -> None:
    trace = read(rows((Event.ALLOC, 1, 20 * MIB), (Event.RANK, 1), (Event.ALLOC, 2, 40 * MIB)))
    assert replay(trace, rank=0).peak_allocated_bytes == 20 * MIB
    assert replay(trace, rank=1).peak_allocated_bytes == 40 * MIB


@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.integers(0, 6), st.booleans()), max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_roles_always_add_up_to_what_was_asked_for(storages: list[tuple[int, int, bool]]) -> None:
    events: list[tuple[int, ...]] = []
    for n, (size, role, freed) in enumerate(storages, 1):
        events += [(Event.ALLOC, n, size), (Event.ROLE, n, role)]
        if freed:
            events.append((Event.FREE, n))
    found = replay(read(rows(*events) if events else b""))
    totals = found.by_role.sum(1)
    assert (totals <= found.allocated).all()
    assert (found.allocated <= found.reserved).all()
    assert np.all(found.by_role >= 0)
    assert found.breakdown.tensors == (found.allocated[found.peak] if len(found.allocated) else 0)
