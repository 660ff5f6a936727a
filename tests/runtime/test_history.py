"""What is known of jobs at a moment: nothing of what comes later."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.run_time import JobKind, JobRun, RunTimeError
from kopt.features.job_history import ENDED_LEVELS, FEATURES, JobHistory, quantiles_of
from kopt.models.runtime.table import BURST_GAP_S, Trace, joined, table_of

_OF_WHOM = (("", ""), ("t", "u"))
_KINDS = [JobKind(queue, gpus, name, user) for queue in "ab" for gpus in (1, 8) for name, user in _OF_WHOM]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(3, 40))
    starts = sorted(draw(st.lists(st.integers(0, 5_000), min_size=count, max_size=count)))
    runs = [
        JobRun(
            f"job-{at}",
            draw(st.sampled_from(_KINDS)),
            float(started_s),
            draw(st.one_of(st.none(), st.integers(0, 4_000).map(lambda took, since=started_s: float(since + took)))),
        )
        for at, started_s in enumerate(starts)
    ]
    return Trace("made-up", tuple(runs))


@given(trace=traces(), share=st.floats(0.1, 1.0))
def test_what_comes_later_changes_no_features(trace: Trace, share: float) -> None:
    middle_s = trace.runs[int(share * (len(trace.runs) - 1))].started_s
    known = tuple(
        run if run.ended_s is not None and run.ended_s <= middle_s else JobRun(run.job, run.kind, run.started_s)
        for run in trace.runs
        if run.started_s <= middle_s
    )
    whole, cut = table_of(trace), table_of(Trace("cut", known))
    np.testing.assert_array_equal(whole.features[: len(cut)], cut.features)
    np.testing.assert_array_equal(whole.base[: len(cut)], cut.base)


@given(trace=traces())
def test_ends_of_jobs_that_still_run_are_not_told(trace: Trace) -> None:
    """A job that runs at the moment of asking has the same influence, however long it will run."""
    at_s = trace.runs[-1].started_s
    longer = tuple(
        run if run.ended_s is not None and run.ended_s <= at_s else JobRun(run.job, run.kind, run.started_s, 1e9)
        for run in trace.runs
    )
    np.testing.assert_array_equal(table_of(trace).features[-1], table_of(Trace("longer", longer)).features[-1])


@given(trace=traces(), at=st.floats(0, 6_000))
def test_as_of_keeps_ages_of_what_runs(trace: Trace, at: float) -> None:
    rows = table_of(trace).as_of(at)
    assert (rows.started_s < at).all()
    assert (rows.known_s <= at).all()
    ages = np.log(np.maximum(1.0, at - rows.started_s))
    assert (rows.log_seconds <= ages + 1e-9).all()


def test_features_are_named() -> None:
    history = JobHistory()
    assert len(history.describe(_KINDS[0], 0.0).features) == len(FEATURES) == len(set(FEATURES))


def test_scale_does_not_matter_but_for_the_base() -> None:
    """Twice the times give the same durations relative to the base."""
    rng = random.Random(1)
    kind = JobKind("a", 1)
    bases, relative = [], []
    for factor in (1.0, 2.0):
        rng.seed(1)
        history = JobHistory()
        for at in range(30):
            took = factor * rng.uniform(100, 10_000)
            history.end(JobRun(str(at), kind, factor * 20_000.0 * at, factor * 20_000.0 * at + took))
        described = history.describe(kind, factor * 700_000.0)
        bases.append(described.base)
        relative.append(described.features[FEATURES.index("class_high_20")])
    assert bases[1] - bases[0] == pytest.approx(math.log(2))
    assert relative[0] == pytest.approx(relative[1])


def test_what_was_interrupted_neither_runs_nor_counts() -> None:
    history, kind = JobHistory(), JobKind("a", 1)
    history.end(JobRun("1", kind, 0.0, 100.0))
    before = history.describe(kind, 500.0).features
    history.end(JobRun("2", kind, 110.0, 400.0, interrupted=True))
    after = history.describe(kind, 500.0)
    assert (after.finished, history.running_in("a")) == (1, 0)
    changed = {FEATURES[at] for at in np.flatnonzero(~np.isclose(before, after.features, equal_nan=True))}
    assert all("since_start" in name or "_started_" in name for name in changed), "a start was a start"


def test_jobs_of_a_name_are_a_class_once_two_have_ended() -> None:
    history = JobHistory()
    named, other = JobKind("a", 1, "train", "ada"), JobKind("a", 1)
    history.end(JobRun("1", other, 0.0, 10.0))
    for at in range(2):
        assert history.describe(named, 100.0).level == "class"
        history.end(JobRun(f"named-{at}", named, 0.0, 5_000.0))
    described = history.describe(named, 6_000.0)
    assert (described.level, described.finished) == ("name", 2)
    assert described.base == pytest.approx(math.log(5_000.0))
    assert history.describe(JobKind("a", 1, "train", "bob"), 6_000.0).level == "class"


def test_widens_to_the_queue_the_size_and_the_cluster() -> None:
    history = JobHistory()
    assert history.describe(JobKind("a", 1), 0.0).level == "none"
    history.end(JobRun("1", JobKind("a", 1), 0.0, 10.0))
    levels = [history.describe(kind, 20.0).level for kind in (JobKind("a", 1), JobKind("a", 4), JobKind("b", 1))]
    assert levels == ["class", "queue", "gpus"]
    assert history.describe(JobKind("b", 4), 20.0).level == "all"


def test_bursts_count_as_less_than_their_runs() -> None:
    kind = JobKind("a", 1)
    sweep = [JobRun(f"s{at}", kind, 10.0 * at, 5_000.0) for at in range(16)]
    alone = JobRun("alone", kind, 150.0 + 2 * BURST_GAP_S, 9_000.0)
    weights = table_of(Trace("t", (*sweep, alone))).weights()
    assert weights[-1] == pytest.approx(4 * weights[0])
    both = joined([table_of(Trace("t", (*sweep, alone)))] * 2)
    assert len(set(both.bursts)) == 4, "bursts of different traces are different"


@pytest.mark.parametrize(("started_s", "ended_s"), [(10.0, 9.0), (math.nan, None), (0.0, math.inf), (1e12, None)])
def test_runs_that_cannot_be_are_refused(started_s: float, ended_s: float | None) -> None:
    with pytest.raises(RunTimeError, match="job 'x'"):
        JobRun("x", JobKind("a", 1), started_s, ended_s)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=120))
def test_quantiles_are_those_of_numpy(values: list[float]) -> None:
    expected = np.quantile(values, ENDED_LEVELS)
    np.testing.assert_array_equal(quantiles_of(sorted(values), ENDED_LEVELS), expected)
