"""The training table: a row for every run, described by what was known when it started."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.workload.run_time import JobRun
from kopt.features.job_history import FEATURES, Array, JobHistory, in_order

BURST_GAP_S = 900.0


@dataclass(frozen=True)
class Trace:
    """The runs of one cluster, which share a history. ``group`` names what is left out together with it."""

    name: str
    runs: tuple[JobRun, ...]
    group: str = ""


def run_as_of(run: JobRun, at_s: float) -> JobRun:
    """What was known of a run then: without its end where that came later."""
    return run if run.ended_s is not None and run.ended_s <= at_s else JobRun(run.job, run.kind, run.started_s)


def digest(runs: tuple[JobRun, ...]) -> str:
    """sha256 of a cluster's runs, by which a model's card remembers them."""
    return hashlib.sha256(repr(runs).encode()).hexdigest()


@dataclass(frozen=True)
class RunTimeTable:
    """``features`` (n, F) as ``FEATURES`` names them, ``base`` (n,) log seconds, ``log_seconds`` (n,) of the run, or
    its age where ``censored`` (n,), ``started_s`` and ``known_s`` (n,): from when on the duration is known.

    ``bursts`` (n,) numbers the bursts: runs of a class that started shortly after each other, as those of a sweep.
    Their features and times are nearly the same, so they are less than as many independent observations.
    """

    features: Array
    base: Array
    log_seconds: Array
    censored: NDArray[np.bool_]
    started_s: Array
    known_s: Array
    bursts: NDArray[np.int64]
    runs: tuple[JobRun, ...]

    def __post_init__(self) -> None:
        rows = len(self.features)
        if self.features.shape != (rows, len(FEATURES)):
            raise ValueError(f"features {self.features.shape} are not {len(FEATURES)} columns")
        columns = (self.base, self.log_seconds, self.censored, self.started_s, self.known_s, self.bursts, self.runs)
        if any(len(column) != rows for column in columns):
            raise ValueError("every column must have a value per run")

    def __len__(self) -> int:
        return len(self.features)

    def weights(self) -> Array:
        """Of each row (n,): one by the root of the size of its burst, with a mean of 1."""
        sizes = np.bincount(self.bursts)[self.bursts] if len(self) else np.zeros(0)
        weights: Array = 1 / np.sqrt(sizes)
        return weights / weights.mean() if len(self) else weights

    def where(self, mask: NDArray[np.bool_]) -> "RunTimeTable":
        """The rows that ``mask`` selects."""
        return RunTimeTable(
            self.features[mask],
            self.base[mask],
            self.log_seconds[mask],
            self.censored[mask],
            self.started_s[mask],
            self.known_s[mask],
            self.bursts[mask],
            tuple(run for run, kept in zip(self.runs, mask, strict=True) if kept),
        )

    def as_of(self, at_s: float) -> "RunTimeTable":
        """What could be learned at ``at_s``: runs that had started, and those that had not ended as censored."""
        rows = self.where(self.started_s < at_s)
        is_running = rows.known_s > at_s
        ages = np.log(np.maximum(1.0, at_s - rows.started_s))
        return RunTimeTable(
            rows.features,
            rows.base,
            np.where(is_running, ages, rows.log_seconds),
            rows.censored | is_running,
            rows.started_s,
            np.where(is_running, at_s, rows.known_s),
            rows.bursts,
            rows.runs,
        )


def table_of(trace: Trace) -> RunTimeTable:
    """A row for each run of a trace, in the order of their starts; runs that go on are censored at the trace's end."""
    history = JobHistory()
    last_s = max((run.ended_s or run.started_s for run in trace.runs), default=0.0)
    features: list[Array] = []
    base, started_runs = [], []
    for at_s, has_ended, run in in_order(trace.runs):
        if has_ended:
            history.end(run)
            continue
        described = history.describe(run.kind, at_s)
        history.start(run)
        features.append(described.features)
        base.append(described.base)
        started_runs.append(run)
    known_s = np.array([last_s if run.ended_s is None else run.ended_s for run in started_runs])
    started_s = np.array([run.started_s for run in started_runs])
    return RunTimeTable(
        np.array(features, dtype=np.float32).astype(float).reshape(len(features), len(FEATURES)),
        np.array(base),
        np.log(np.maximum(1.0, known_s - started_s)) if started_runs else np.zeros(0),
        np.array([run.duration_seconds is None for run in started_runs], dtype=bool),
        started_s,
        known_s,
        _bursts(started_runs),
        tuple(started_runs),
    )


def _bursts(runs: Sequence[JobRun]) -> NDArray[np.int64]:
    """A number per run, the same for runs of a class of which each started at most ``BURST_GAP_S`` after another."""
    result = np.zeros(len(runs), dtype=np.int64)
    last: dict[tuple[str, int], tuple[float, int]] = {}
    count = 0
    for at, run in enumerate(runs):
        key = (run.kind.queue, run.kind.gpus)
        before_s, number = last.get(key, (-np.inf, 0))
        if run.started_s - before_s > BURST_GAP_S:
            number, count = count, count + 1
        last[key] = (run.started_s, number)
        result[at] = number
    return result


def joined(tables: Sequence[RunTimeTable]) -> RunTimeTable:
    """The rows of several tables. Raises ValueError without any."""
    if not tables:
        raise ValueError("there is no run to learn from")
    firsts = np.cumsum([0, *(int(table.bursts.max(initial=-1)) + 1 for table in tables)])
    return RunTimeTable(
        np.concatenate([table.features for table in tables]),
        np.concatenate([table.base for table in tables]),
        np.concatenate([table.log_seconds for table in tables]),
        np.concatenate([table.censored for table in tables]),
        np.concatenate([table.started_s for table in tables]),
        np.concatenate([table.known_s for table in tables]),
        np.concatenate([table.bursts + first for table, first in zip(tables, firsts, strict=False)]),
        tuple(run for table in tables for run in table.runs),
    )
