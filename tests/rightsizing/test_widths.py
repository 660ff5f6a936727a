"""Which width an elastic job is to have, what starting again may cost, and what stays: for any numbers."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.core.workload.rightsizing import Batch, ChangeRecord, Outcome, WidthChange, WidthRecord
from kopt.policies.rightsizing.cool_down import cooling_down
from kopt.policies.rightsizing.scaling import speeds_along
from kopt.policies.rightsizing.step_times import Marks, StepMark, StepTime
from kopt.policies.rightsizing.watch import Action, Watched, WatchSettings, evaluate
from kopt.policies.rightsizing.width import (
    Elastic,
    Rest,
    Room,
    WidthProposal,
    for_each_sample,
    most_cost,
    own_speeds,
    propose_width,
    watch_settings,
)

REST = Rest(steps=100_000, step_seconds=1.0, restart_gpu_s=1200.0)
ROOM = Room(workers=8)
LINEAR = {width: float(width) for width in range(1, 12)}


def _job(width: int = 4, least: int = 2, most: int = 8, batch: Batch | None = Batch.FIXED) -> Elastic:
    return Elastic(width, least, most, 8, batch)


def _proposed(result: WidthProposal | Reason) -> WidthProposal:
    assert isinstance(result, WidthProposal), result
    return result


SPEEDS = st.dictionaries(st.integers(1, 12), st.floats(1e-3, 1e3), max_size=12)


@given(
    st.builds(Elastic, *[st.integers(0, 12)] * 3, st.integers(1, 8), st.sampled_from([None, *Batch])),
    SPEEDS,
    st.builds(Room, st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)),
    st.builds(
        Rest,
        st.none() | st.integers(0, 10**6),
        st.none() | st.floats(1e-3, 100),
        st.none() | st.floats(0, 1e6),
    ),
    st.none() | st.integers(-2, 14),
)
def test_every_proposal_is_one_worker_within_the_bounds_and_worth_its_restart(
    job: Elastic, speeds: dict[int, float], room: Room, rest: Rest, target: int | None
) -> None:
    result = propose_width(job, speeds, room, rest, target=target)
    if isinstance(result, Reason):
        return
    change, left_s = result.change, (rest.steps or 0) * (rest.step_seconds or 0)
    assert job.least <= change.after <= job.most
    assert abs(change.after - change.before) == 1
    assert change.batch is job.batch
    assert result.rest.restart_s <= 0.1 * left_s
    if change.after > change.before:
        assert room.workers > 0
        assert not room.queued
        assert result.rest.sooner_s > 0
        assert result.allowed > 0
    assert f"{result.rest.restart_s:.2g}" != "nan"


def test_a_job_that_scales_gets_one_more_where_gpus_idle_and_the_sum_is_told() -> None:
    proposal = _proposed(propose_width(_job(), LINEAR, ROOM, REST))
    assert (proposal.change.after, proposal.reason.code) == (5, "WORKER_USEFUL")
    assert proposal.rest.restart_s == pytest.approx(1200 / 32)
    assert proposal.rest.sooner_s == pytest.approx(100_000 - 80_000 - 37.5)
    assert "27.8 h left; then 22.2 h, and 38 s to start again: it ends 5.55 h sooner" in proposal.reason.message


@pytest.mark.parametrize(
    ("job", "speeds", "room", "rest", "code"),
    [
        (_job(batch=None), LINEAR, ROOM, REST, "BATCH_UNKNOWN"),
        (_job(width=9), LINEAR, ROOM, REST, "WIDTH_OUT_OF_BOUNDS"),
        (_job(width=8), LINEAR, ROOM, REST, "WIDTH_IS_RIGHT"),
        (_job(), LINEAR, Room(0), REST, "NO_IDLE_GPUS"),
        (_job(width=2), LINEAR, Room(8, queued=1), REST, "OTHERS_QUEUE"),
        (_job(), LINEAR, Room(8, queued=1), REST, "OTHERS_QUEUE"),
        (_job(), LINEAR, Room(8, queued=1, helped=1), Rest(0, 1.0, 0.0), "RESTART_NOT_WORTH_IT"),
        (_job(), {}, ROOM, REST, "SCALING_UNKNOWN"),
        (_job(), LINEAR | {5: 4.6}, ROOM, REST, "WIDTH_IS_RIGHT"),
        (_job(), LINEAR, ROOM, Rest(None, 1.0, 10.0), "REST_UNKNOWN"),
        (_job(), LINEAR, ROOM, Rest(1000, 1.0, None), "REST_UNKNOWN"),
        (_job(), LINEAR, ROOM, Rest(1000, 1.0, 32 * 101.0), "RESTART_NOT_WORTH_IT"),
        (_job(), LINEAR, ROOM, Rest(100, 1.0, 32 * 20.0), "RESTART_NOT_WORTH_IT"),
    ],
)
def test_what_is_not_changed_says_why(job: Elastic, speeds: Any, room: Room, rest: Rest, code: str) -> None:
    result = propose_width(job, speeds, room, rest)
    assert isinstance(result, Reason)
    assert result.code == code


def test_a_worker_that_brings_little_goes_and_one_that_others_need_does_as_well() -> None:
    lazy = _proposed(propose_width(_job(), LINEAR | {4: 3.3}, ROOM, REST))
    assert (lazy.change.after, lazy.reason.code) == (3, "WORKER_NOT_USEFUL")
    assert lazy.allowed < 0, "GPU time for a sample has to fall"
    needed = _proposed(propose_width(_job(), LINEAR, Room(0, queued=2, helped=1), REST))
    assert (needed.change.after, needed.reason.code, needed.for_others) == (3, "OTHERS_QUEUE", True)
    assert needed.reason.message.startswith("1 workload is pending that could run on its last worker's GPUs")


@pytest.mark.parametrize(
    ("target", "code"), [(6, "WIDTH_STEP"), (4, "WIDTH_STEP"), (1, "WIDTH_STEP"), (10**9, "WIDTH_STEP")]
)
def test_a_width_that_is_asked_for_is_beside_the_present_one(target: int, code: str) -> None:
    result = propose_width(_job(), {}, ROOM, REST, target=target)
    assert isinstance(result, Reason)
    assert result.code == code


def test_a_width_that_is_asked_for_is_tried_without_a_curve_and_counted_at_the_least() -> None:
    proposal = _proposed(propose_width(_job(), {}, ROOM, REST, target=5))
    assert proposal.rest.supposed
    assert proposal.rest.after_s == pytest.approx(100_000 / (1 + 0.7 / 4))
    outside = propose_width(_job(width=8), {}, ROOM, REST, target=9)
    assert isinstance(outside, Reason)
    assert outside.code == "WIDTH_OUT_OF_BOUNDS"


@given(st.integers(1, 200), st.floats(0.05, 1.0), st.booleans())
def test_what_may_be_lost_is_what_the_marginal_efficiency_allows(width: int, threshold: float, wider: bool) -> None:
    """At the most that it may cost, each worker between the two widths brings the threshold exactly."""
    fewer, more = width, width + 1
    change = WidthChange(fewer, more, Batch.FIXED) if wider else WidthChange(more, fewer, Batch.FIXED)
    ratio = 1 + most_cost(change, threshold)
    # GPU time for a sample, of the narrower job 1.
    of_more = ratio if wider else 1 / ratio
    speed_of_fewer, speed_of_more = fewer, more / of_more
    assert (speed_of_more - speed_of_fewer) / (speed_of_fewer / fewer) == pytest.approx(threshold)


@pytest.mark.parametrize(
    ("change", "efficiency", "action"),
    [
        (WidthChange(2, 3, Batch.FIXED), 1.0, Action.KEEP),
        (WidthChange(2, 3, Batch.PER_WORKER), 0.95, Action.KEEP),
        (WidthChange(2, 3, Batch.PER_WORKER), 0.4, Action.UNDO),
        (WidthChange(2, 3, Batch.FIXED), -0.5, Action.UNDO),
        (WidthChange(3, 2, Batch.FIXED), 0.1, Action.KEEP),
        (WidthChange(3, 2, Batch.FIXED), 0.95, Action.UNDO),
    ],
)
def test_a_width_stays_by_what_its_last_worker_brings(change: WidthChange, efficiency: float, action: Action) -> None:
    """``efficiency`` is the marginal one, of a third worker."""
    rng = random.Random(1)
    speed = {2: 2.0, 3: 2.0 + efficiency}

    def step_s(width: int) -> float:
        return (width if change.batch is Batch.PER_WORKER else 1) / speed[width] * math.exp(rng.gauss(0, 0.02))

    before = [StepTime(10.0 * at, 10.0 * at + 10, step_s(change.before)) for at in range(-60, -1)]
    after = [StepTime(10.0 * at, 10.0 * at + 10, step_s(change.after)) for at in range(54)]
    compared = for_each_sample([*before, *after], 0.0, change)
    settings = watch_settings(change, most_cost(change, 0.7), WatchSettings())
    for at_s in range(10, 541, 10):
        seen = [each for each in compared if each.start_s >= 0 and each.end_s <= at_s]
        past = [each.seconds for each in compared if each.end_s <= 0]
        decision = evaluate(
            Watched(past, [each.seconds for each in seen], at_s, [each.start_s for each in seen], grows=True), settings
        )
        if decision.action is not Action.WATCH:
            break
    assert decision.action is action
    if action is Action.UNDO and efficiency < 0:
        assert at_s <= 120, "two windows"


@pytest.mark.parametrize(
    ("change", "action"), [(WidthChange(2, 3, Batch.FIXED), Action.UNDO), (WidthChange(3, 2, Batch.FIXED), Action.KEEP)]
)
def test_no_gpu_is_believed_to_do_more_for_being_one_of_more(change: WidthChange, action: Action) -> None:
    """Then the job does something else, such as evaluating."""
    rng = random.Random(1)
    before, after = (
        [math.exp(rng.gauss(0, 0.02)) for _ in range(60)],
        [0.8 * math.exp(rng.gauss(0, 0.02)) for _ in range(54)],
    )
    seen = Watched(before, after, 540.0, [10.0 * at for at in range(54)], grows=True)
    decision = evaluate(seen, watch_settings(change, most_cost(change, 0.7), WatchSettings()))
    code = "GAINS_UNEXPLAINED" if action is Action.UNDO else "SAMPLES_WORTH_IT"
    assert (decision.action, decision.reason.code) == (action, code)


def _record(before: int, after: int, times: tuple[float, float] | None, outcome: Outcome = Outcome.KEPT) -> WidthRecord:
    return ChangeRecord(WidthChange(before, after, Batch.FIXED), 0.0, outcome, 500.0, "", times)


def test_own_runs_say_how_a_job_scales_each_by_the_width_that_it_shares_with_newer_ones() -> None:
    newest_first = [_record(3, 4, (0.4, 0.35)), _record(3, 2, (0.5, 0.7), Outcome.UNDONE), _record(8, 9, (1.0, 1.0))]
    speeds = own_speeds(newest_first, Batch.FIXED)
    assert speeds == pytest.approx({3: 2.5, 4: 1 / 0.35, 2: 2.5 * 0.5 / 0.7})
    assert own_speeds(newest_first, Batch.PER_WORKER) == {}
    assert own_speeds([_record(3, 4, (0.4, 0.3), Outcome.OPEN), _record(3, 4, None)], Batch.FIXED) == {}


@pytest.mark.parametrize("cost", [1.0, 1.3])
def test_a_worker_that_was_given_to_others_stays_away_unless_the_job_breaks(cost: float) -> None:
    """Nothing has to be shown of noisy steps; a job that is much slower by far more is broken."""
    rng = random.Random(2)
    change = WidthChange(3, 2, Batch.PER_WORKER)
    proposal = _proposed(propose_width(_job(3, batch=change.batch), LINEAR, Room(0, 1, 1), REST))
    settings = watch_settings(change, proposal.allowed, WatchSettings(), for_others=proposal.for_others)

    def evaluated(cost: float, noise: float) -> tuple[Action, str]:
        before = [math.exp(rng.gauss(0, noise)) for _ in range(60)]
        after = [cost * math.exp(rng.gauss(0, noise)) for _ in range(54)]
        decision = evaluate(Watched(before, after, 540.0, [10.0 * at for at in range(54)], grows=True), settings)
        return decision.action, decision.reason.code

    assert evaluated(cost, 0.02) == (Action.KEEP, "SAMPLES_WORTH_IT")
    assert evaluated(cost, 0.8)[0] is Action.KEEP
    assert evaluated(2.5, 0.02) == (Action.UNDO, "SAMPLES_COST_MORE")


def test_speeds_that_cannot_be_are_dropped_and_leave_the_others() -> None:
    history = [_record(3, 4, (5e-324, 1.0)), _record(3, 4, (0.4, 0.35)), _record(3, 2, (1e-300, 1e300))]
    assert own_speeds(history, Batch.FIXED) == pytest.approx({3: 2.5, 4: 1 / 0.35})


def test_a_curve_in_other_units_is_followed_from_where_both_are_known() -> None:
    curve = {8: 100.0, 16: 180.0, 32: 300.0}
    speeds = speeds_along(curve, 8, {2: 9.0}, range(1, 4))
    assert speeds[1] == pytest.approx(5.0)
    assert speeds[2] == 9.0
    assert 9.0 < speeds[3] < 9.0 * 1.5
    assert speeds_along(curve, 8, {7: 3.0}, range(6, 9)) == {7: 3.0}
    assert speeds_along({8: math.nan, 16: -1.0}, 8, {1: 3.0}, range(1, 3)) == {1: 3.0}


@given(st.lists(st.sampled_from(Outcome), min_size=1), st.floats(0, 1e5))
def test_nothing_is_changed_while_a_change_is_open_of_a_pod_or_of_the_width(
    outcomes: list[Outcome], now_s: float
) -> None:
    history = [ChangeRecord(WidthChange(2, 3, Batch.FIXED), 0.0, outcome, 0.0) for outcome in outcomes]
    for subject in ("width", "cpu of main"):
        resting = cooling_down(history, subject, now_s)
        if Outcome.OPEN in outcomes:
            assert resting is not None
        elif resting is None:
            assert now_s >= (86_400 if Outcome.UNDONE in outcomes and subject == "width" else 1800)


def test_a_program_starts_again_where_its_counter_goes_back_its_log_begins_or_a_long_gap_is() -> None:
    marks = Marks(1e6)
    for at_s in range(10):
        marks.add(StepMark(float(at_s), 50 + at_s))
    assert marks.again_s(4.0, 5.0) is None
    marks.add(StepMark(20.0, 60))
    assert marks.again_s(4.0, 5.0) == 20.0
    assert marks.again_s(4.0, 15.0) is None
    marks.add(StepMark(21.0, 41))
    assert marks.again_s(4.0, 15.0) == 21.0
    new = Marks(1e6)
    new.add(StepMark(30.0, 41))
    assert new.again_s(4.0, 15.0) == 30.0
    assert new.again_s(30.0, 15.0) is None
