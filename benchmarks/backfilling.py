"""What scheduling gains from predicted run times: waits under backfilling, by whose estimates it goes.

``KOPT_DATA_DIR/jobs``: the later 30 % of Philly's runs, submitted when they started there, on one pool whose GPUs are
asked for 95 and 120 % of the time; and Microsoft's ITP cluster 05, whose jobs are as large as its pool, after a first
fifth that only teaches, at 70 %, by a model of Philly's. Estimates: *users'* are the run time times a uniform factor
from 1 to 10, rounded up to what people write (15 min, 1 h, 2 h, 4 h, 8 h, 12 h, 1, 2, 4, 7, 14, 30 days), as Tsafrir,
Etsion and Feitelson model them (Modeling user runtime estimates, 2005); *kopt*'s are the 95 % quantile when a job is
submitted, by a model of what had ended before, fed with what ends in the replay; *last 20* the same quantile of the
last runs of a queue and size; *perfect* is the run time itself. What runs for longer than was estimated is estimated
anew.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobRun
from kopt.features.job_history import NO_HISTORY_LOG_SECONDS
from kopt.models.runtime.cluster_runs import ClusterRuns
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.recent import recent_quantiles
from kopt.models.runtime.table import table_of
from kopt.policies.backfilling import Holding, PendingJob, conservative, easy, fifo
from kopt.simulator.backfilling import Choose, Estimates, Started, replay
from kopt.training.runtime.default_data import DEFAULT_DATA
from kopt.training.runtime.recipe import RunDataset, window_start_s

_TRACE, _LOADS = "philly_first_half", (0.95, 1.2)
_SMALL, _SMALL_LOAD = "ms_itp_odd_clusters/cluster05", 0.7
_LEVEL = 0.95
_WRITTEN_HOURS = (0.25, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720)
_CONSERVATIVE_DEPTH = 20
_SHORTEST = "EASY, shortest first"


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / DEFAULT_DATA.folder
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    dataset: RunDataset = DEFAULT_DATA.read(folder, Settings(home=Path()))
    (trace,) = dataset.of([_TRACE])
    (small,) = dataset.of([_SMALL])
    table = table_of(trace)
    from_s = window_start_s(table)
    model = RunTimePredictor().fit(table.as_of(from_s))
    jobs = [run for run in trace.runs if run.started_s >= from_s]
    before = [run for run in trace.runs if run.ended_s is not None and run.ended_s < from_s]
    rows = []
    for load in _LOADS:
        rows += _compared(jobs, before, model, _gpus(jobs, from_s, load), load)
    from_s = sorted(run.started_s for run in small.runs)[len(small.runs) // 5]
    jobs = [run for run in small.runs if run.started_s >= from_s]
    before = [run for run in small.runs if run.ended_s is not None and run.ended_s < from_s]
    model = RunTimePredictor().fit(table)
    rows += _compared(jobs, before, model, _gpus(jobs, from_s, _SMALL_LOAD), _SMALL_LOAD)
    head = (
        "load",
        "GPUs",
        "policy",
        "estimates",
        "mean wait (h)",
        "by users'",
        "median (h)",
        "p95 (h)",
        "later than FIFO",
    )
    print(markdown(head, rows))
    return 0


def _gpus(jobs: Sequence[JobRun], from_s: float, load: float) -> int:
    work = sum(job.kind.gpus * (job.duration_seconds or 0.0) for job in jobs)
    span_s = max(job.started_s for job in jobs) - from_s
    return max(max(job.kind.gpus for job in jobs), round(work / span_s / load))


def _compared(
    jobs: Sequence[JobRun], before: Sequence[JobRun], model: RunTimePredictor, gpus: int, load: float
) -> list[tuple[str, ...]]:
    def predicted() -> Estimates:
        return Predicted(model.cluster_runs(), before, by_model=True)

    def recent() -> Estimates:
        return Predicted(model.cluster_runs(), before, by_model=False)

    variants: list[tuple[str, Choose, str, Callable[[], Estimates]]] = [
        ("in turn", _in_turn, "–", Perfect),
        ("EASY", easy, "users'", Written),
        ("EASY", easy, "last 20", recent),
        ("EASY", easy, "kopt", predicted),
        ("EASY", easy, "perfect", Perfect),
        (_SHORTEST, _shortest_first, "users'", Written),
        (_SHORTEST, _shortest_first, "last 20", recent),
        (_SHORTEST, _shortest_first, "kopt", predicted),
        (_SHORTEST, _shortest_first, "perfect", Perfect),
        ("conservative", _conservative, "users'", Written),
        ("conservative", _conservative, "kopt", predicted),
        ("conservative", _conservative, "perfect", Perfect),
    ]
    in_turn: dict[str, float] = {}
    users: dict[str, float] = {}
    rows = []
    for policy, choose, whose, estimates in variants:
        started = replay(jobs, gpus, choose, estimates())
        if not in_turn:
            in_turn = {item.job.job: item.start_s for item in started}
        waits_s = np.array([item.wait_s for item in started])
        mean = float(waits_s.mean())
        if whose == "users'":
            users[policy] = mean
        base = users.get(policy)
        rows.append(
            (
                f"{load:.0%}",
                str(gpus),
                policy,
                whose,
                f"{mean / 3600:.2f}",
                "–" if base is None or whose == "users'" else f"{mean / base - 1:+.0%}",
                f"{np.median(waits_s) / 3600:.2f}",
                f"{np.quantile(waits_s, 0.95) / 3600:.1f}",
                _later(started, in_turn),
            )
        )
        print("; ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _later(started: Sequence[Started], in_turn: dict[str, float]) -> str:
    """The share of jobs that start later than in turn, and by how much those in the 95th percentile of all do."""
    delays = np.array([item.start_s - in_turn[item.job.job] for item in started])
    return f"{np.mean(delays > 60):.1%}, p95 {max(0.0, float(np.quantile(delays, 0.95))) / 3600:.2f} h"


def _in_turn(free: int, queue: Sequence[PendingJob], running: Sequence[Holding], now_s: float) -> list[int]:
    return fifo(free, queue)


def _shortest_first(free: int, queue: Sequence[PendingJob], running: Sequence[Holding], now_s: float) -> list[int]:
    return easy(free, queue, running, now_s, shortest_first=True)


def _conservative(free: int, queue: Sequence[PendingJob], running: Sequence[Holding], now_s: float) -> list[int]:
    return conservative(free, queue, running, now_s, _CONSERVATIVE_DEPTH)


class Perfect:
    """The run time itself."""

    def whole(self, job: JobRun, now_s: float) -> float:
        return job.duration_seconds or 0.0

    def remaining(self, job: JobRun, elapsed_s: float, now_s: float) -> float:
        return max(0.0, (job.duration_seconds or 0.0) - elapsed_s)

    def started(self, job: JobRun, now_s: float) -> None: ...

    def ended(self, job: JobRun, started_s: float, now_s: float) -> None: ...


class Written(Perfect):
    """What users write: never too short, and mostly much too long."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def whole(self, job: JobRun, now_s: float) -> float:
        hours = (job.duration_seconds or 0.0) * float(self._rng.uniform(1, 10)) / 3600
        written = next((value for value in _WRITTEN_HOURS if value >= hours), hours)
        return max(written * 3600, job.duration_seconds or 0.0)


class Predicted:
    """The 95 % quantile at the submission; conditional on its age where a job runs for longer."""

    def __init__(self, runs: ClusterRuns, before: Sequence[JobRun], *, by_model: bool) -> None:
        self._runs, self._by_model = runs, by_model
        runs.observe(before, answer_last=2_000)
        self._times: dict[str, LogTimes] = {}

    def whole(self, job: JobRun, now_s: float) -> float:
        if self._by_model:
            quantiles, _, _ = self._runs.quantiles(job.kind, now_s)
        else:
            values = self._runs.history.recent_log_seconds(job.kind)
            quantiles = recent_quantiles(values or (NO_HISTORY_LOG_SECONDS,))
        times = self._times[job.job] = LogTimes(tuple(quantiles.tolist()))
        return float(np.exp(times.quantile(_LEVEL)))

    def remaining(self, job: JobRun, elapsed_s: float, now_s: float) -> float:
        (whole,) = self._times[job.job].quantiles_after(float(np.log(max(1.0, elapsed_s))), (_LEVEL,))
        return float(np.exp(whole)) - elapsed_s

    def started(self, job: JobRun, now_s: float) -> None:
        self._runs.observe([JobRun(job.job, job.kind, now_s)])

    def ended(self, job: JobRun, started_s: float, now_s: float) -> None:
        self._runs.observe([JobRun(job.job, job.kind, started_s, now_s)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
