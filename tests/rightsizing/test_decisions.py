"""Changes are kept, undone or watched by step times: at any time, and never slower when the time is over."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.rightsizing.interval import slowdown, summary
from kopt.policies.rightsizing.step_times import StepMark, before_and_after, step_times
from kopt.policies.rightsizing.watch import Action, Watched, WatchSettings, evaluate, too_few_steps

SETTINGS = WatchSettings()
TIMES = st.lists(st.floats(0.01, 100), min_size=0, max_size=40)


def _noise(seed: int, count: int, factor: float = 1.0, sigma: float = 0.05) -> list[float]:
    rng = random.Random(seed)
    return [factor * math.exp(rng.gauss(0, sigma)) for _ in range(count)]


def _watched(before: list[float], after: list[float], elapsed_s: float, **more: float) -> Watched:
    each_s = elapsed_s / max(1, len(after))
    return Watched(before, after, elapsed_s, [index * each_s for index in range(len(after))], **more)  # type: ignore[arg-type]


@given(TIMES, TIMES, st.floats(0, 2000))
def test_every_watch_is_over_when_its_time_is(before: list[float], after: list[float], elapsed_s: float) -> None:
    action = evaluate(_watched(before, after, elapsed_s)).action
    assert action is not Action.WATCH or elapsed_s < SETTINGS.deadline_s
    assert action is not Action.KEEP or elapsed_s >= SETTINGS.least_s


@given(TIMES, TIMES, st.floats(0, 600))
def test_nothing_is_kept_without_a_bound_below_the_tolerance(
    before: list[float], after: list[float], elapsed_s: float
) -> None:
    decision = evaluate(_watched(before, after, elapsed_s))
    if decision.action is Action.KEEP:
        assert decision.slowdown.high < SETTINGS.tolerance
        assert decision.slowdown.low <= 0


@given(st.floats(0.01, 100), st.integers(0, 1000))
def test_only_ratios_count(unit: float, seed: int) -> None:
    before, after = _noise(seed, 30), _noise(seed + 1, 20, 1.1)
    plain = slowdown(summary(before), summary(after), 0.05)
    scaled = slowdown(*(summary([unit * each for each in times]) for times in (before, after)), 0.05)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high), rel=1e-6, abs=1e-9)


def test_the_interval_holds_at_every_look() -> None:
    """Of 60 watches without a change, at most alpha leave the truth out at any look; a usual t interval does so in
    more than twice as many."""
    missed = 0
    for seed in range(60):
        before, after = summary(_noise(seed, 40)), _noise(10_000 + seed, 50)
        intervals = [slowdown(before, summary(after[:count]), 0.1) for count in range(2, 51, 3)]
        missed += any(each.low > 0 or each.high < 0 for each in intervals)
    assert missed <= 6


@pytest.mark.parametrize(("factor", "action"), [(1.5, Action.UNDO), (1.1, Action.UNDO), (1.0, Action.KEEP)])
def test_what_is_slower_is_undone_and_what_is_not_is_kept(factor: float, action: Action) -> None:
    before, after = _noise(1, 60, sigma=0.02), _noise(2, 54, factor, sigma=0.02)
    decisions = [evaluate(_watched(before, after[: at // 10], float(at))) for at in range(10, 541, 10)]
    first = next(each for each in decisions if each.action is not Action.WATCH)
    assert first.action is action
    if action is Action.UNDO:
        assert decisions.index(first) < 12, "two windows"


@pytest.mark.parametrize(("grows", "action"), [(True, Action.KEEP), (False, Action.UNDO)])
def test_faster_steps_are_believed_only_where_the_workload_got_more(grows: bool, action: Action) -> None:
    """With less it is in another phase, such as evaluation, and its training steps may be slower all the same."""
    watched = _watched(_noise(1, 60, sigma=0.02), _noise(2, 54, 0.8, sigma=0.02), 540.0, grows=grows)
    assert evaluate(watched).action is action


def test_a_slowdown_that_begins_late_is_not_hidden_by_what_was_before_it() -> None:
    before = _noise(1, 60, sigma=0.02)
    after = _noise(2, 20, sigma=0.02) + _noise(3, 12, 1.15, sigma=0.02)
    assert evaluate(_watched(before, after, 320.0)).action is Action.UNDO


def test_pauses_for_checkpoints_are_no_slowdown() -> None:
    before, after = _noise(1, 60, sigma=0.02), _noise(2, 40, sigma=0.02)
    before[10] = before[40] = after[20] = 2.0
    assert evaluate(_watched(before, after, 400.0)).action is Action.KEEP


def test_pauses_that_become_longer_are() -> None:
    before, after = _noise(1, 60, sigma=0.02), _noise(2, 40, sigma=0.02)
    before[10] = before[40] = 2.0
    after[10] = after[30] = 6.0
    assert evaluate(_watched(before, after, 400.0)).action is not Action.KEEP


@pytest.mark.parametrize(
    ("more", "code"), [({"restarts": 1}, "RESTARTED"), ({"silent_s": 100.0, "usual_gap_s": 11.0}, "STEPS_STALLED")]
)
def test_restarts_and_silence_undo_at_once(more: dict[str, float], code: str) -> None:
    decision = evaluate(_watched(_noise(1, 60), [], 30.0, **more))
    assert (decision.action, decision.reason.code) == (Action.UNDO, code)


def test_what_is_too_noisy_to_tell_is_undone_in_time() -> None:
    decision = evaluate(_watched(_noise(1, 30, sigma=0.5), _noise(2, 30, sigma=0.5), SETTINGS.deadline_s))
    assert (decision.action, decision.reason.code) == (Action.UNDO, "NOT_SHOWN_IN_TIME")


def test_without_steps_nothing_could_be_judged() -> None:
    assert too_few_steps([1.0] * 11) is not None
    assert too_few_steps([1.0] * 12) is None


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 5)), max_size=60))
def test_observations_share_no_step_and_leave_none_out(gaps: list[tuple[float, int]]) -> None:
    marks, at_s, step = [], 0.0, 0
    for gap_s, steps in gaps:
        at_s, step = at_s + gap_s, step + steps
        marks.append(StepMark(at_s, step))
    times = step_times(marks, 10.0)
    assert all(each.end_s - each.start_s >= 10 for each in times)
    assert all(left.end_s == right.start_s for left, right in pairwise(times))


def test_a_counter_that_starts_over_begins_anew() -> None:
    marks = [StepMark(0, 90), StepMark(10, 100), StepMark(20, 5), StepMark(30, 10)]
    assert [each.seconds for each in step_times(marks, 10.0)] == [1.0, 2.0]


def test_what_was_under_way_during_the_change_counts_for_neither_side() -> None:
    times = step_times([StepMark(float(at), at) for at in range(0, 101, 10)], 10.0)
    before, after = before_and_after(times, 45.0, 52.0)
    assert (before[-1].end_s, after[0].start_s) == (40.0, 60.0)
