"""How well reservations are kept, and how much of their GPUs is used until they start, by whose estimates it goes.

``KOPT_DATA_DIR/jobs``: the later 30 % of Philly's runs and of two ITP clusters', submitted when they started there, on
a pool whose GPUs are asked for 105 % of the time, so that jobs wait, with reservations of an eighth to a quarter of it
for two hours, one at a random time of each half day. No owner comes: what is measured is whether the GPUs were there
within a minute of the start, and what others did with them in the day before, up to the lead of ten minutes.

A third of the jobs with at least two hours and two GPUs can be stopped (they save every half hour). *nobody*: reserved
GPUs stay empty for that day; *p50* and *kopt p95*: what ends before the start by that quantile, or can be stopped;
*true*: the same by the run times themselves. *no reservations* is the same trace without any.
"""

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.backfilling import Perfect, Predicted
from benchmarks.tables import markdown
from kopt.core.settings import Settings
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.run_time import JobRun
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.table import table_of
from kopt.policies.reservations import Claim, PoolPlan, PoolSnapshot, plan_pool
from kopt.simulator.backfilling import Estimates
from kopt.simulator.reservations import Replay, Replayed, Saves
from kopt.training.runtime.default_data import DEFAULT_DATA
from kopt.training.runtime.recipe import window_start_s

_LOAD, _SMALL = 1.05, 1
_EVERY_S, _LENGTH_S, _LEAD_S, _WITHIN_S = 43_200.0, 7200.0, 600.0, 60.0
_SEEDS = 3


class Quantile(Predicted):
    """Another level of the same prediction."""

    level = 0.5

    def whole(self, job: JobRun, now_s: float) -> float:
        super().whole(job, now_s)
        return float(np.exp(self._times[job.job].quantile(self.level)))

    def remaining(self, job: JobRun, elapsed_s: float, now_s: float) -> float:
        (whole,) = self._times[job.job].quantiles_after(float(np.log(max(1.0, elapsed_s))), (self.level,))
        return float(np.exp(whole)) - elapsed_s


def nobody(snapshot: PoolSnapshot) -> PoolPlan:
    """Nothing starts on reserved GPUs: whatever is known of a job, it counts as one that never ends."""
    pending = tuple(replace(job, run_s=None, is_killable=False) for job in snapshot.pending)
    running = tuple(replace(job, remaining_s=None) for job in snapshot.running)
    return plan_pool(replace(snapshot, pending=pending, running=running))


@dataclass(frozen=True)
class Case:
    """A trace on a pool, and what was known before it began."""

    name: str
    jobs: list[JobRun]
    before: list[JobRun]
    model: RunTimePredictor
    gpus: int

    def claims(self, seed: int) -> list[Claim]:
        rng = np.random.default_rng(seed)
        first_s, last_s = self.jobs[0].started_s + 86_400, self.jobs[-1].started_s - 86_400
        result = []
        for number, from_s in enumerate(np.arange(first_s, last_s - _EVERY_S, _EVERY_S)):
            start_s = float(from_s + rng.uniform(0, _EVERY_S - _LENGTH_S))
            gpus = int(self.gpus * rng.uniform(1 / 8, 1 / 4)) * WHOLE_GPU
            result.append(Claim(f"{number}", "owner", gpus, start_s, start_s + _LENGTH_S, _LEAD_S))
        return result


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / DEFAULT_DATA.folder
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    rows = [row for name in arguments or TRACES for row in _rows(_case(folder, name))]
    head = ("trace", "GPUs", "by", "reservations", "met", "late p99 (s)", "backfilled", "of true", "of its gain",
            "small jobs' wait", "against none", "stopped", "lost GPU-h")  # fmt: skip
    print(markdown(head, rows))
    return 0


TRACES = ("philly_first_half", "ms_itp_odd_clusters/cluster07", "ms_itp_odd_clusters/cluster09")


def _case(folder: Path, name: str) -> Case:
    (trace,) = DEFAULT_DATA.read(folder, Settings(home=Path())).of([name])
    table = table_of(trace)
    from_s = window_start_s(table)
    jobs = sorted((run for run in trace.runs if run.started_s >= from_s), key=lambda run: run.started_s)
    before = [run for run in trace.runs if run.ended_s is not None and run.ended_s < from_s]
    work = sum(job.kind.gpus * (job.duration_seconds or 0.0) for job in jobs)
    gpus = max(max(job.kind.gpus for job in jobs), round(work / (jobs[-1].started_s - from_s) / _LOAD))
    return Case(name, jobs, before, RunTimePredictor().fit(table.as_of(from_s)), gpus)


def _is_killable(job: JobRun) -> bool:
    long = (job.duration_seconds or 0.0) >= 7200 and job.kind.gpus >= 2
    return long and zlib.crc32(job.job.encode()) % 3 == 0


def _rows(case: Case) -> list[tuple[str, ...]]:
    def at(level: float) -> Callable[[], Estimates]:
        def made() -> Estimates:
            estimates = Quantile(case.model.cluster_runs(), case.before, by_model=True)
            estimates.level = level
            return estimates

        return made

    variants = (
        ("nobody", Perfect, nobody),
        ("true", Perfect, plan_pool),
        ("p50", at(0.5), plan_pool),
        ("kopt p95", at(0.95), plan_pool),
    )
    saves = Saves(_is_killable)
    without = Replay(case.jobs, case.gpus, (), Perfect(), saves).run()
    rows, shares = [], dict[str, float]()
    for name, estimates, plan in variants:
        runs = [
            Replay(case.jobs, case.gpus, case.claims(seed), estimates(), saves, plan=plan).run()
            for seed in range(_SEEDS)
        ]
        shares[name] = _share(runs)
        rows.append(_row(case, name, runs, without, shares))
        print("; ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _share(runs: Sequence[Replayed]) -> float:
    kept = [kept for run in runs for kept in run.kept]
    return sum(item.backfilled_gpu_s for item in kept) / sum(item.held_gpu_s for item in kept)


def _gain(name: str, shares: dict[str, float]) -> str:
    """What running jobs had anyway does not count."""
    if "true" not in shares or shares["true"] - shares["nobody"] < 0.005:
        return "–"
    return f"{(shares[name] - shares['nobody']) / (shares['true'] - shares['nobody']):.0%}"


def _row(
    case: Case, name: str, runs: Sequence[Replayed], without: Replayed, shares: dict[str, float]
) -> tuple[str, ...]:
    late_s = [float("inf") if kept.late_s is None else kept.late_s for run in runs for kept in run.kept]
    small = {job.job for job in case.jobs if job.kind.gpus <= _SMALL}
    waits_s = np.mean([run.waits_s[job] for run in runs for job in small if job in run.waits_s])
    none_s = np.mean([without.waits_s[job] for job in small if job in without.waits_s])
    return (
        case.name,
        str(case.gpus),
        name,
        str(len(late_s)),
        f"{np.mean(np.array(late_s) <= _WITHIN_S):.1%}",
        f"{sorted(late_s)[int(0.99 * (len(late_s) - 1))]:.0f}",
        f"{shares[name]:.0%}",
        f"{shares[name] / shares['true']:.0%}" if "true" in shares else "–",
        _gain(name, shares),
        f"{waits_s / 60:.1f} min",
        f"{waits_s / none_s - 1:+.0%}" if none_s > 1 else "–",
        f"{np.mean([run.stopped for run in runs]):.0f}",
        f"{np.mean([run.lost_gpu_s for run in runs]) / 3600:.0f}",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
