"""What is left of a job that runs: by the model, and by runs like it that were longer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.run_time import LEVELS, JobKind, JobRun
from kopt.features.job_history import EndedRuns, GroupState, JobHistory
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.steps import remaining_of
from kopt.models.runtime.still_running import MODEL_WEIGHT, remaining_of_longer, remaining_while_running

KIND = JobKind("q", 8)
NORMAL = {0.05: -1.645, 0.1: -1.282, 0.25: -0.674, 0.5: 0.0, 0.75: 0.674, 0.9: 1.282, 0.95: 1.645}
MODEL = LogTimes(tuple(math.log(600) + NORMAL[level] for level in LEVELS))
MEDIAN = LEVELS.index(0.5)


def history(durations_s: list[float], kind: JobKind = KIND) -> JobHistory:
    result = JobHistory()
    for number, duration_s in enumerate(durations_s):
        result.end(JobRun(f"{kind.queue}-{number}", kind, 0.0, duration_s))
    return result


def test_a_class_with_a_long_part_has_it_left_once_its_short_runs_are_over() -> None:
    """Nine in ten last a minute, one in ten about a week: after a day nothing but the long ones speaks."""
    day, week = 86_400.0, 7 * 86_400.0
    ended = history([60.0] * 90 + list(np.linspace(0.9 * week, 1.1 * week, 10))).ended(KIND)
    by_runs, longer = remaining_of_longer(day, ended)
    assert by_runs is not None
    assert longer == pytest.approx(10, abs=2)
    assert by_runs[MEDIAN] == pytest.approx(week - day, rel=0.05)
    model, both = remaining_of(MODEL, day), remaining_while_running(MODEL, day, ended)
    assert (both[1:-1] > model[1:-1]).all()
    assert (both[1:-1] < by_runs[1:-1]).all()
    assert (both[0], both[-1]) == (model[0], by_runs[-1]), "where both are apart neither is sure"


def test_the_more_runs_were_longer_the_less_the_model_counts() -> None:
    answers = []
    for number in (5, 20, 100):
        ended = history([5_000.0] * number).ended(KIND)
        by_runs, longer = remaining_of_longer(1_000.0, ended)
        assert by_runs is not None
        assert longer == number
        model = math.log(remaining_of(MODEL, 1_000.0)[MEDIAN])
        both = math.log(remaining_while_running(MODEL, 1_000.0, ended)[MEDIAN])
        share = (both - model) / (math.log(4_000.0) - model)
        assert share == pytest.approx(number / (number + MODEL_WEIGHT))
        answers.append(share)
    assert answers == sorted(answers)


def test_a_wider_group_answers_where_few_of_the_class_were_longer() -> None:
    runs = history([100.0] * 50)
    for number in range(20):
        runs.end(JobRun(f"other-{number}", JobKind("q", 1), 0.0, 9_000.0))
    by_runs, longer = remaining_of_longer(1_000.0, runs.ended(KIND))
    assert by_runs is not None
    assert longer == pytest.approx(20, rel=0.2)
    assert by_runs[MEDIAN] == pytest.approx(8_000.0, rel=0.01)


@pytest.mark.parametrize("durations_s", [[], [100.0] * 50, [5_000.0] * 4])
def test_the_model_alone_answers_where_nothing_was_longer(durations_s: list[float]) -> None:
    both = remaining_while_running(MODEL, 1_000.0, history(durations_s).ended(KIND))
    assert (both == remaining_of(MODEL, 1_000.0)).all()


@given(
    st.lists(st.floats(0.0, 1e9), min_size=0, max_size=150),
    st.floats(0.001, 1e9),
)
def test_quantiles_are_in_order_and_not_negative(durations_s: list[float], elapsed_s: float) -> None:
    both = remaining_while_running(MODEL, elapsed_s, history(durations_s).ended(KIND))
    assert np.isfinite(both).all()
    assert (both >= 0).all()
    assert (np.diff(both) >= -1e-6 * np.abs(both[1:])).all()


@given(st.lists(st.floats(0.0, 1e9), min_size=0, max_size=150))
def test_what_is_stored_of_a_group_says_the_same(durations_s: list[float]) -> None:
    runs = history(durations_s)
    (state, *_) = runs.states([("class", "q", 8)]).values() or [GroupState()]
    assert GroupState.of_arrays(state.arrays()) == state
    assert state.ended() == runs.ended(KIND)[0]


def test_without_runs_no_group_has_quantiles() -> None:
    assert set(JobHistory().ended(KIND)) == {EndedRuns(0, ())}


def test_before_it_runs_the_middle_is_drawn_to_its_class_and_the_interval_is_the_models() -> None:
    both = remaining_while_running(MODEL, 0.0, history([5_000.0] * 90).ended(KIND))
    model = remaining_of(MODEL, 0.0)
    assert both[MEDIAN] == pytest.approx(math.exp(0.1 * math.log(600) + 0.9 * math.log(5_000)))
    assert both[0] == model[0]
    assert (np.diff(both) >= 0).all()
    close = remaining_while_running(MODEL, 0.0, history([600.0] * 90).ended(KIND))
    assert (close[0], close[-1]) == (model[0], model[-1])
    assert close[MEDIAN + 1] < model[MEDIAN + 1]
