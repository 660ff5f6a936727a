"""Back tests of run times: every job has an answer, by what had ended when it was submitted and nothing else."""

import random

import numpy as np
import pytest

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.quantile_trees import TreeSettings
from kopt.models.runtime.table import RunTimeTable
from kopt.training.runtime.backtest import Backtest, backtest_summaries


def _runs(count: int, seed: int, since_s: float = 0.0) -> tuple[JobRun, ...]:
    draw = random.Random(seed)
    result = []
    for at in range(count):
        started_s = since_s + 600.0 * at
        gpus = draw.choice((1, 8))
        took_s = draw.lognormvariate(8 if gpus == 1 else 9, 0.6)
        result.append(JobRun(f"{seed}-{at}", JobKind("research", gpus), started_s, started_s + took_s))
    return tuple(result)


def _fit(table: RunTimeTable) -> RunTimePredictor:
    return RunTimePredictor(TreeSettings(rounds=8, seeds=1)).fit(table)


def test_what_ends_later_changes_no_answer() -> None:
    """Also not by way of the models that are trained on the way."""
    past, runs = _runs(1_200, 1), _runs(400, 2, since_s=1_200 * 600.0)
    at_s = runs[250].started_s
    altered = tuple(
        run if run.ended_s is not None and run.ended_s <= at_s else JobRun(run.job, run.kind, run.started_s, 9e8)
        for run in runs
    )
    first, second = (
        {item.job: item.log_seconds for item in Backtest({"": of}, {"": past}).answers(None, _fit, 1)}
        for of in (runs, altered)
    )
    assert len(first) == len(runs)
    for run in runs[:251]:
        np.testing.assert_array_equal(first[run.job], second[run.job])
    assert any((first[run.job] != second[run.job]).any() for run in runs[251:])


def test_the_past_of_the_same_queues_is_a_history_and_that_of_others_is_not() -> None:
    past, runs = _runs(1_200, 1), _runs(20, 2, since_s=1_200 * 600.0)
    elsewhere = tuple(JobRun(run.job, JobKind("elsewhere", run.kind.gpus), run.started_s, run.ended_s) for run in past)
    known, unknown = (
        next(iter(Backtest({"": runs}, {"": of}).answers(None, _fit, 0))).recent for of in (past, elsewhere)
    )
    assert known is not None
    assert unknown is None


def test_too_little_to_train_on_is_said() -> None:
    with pytest.raises(ValueError, match="too little to learn from"):
        list(Backtest({"": _runs(20, 2)}, {"": _runs(100, 1)}).answers(None, _fit, 0))


def test_answers_of_regular_jobs_hold() -> None:
    past, runs = _runs(1_200, 1), _runs(300, 2, since_s=1_200 * 600.0)
    answered = list(Backtest({"": runs}, {"": past}).answers(None, _fit, 0))
    (of_all,) = backtest_summaries({"": runs}, answered)
    assert of_all.runs == 300
    assert 0.85 < of_all.coverage <= 1
    assert of_all.factor < 2
