"""A small run-time predictor and what to ask it."""

import math
from typing import Any

from kopt.core.workload.run_time import JobKind, JobRun, RunTimeQuestion, StepProgress
from kopt.models.runtime.cluster_runs import ClusterRuns
from kopt.models.runtime.predictor import RunTimePredictor, RunTimeRequest
from kopt.models.runtime.quantile_trees import TreeSettings
from kopt.models.runtime.table import Trace, table_of

PREDICTOR = RunTimePredictor
_QUEUES = ("research", "batch")


def make() -> RunTimePredictor:
    return RunTimePredictor(TreeSettings(rounds=8, leaves=7, least_in_leaf=10))


def runs(count: int = 400) -> tuple[JobRun, ...]:
    """Made-up jobs: a queue of long ones, a queue of short ones; the last few go on."""
    result = []
    for at in range(count):
        queue = _QUEUES[at % 2]
        seconds = (7_200.0 if queue == "research" else 300.0) * math.exp(math.sin(at) / 2)
        ended_s = None if at >= count - 4 else 600.0 * at + seconds
        result.append(JobRun(f"job-{at}", JobKind(queue, 1 + 7 * (at % 3 == 0)), 600.0 * at, ended_s))
    return tuple(result)


def table() -> Any:
    return table_of(Trace("made-up", runs()))


class _Middle:
    """A model that answers what such jobs took before, times two either way."""

    def predict(self, features: Any) -> Any:
        import numpy as np

        return np.linspace(-1.0, 1.0, 7) + np.zeros((len(features), 7))


def _known() -> ClusterRuns:
    result = ClusterRuns(_Middle())
    result.observe(runs())
    return result


def requests() -> list[RunTimeRequest]:
    """Before a start, while it runs, by steps, and of a queue that nobody has seen."""
    known, at_s = _known(), 600.0 * 400
    progress = StepProgress(100, 1_000, at_s, (2.0, 2.1, 1.9, 2.0))
    questions = [
        RunTimeQuestion(JobKind("research", 8), at_s),
        RunTimeQuestion(JobKind("batch", 1), at_s, started_s=at_s - 86_400),
        RunTimeQuestion(JobKind("batch", 1), at_s, started_s=at_s - 250, job="job-399"),
        RunTimeQuestion(JobKind("batch", 1), at_s, started_s=at_s - 250, progress=progress),
        RunTimeQuestion(JobKind("new", 64, "train", "ada"), at_s),
    ]
    return [RunTimeRequest(question, known) for question in questions]


def refused() -> list[RunTimeRequest]:
    """A cluster in which no job has ended."""
    return [RunTimeRequest(RunTimeQuestion(JobKind("research", 8), 0.0), ClusterRuns(_Middle()))]
