"""Steps down on contention and up after a calm: no oscillation, nothing without a measurement."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.policies.fractions.ladder import LadderSettings, LadderState, rungs, step
from kopt.policies.fractions.sharing import Sharer, SharingHardware, SharingSettings, plan_claim

SETTINGS = LadderSettings()
CONTENDED, CALM, BETWEEN, UNMEASURED = Pressure(1.4), Pressure(0.3), Pressure(0.9), Pressure()
DAY_S = 86_400


GPU = SharingHardware(SharingExecutor.DRA, 81_559, (9, 0))
PLANNED = SharingSettings()


def test_beside_a_service_batch_shrinks_and_then_each_has_a_gpu() -> None:
    pods = [
        Sharer("chat", WorkloadClass.INFERENCE, 40, 10, 8000),
        Sharer("train", WorkloadClass.UNATTENDED, 90, 70, 30_000),
    ]
    steps = rungs(plan_claim(GPU, pods, PLANNED), GPU, pods, PLANNED)
    parts = [[share.percent for share in rung.shares] for rung in steps]
    assert parts == [[48, 52], [48, 26], [48, 13], [48, 7], [100, 100]]
    assert [rung.mode for rung in steps] == [SharingMode.MPS] * 4 + [SharingMode.EXCLUSIVE]


def test_pods_without_a_latency_to_keep_take_turns_before_they_are_parted() -> None:
    pods = [
        Sharer("notebook", WorkloadClass.INTERACTIVE, 40, 30, 8000),
        Sharer("train", WorkloadClass.UNATTENDED, 90, 70, 30_000),
    ]
    modes = [rung.mode for rung in rungs(plan_claim(GPU, pods, PLANNED), GPU, pods, PLANNED)]
    assert modes[0] is SharingMode.MPS
    assert modes[-2:] == [SharingMode.TIME_SLICING, SharingMode.EXCLUSIVE]
    wants_more = [replace(pods[0], guarantee_percent=60), pods[1]]
    modes = [rung.mode for rung in rungs(plan_claim(GPU, wants_more, PLANNED), GPU, wants_more, PLANNED)]
    assert SharingMode.TIME_SLICING not in modes


def moved(pressures: list[Pressure], every_s: float = 30.0, state: LadderState = LadderState()) -> list[int]:  # noqa: B008
    """The rung after each measurement."""
    result = []
    for number, pressure in enumerate(pressures):
        state = step(state, pressure, number * every_s, 5, SETTINGS)
        result.append(state.rung)
    return result


def test_a_step_down_takes_a_minute_of_contention_and_what_was_before_it_does_not_count() -> None:
    steps = moved([CONTENDED] * 30)
    assert [at for at in range(1, 30) if steps[at] != steps[at - 1]] == [2, 14, 26]
    assert moved([CONTENDED, CONTENDED, CALM] * 10) == [0] * 30
    assert moved([BETWEEN] * 100) == [0] * 100


@given(st.lists(st.sampled_from([UNMEASURED, BETWEEN]), max_size=50), st.integers(0, 5))
def test_what_is_not_measured_moves_nothing(pressures: list[Pressure], rung: int) -> None:
    assert set(moved(pressures, every_s=1000.0, state=LadderState(rung))) <= {rung}


@given(st.lists(st.sampled_from([CONTENDED, CALM, BETWEEN, UNMEASURED]), min_size=1, max_size=100), st.floats(1, 2000))
def test_one_rung_at_a_time_and_never_beyond_the_last(pressures: list[Pressure], every_s: float) -> None:
    steps = [0, *moved(pressures, every_s)]
    assert all(abs(after - before) <= 1 for before, after in pairwise(steps))
    assert all(0 <= rung <= 5 for rung in steps)


@pytest.mark.parametrize("enough", [1, 2, 5])
@pytest.mark.parametrize("below", [CONTENDED, BETWEEN])
def test_moves_die_out(enough: int, below: Pressure) -> None:
    """Contended above a rung, calm on it: each attempt to go up again comes after twice the time, up to a day."""
    state, moves = LadderState(), []
    for now_s in range(0, 14 * DAY_S, 60):
        pressure = (
            CALM if state.rung >= enough else CONTENDED if below is CONTENDED else (CONTENDED, BETWEEN)[state.rung > 0]
        )
        after = step(state, pressure, float(now_s), 5, SETTINGS)
        if after.rung != state.rung:
            moves.append(now_s)
        state = after
    assert sum(now_s > 7 * DAY_S for now_s in moves) <= 14
    assert sum(now_s < DAY_S for now_s in moves) <= 24


def test_memory_alone_is_contention_and_a_busy_gpu_is_none_where_latency_holds() -> None:
    assert moved([Pressure(memory=0.99)] * 3)[-1] == 1
    assert moved([Pressure(0.3, sm_active=1.0)] * 3)[-1] == 0
    assert moved([Pressure(sm_active=0.99)] * 3)[-1] == 1
    assert moved([Pressure(float("nan"))] * 100, state=LadderState(2))[-1] == 2


def test_a_step_up_that_holds_ends_the_longer_wait() -> None:
    state = LadderState(3, wait_s=3600.0)
    for now_s in range(0, 12_000, 30):
        state = step(state, CALM, float(now_s), 5, SETTINGS)
    assert (state.rung, state.wait_s) == (0, SETTINGS.calm_s)
