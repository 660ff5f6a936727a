"""Quantiles of run times: between levels, once a job runs, and while a queue changes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.run_time import LEVELS, JobKind, JobRun, RunTimeError, RunTimeQuestion, StepProgress
from kopt.models.runtime.cluster_runs import ClusterRuns
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.loading import load_run_time
from kopt.models.runtime.predictor import RunTimePredictor, RunTimeRequest
from kopt.models.runtime.recent import recent_quantiles
from kopt.models.runtime.records import LEAST_COMPARED, WINDOW
from kopt.models.runtime.steps import remaining_seconds
from kopt.models.runtime.tracking import QuantileTracker

_QUANTILES = st.lists(st.floats(0, 15), min_size=7, max_size=7).map(sorted).map(tuple)


class Fixed:
    """A model that always answers the same quantiles, in log seconds less the base."""

    def __init__(self, middle: float = 0.0, width: float = 1.0) -> None:
        self.relative = middle + width * np.linspace(-1, 1, 7)

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.tile(self.relative, (len(features), 1))


def fitted() -> RunTimePredictor:
    """The shipped one; ``ClusterRuns`` say by which model they answer."""
    return load_run_time("shipped")


@given(values=_QUANTILES, log_seconds=st.floats(-2, 30))
def test_probability_and_quantile_are_inverse_where_it_can_be(values: tuple[float, ...], log_seconds: float) -> None:
    log_times = LogTimes(values)
    level = log_times.probability_below(log_seconds)
    assert 0 <= level <= 1
    if 1e-6 < level < 1 - 1e-6 and min(np.diff(values)) > 1e-3:
        assert log_times.quantile(level) == pytest.approx(log_seconds, abs=1e-6)


@given(values=_QUANTILES, elapsed=st.floats(0, 40))
def test_a_job_that_runs_is_never_shorter_than_it_has_run(values: tuple[float, ...], elapsed: float) -> None:
    log_times = LogTimes(values)
    quantiles_after = log_times.quantiles_after(elapsed, LEVELS)
    assert min(quantiles_after) >= elapsed
    assert list(quantiles_after) == sorted(quantiles_after)
    assert all(after >= before - 1e-9 for before, after in zip(values, quantiles_after, strict=True))


def test_the_conditional_distribution_is_that_of_the_survivors() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(8, 1.5, 400_000)
    log_times = LogTimes(tuple(np.quantile(logs, LEVELS)))
    elapsed = 9.0
    survivors = np.quantile(logs[logs > elapsed], LEVELS)
    assert log_times.quantiles_after(elapsed, LEVELS)[:5] == pytest.approx(survivors[:5], abs=0.25)


def test_tracking_brings_outer_quantiles_to_their_share_and_leaves_the_median() -> None:
    tracker, rng = QuantileTracker(), np.random.default_rng(1)
    narrow = np.linspace(7.9, 8.1, 7)
    outside = []
    for at in range(6_000):
        actual = float(rng.normal(8, 1))
        answered = tracker.apply(narrow)
        assert (np.diff(answered) >= 0).all()
        assert answered[3] == narrow[3]
        if at > 4_000:
            outside.append(not answered[0] <= actual <= answered[-1])
        tracker.observe(narrow, actual)
    assert np.mean(outside) == pytest.approx(0.1, abs=0.03)


def test_a_queue_that_changes_raises_the_alarm_and_falls_back_until_it_holds_again() -> None:
    """A model that is far off for a queue: the last runs answer instead, and say so."""
    model = Fixed(middle=3.0, width=0.1)
    runs, kind = ClusterRuns(model), JobKind("research", 8)
    rng = np.random.default_rng(2)

    def feed(first: int, count: int) -> None:
        runs.observe(
            [
                JobRun(f"{at}", kind, 1_000.0 * at, 1_000.0 * at + float(rng.uniform(500, 600)))
                for at in range(first, first + count)
            ]
        )

    predictor = fitted()
    request = RunTimeRequest(RunTimeQuestion(kind, 1e6), runs)
    feed(0, LEAST_COMPARED - 5)
    assert not predictor.answer(request).by_recent
    feed(LEAST_COMPARED, WINDOW)
    answer = predictor.answer(request)
    assert answer.by_recent
    assert {reason.code for reason in answer.reasons} == {"SIMILAR_RUNS", "RUN_TIME_DRIFT"}
    assert answer.run_seconds is not None
    assert 450 < answer.run_seconds[3] < 650
    last = pytest.approx(np.exp(recent_quantiles(runs.history.recent_log_seconds(kind))))
    assert answer.run_seconds == last, "older runs do not count"
    assert predictor.remaining([request.question], runs)[0].seconds == last
    model.relative = np.linspace(-0.05, 0.05, 7)
    feed(LEAST_COMPARED + WINDOW, 2 * WINDOW)
    assert not predictor.answer(request).by_recent, "it answers again once it is nearer"


def test_a_job_whose_start_was_seen_is_answered_by_what_was_known_then() -> None:
    kind = JobKind("q", 1)
    runs = ClusterRuns(Fixed())
    runs.observe([JobRun(f"{at}", kind, float(at), at + 100.0) for at in range(10)])
    runs.observe([JobRun("mine", kind, 1_000.0)])
    runs.observe([JobRun(f"late-{at}", kind, 1_001.0, 50_000.0) for at in range(10)])
    asked, _, _ = runs.quantiles(kind, 1_000.0, "mine")
    assert asked[3] == pytest.approx(math.log(100.0))


def test_runs_that_come_twice_or_out_of_order_count_once() -> None:
    kind = JobKind("q", 1)
    runs = ClusterRuns(Fixed())
    whole = [JobRun(f"{at}", kind, float(at), at + 100.0) for at in range(30)]
    runs.observe(list(reversed(whole)))
    assert len(runs.observe([JobRun("x", kind, 200.0)])) == 0
    assert len(runs.observe([JobRun("x", kind, 200.0)])) == 0
    assert len(runs.observe([JobRun("x", kind, 200.0, 300.0)])) == 1
    assert runs.history.describe(kind, 1_000.0).finished == 31
    assert len(runs.history) == 0


def test_steps_beat_history() -> None:
    predictor, runs = fitted(), ClusterRuns(Fixed())
    kind = JobKind("q", 1)
    runs.observe([JobRun(f"{at}", kind, float(at), at + 1e6) for at in range(10)])
    progress = StepProgress(900, 1_000, 5_000.0, (2.0,) * 20)
    answer = predictor.answer(RunTimeRequest(RunTimeQuestion(kind, 5_000.0, 3_000.0, progress), runs))
    assert answer.by_steps
    assert answer.remaining_seconds is not None
    assert answer.remaining_seconds[3] == pytest.approx(200.0)
    assert answer.run_seconds is not None
    assert answer.run_seconds[3] == pytest.approx(2_200.0)


@given(
    times=st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=50),
    done=st.integers(0, 1_000),
    late=st.floats(0, 1e6),
)
def test_what_is_left_is_positive_and_ordered(times: list[float], done: int, late: float) -> None:
    left = remaining_seconds(StepProgress(done, 1_000, 0.0, tuple(times)), late)
    assert np.isfinite(left).all()
    assert (left > 0).all()
    assert (np.diff(left) >= 0).all()


@pytest.mark.parametrize("bad", [(5, 4, (1.0,)), (0, 0, (1.0,)), (1, 2, ()), (1, 2, (0.0,)), (1, 2, (math.nan,))])
def test_progress_that_cannot_be_is_refused(bad: tuple[int, int, tuple[float, ...]]) -> None:
    with pytest.raises(RunTimeError):
        StepProgress(bad[0], bad[1], 0.0, bad[2])


@given(values=st.lists(st.floats(0, 15), min_size=1, max_size=40))
def test_few_runs_give_wide_answers(values: list[float]) -> None:
    answered = recent_quantiles(values)
    assert (np.diff(answered) >= -1e-9).all()
    assert answered[-1] - answered[0] > 2.4 / math.sqrt(21) - 1e-9


def test_regular_jobs_of_a_name_get_narrower_answers_than_their_queue() -> None:
    """Twice the same runs, with a name and without: the model is wide, what ran under the name is not."""
    widths = {}
    for kind in (JobKind("q", 1, "nightly", "ada"), JobKind("q", 1)):
        runs, rng = ClusterRuns(Fixed(width=2.0)), np.random.default_rng(3)
        runs.observe(
            [JobRun(f"{at}", kind, 2e4 * at, 2e4 * at + 3_600 * float(np.exp(rng.normal(0, 0.1)))) for at in range(120)]
        )
        answered, _, _ = runs.quantiles(kind, 1e7)
        assert (np.diff(answered) >= 0).all()
        widths[kind.name] = answered[-1] - answered[0]
    assert widths["nightly"] < 0.5 * widths[""]


def test_a_run_that_took_no_time_has_ended() -> None:
    runs, kind = ClusterRuns(Fixed()), JobKind("q", 1)
    runs.observe([JobRun("a", kind, 5.0, 5.0), JobRun("b", kind, 5.0)])
    assert runs.history.running_in("q") == 1
    assert runs.history.describe(kind, 6.0).finished == 1


def test_jobs_that_take_the_same_to_the_second_are_answered_so() -> None:
    """Whatever other clusters taught about such jobs."""
    kind, predictor = JobKind("batch", 4), fitted()
    memory = predictor.cluster_runs()
    memory.observe([JobRun(str(at), kind, 3_000.0 * at, 3_000.0 * at + 1_000.0) for at in range(30)])
    answer = predictor.answer(RunTimeRequest(RunTimeQuestion(kind, 91_000.0), memory))
    assert answer.run_seconds is not None
    assert answer.run_seconds[len(LEVELS) // 2] == pytest.approx(1_000.0, rel=1e-3)
    assert answer.run_seconds[0] < 1_000.0 < answer.run_seconds[-1]


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 job of this queue and number of GPUs has ended; it took 45 s."), (3, "the last 3 took 45 s")],
)
def test_few_runs_are_counted_as_few(count: int, text: str) -> None:
    predictor, kind = fitted(), JobKind("q", 1)
    runs = predictor.cluster_runs()
    runs.observe([JobRun(f"job-{at}", kind, 1e9 + 100 * at, 1e9 + 100 * at + 45) for at in range(count)])
    answer = predictor.answer(RunTimeRequest(RunTimeQuestion(kind, 1e9 + 1000), runs))
    assert text in answer.reasons[0].message
