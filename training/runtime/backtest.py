"""What would have been answered when each job of a table was submitted, by what had ended until then.

The model is trained again as time goes on, as its CronJob does in a cluster, each time on what was known then.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kopt.core.workload.run_time import JobRun
from kopt.features.job_history import Array
from kopt.models.registry.artifact import ModelCard
from kopt.models.runtime.cluster_runs import ClusterRuns, Outcome
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.table import RunTimeTable, Trace, digest, joined, run_as_of, table_of
from kopt.training.runtime.scoring import RunTimeSummary, summary, trace_run

LEAST_LEARNED = 1_000
"""Runs that ended from which on they are worth a model."""
Runs = Mapping[str, tuple[JobRun, ...]]
"""By cluster."""
Fit = Callable[[RunTimeTable], RunTimePredictor]


@dataclass(frozen=True)
class Answered:
    """Quantiles (7,) of a run, and those that its last runs alone gave (None without any), in log seconds; as known
    when it was submitted."""

    cluster: str
    job: str
    log_seconds: Array
    recent: Array | None


@dataclass(frozen=True)
class Backtest:
    """``past`` is learned from before the first run. Where it is of the same cluster it is that one's history too."""

    runs: Runs
    past: Runs = field(default_factory=dict)

    def answers(self, model: RunTimePredictor | None, fit: Fit, times: int) -> Iterator[Answered]:
        """Of every run. ``model`` answers first (None: one that is trained on the past), and ``times`` times another
        that ``fit`` trains on what is known by then. Raises ValueError where there is too little to train the first."""
        memories: dict[str, ClusterRuns] = {}
        for since_s, until_s in itertools.pairwise([-np.inf, *self._edges_s(times), np.inf]):
            if model is None or since_s > -np.inf:
                model = self._trained(fit, since_s) or model
            if model is None:
                raise ValueError(f"fewer than {LEAST_LEARNED:,} runs had ended; that is too little to learn from")
            for cluster in self.runs:
                memory = memories.setdefault(cluster, model.cluster_runs())
                memory.answer_by(model.trees)
                yield from self._part(cluster, memory, since_s, until_s)

    def _edges_s(self, times: int) -> tuple[float, ...]:
        """With as many runs between two of them."""
        starts_s = [run.started_s for runs in self.runs.values() for run in runs]
        return tuple(np.quantile(starts_s, np.arange(1, times + 1) / (times + 1)).tolist()) if starts_s else ()

    def _part(self, cluster: str, memory: ClusterRuns, since_s: float, until_s: float) -> Iterator[Answered]:
        """Of the runs that started from ``since_s`` until ``until_s``."""
        history, runs = self._histories[cluster], self.runs[cluster]
        news = [
            run_as_of(run, until_s)
            for run in itertools.chain(history, runs)
            if run.started_s < until_s and (run.started_s >= since_s or run.ended_s is None or run.ended_s > since_s)
        ]
        jobs = {run.job for run in runs}
        answered: list[Answered] = []

        def keep(run: JobRun, log_seconds: Array, recent: Array | None) -> None:
            if run.job in jobs:
                answered.append(Answered(cluster, run.job, log_seconds, recent))

        memory.observe(news, answer_last=sum(run.job in jobs for run in news), on_answer=keep)
        yield from answered

    def _trained(self, fit: Fit, at_s: float) -> RunTimePredictor | None:
        """By what was known then; None where that is too little."""
        own, others = self._tables
        first_s = min((run.started_s for runs in self.runs.values() for run in runs), default=at_s)
        tables = [table.as_of(max(at_s, first_s)) for table in own] + list(others)
        ended = sum(int((~table.censored).sum()) for table in tables)
        return fit(joined(tables)) if ended >= LEAST_LEARNED else None

    @cached_property
    def _histories(self) -> dict[str, tuple[JobRun, ...]]:
        return {cluster: self._history(cluster, runs) for cluster, runs in self.runs.items()}

    def _history(self, cluster: str, runs: tuple[JobRun, ...]) -> tuple[JobRun, ...]:
        """The past runs of a cluster that started before its first run. None where the two have no queue in common:
        clusters of two tables that give no name are not the same."""
        past = self.past.get(cluster, ())
        queues, first_s = {run.kind.queue for run in runs}, min((run.started_s for run in runs), default=0.0)
        if not any(run.kind.queue in queues for run in past):
            return ()
        return tuple(run for run in past if run.started_s < first_s)

    @cached_property
    def _tables(self) -> tuple[tuple[RunTimeTable, ...], tuple[RunTimeTable, ...]]:
        """Of the clusters that the runs are of, and of the others of the past."""
        own = [Trace(name, (*self._histories[name], *runs)) for name, runs in self.runs.items()]
        others = [Trace(name, runs) for name, runs in self.past.items() if not self._histories.get(name)]
        return tuple(map(table_of, own)), tuple(map(table_of, others))


def backtest_summaries(runs: Runs, answered: Iterable[Answered]) -> tuple[RunTimeSummary, ...]:
    """How the answers held, by cluster; of runs that ended and had a predecessor."""
    by_job = {(item.cluster, item.job): item for item in answered}
    result = []
    for cluster, of_cluster in sorted(runs.items()):
        outcomes = []
        for run in of_cluster:
            item = by_job[cluster, run.job]
            if run.duration_seconds is not None:
                log_seconds = math.log(max(1.0, run.duration_seconds))
                outcomes.append(Outcome(run, item.log_seconds, item.recent, log_seconds))
        trace = trace_run(cluster, outcomes, -math.inf)
        if trace.months:
            result.append(summary(cluster, [trace]))
    return tuple(result)


def trained_on(card: ModelCard, runs: Runs) -> tuple[str, ...]:
    """The clusters whose runs, just these, a model was trained on."""
    digests = {file.digest for file in card.training_data}
    return tuple(sorted(cluster or "the only cluster" for cluster, of_it in runs.items() if digest(of_it) in digests))
