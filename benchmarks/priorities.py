"""The priority formula: what ordering 10,000 pods takes, and what waits become of it.

``KOPT_DATA_DIR/jobs``: the last 30 % of the first half of Philly's trace on one pool that is asked for 90 and 120 % of
the time; of each 10 jobs 2 are of class 100, 6 of 50 and 2 of 0 (by a hash of their names). Queues are strict: nothing
passes what is ahead of it. Compared: first in, first out; by class, then age; by the formula, with its bound on how
long after a submission later ones may still start before it; and by the number that stands for it on Kueue's Workloads.

``python -m benchmarks.priorities --whole``: all of the trace in place of the last 30 %, by the orders that time does
not change: submission, class and the written number.
"""

import argparse
import heapq
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobRun
from kopt.models.runtime.table import table_of
from kopt.policies.priority import PendingWorkload, PriorityFormula
from kopt.policies.priority.queue_order import FIRST_S, QueueOrder
from kopt.training.runtime.default_data import DEFAULT_DATA
from kopt.training.runtime.recipe import window_start_s

_PODS, _REPEATS = 10_000, 200
_LOADS, _PER_HOUR, _PER_DOUBLING = (0.9, 1.2), (10.0, 50.0), (0.0, 5.0)
_CLASSES = (0.0, 0.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 100.0, 100.0)
_MOST_GPUS = 1024
_IN_RANGE_S, _YEARS_S = FIRST_S, 20 * 365 * 86400.0
_HIGHEST, _SHOWN = 100.0, (100.0, 50.0, 0.0)
Score = Callable[[JobRun, float], float]
Started = list[tuple[JobRun, float]]
Replay = Callable[[Sequence[JobRun], int], Started]


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.priorities")
    parser.add_argument("--whole", action="store_true", help="all of the trace, by orders that time does not change")
    is_whole = parser.parse_args(arguments).whole
    print(_timed())
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / DEFAULT_DATA.folder
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    (trace,) = DEFAULT_DATA.read(folder, Settings(home=Path())).of(["philly_first_half"])
    from_s = float("-inf") if is_whole else window_start_s(table_of(trace))
    jobs = [run for run in trace.runs if run.started_s >= from_s and run.duration_seconds is not None]
    print(f"{len(jobs):,} jobs")
    print(_waits(jobs, is_whole=is_whole))
    return 0


def _timed() -> str:
    rng = np.random.default_rng(0)
    formula = PriorityFormula(1000.0)
    columns = (
        rng.choice([0.0, 100.0, 1000.0], _PODS),
        rng.choice([1.0, 2.0, 4.0, 8.0, 16.0], _PODS),
        rng.uniform(0, 1e6, _PODS),
        rng.uniform(0, 1, _PODS),
    )
    took = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        formula.order(*columns, 1e6)
        took.append(1000 * (time.perf_counter() - began))
    head = ("pods", "order, median (ms)", "P99 (ms)")
    return markdown(head, [(f"{_PODS:,}", f"{np.median(took):.2f}", f"{np.quantile(took, 0.99):.2f}")])


def _waits(jobs: Sequence[JobRun], *, is_whole: bool) -> str:
    policies: dict[str, Replay] = {
        "first in, first out": _by_order(lambda job: -job.started_s),
        "class, then age": _by_order(lambda job: 1e9 * class_of(job) - job.started_s),
    }
    bounds_s: dict[str, Callable[[PendingWorkload], float]] = {}
    for points in () if is_whole else _PER_HOUR:
        name, formula = f"formula, {points:g} an hour", PriorityFormula(_HIGHEST, points, 0.0, 0.0)
        policies[name], bounds_s[name] = partial(_replay, score=_scored_by(formula)), formula.overtaken_for_s
    for points in _PER_DOUBLING:
        name = f"number, {_PER_HOUR[0]:g} an hour, {points:g} for twice the GPUs"
        order = QueueOrder(_PER_HOUR[0], points, _HIGHEST, _MOST_GPUS)
        policies[name], bounds_s[name] = _by_order(_numbered_by(order)), order.overtaken_by_until_s
    rows = []
    for load in _LOADS:
        gpus, first = _gpus_for(jobs, load), dict[str, float]()
        for name, replay in policies.items():
            started = replay(jobs, gpus)
            waits = {job.job: start_s - job.started_s for job, start_s in started}
            first = first or waits
            bound_s = max((bounds_s[name](_workload(job)) for job in jobs), default=0.0) if name in bounds_s else 0.0
            by_class = {own: [waits[job.job] for job in jobs if class_of(job) == own] for own in _SHOWN}
            rows.append(
                (
                    f"{load:.0%}",
                    name,
                    _hours(np.mean(list(waits.values()))),
                    *(_hours(np.mean(by_class[own])) for own in _SHOWN),
                    _hours(max(waits.values())),
                    _hours(max(waits[job.job] - first[job.job] for job in jobs)),
                    _hours(_overtaken_s(started)),
                    _hours(_passed_by_s(started)),
                    _hours(bound_s) if bound_s else "–",
                )
            )
    head = (
        "load",
        "order by",
        "mean wait (h)",
        "of class 100",
        "50",
        "0",
        "longest wait (h)",
        "most over first in, first out (h)",
        "overtaken for (h)",
        "by what came later by (h)",
        "bound (h)",
    )
    return markdown(head, rows)


def _scored_by(formula: PriorityFormula) -> Score:
    return lambda job, now_s: formula.score(_workload(job), now_s)


def _numbered_by(order: QueueOrder) -> Callable[[JobRun], float]:
    """Traces from before the numbers' first year are moved into them."""

    def number(job: JobRun) -> int:
        submitted_s = _IN_RANGE_S + job.started_s % _YEARS_S
        return order.number(PendingWorkload(job.job, class_of(job), job.kind.gpus, submitted_s))

    return number


def _by_order(value: Callable[[JobRun], float]) -> Replay:
    """As ``_replay`` with a score that stays, so that one look at what is pending is enough."""

    def replay(jobs: Sequence[JobRun], gpus: int) -> Started:
        arrivals = sorted(jobs, key=lambda job: job.started_s)
        ends: list[tuple[float, int]] = []
        pending: list[tuple[float, float, str, int]] = []
        result, free, arrived = Started(), gpus, 0
        while arrived < len(arrivals) or ends:
            next_s = arrivals[arrived].started_s if arrived < len(arrivals) else float("inf")
            now_s = min(next_s, ends[0][0] if ends else float("inf"))
            while ends and ends[0][0] <= now_s:
                free += heapq.heappop(ends)[1]
            while arrived < len(arrivals) and arrivals[arrived].started_s <= now_s:
                job = arrivals[arrived]
                heapq.heappush(pending, (-value(job), job.started_s, job.job, arrived))
                arrived += 1
            while pending and arrivals[pending[0][-1]].kind.gpus <= free:
                job = arrivals[heapq.heappop(pending)[-1]]
                free -= job.kind.gpus
                heapq.heappush(ends, (now_s + (job.duration_seconds or 0.0), job.kind.gpus))
                result.append((job, now_s))
        return result

    return replay


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


def _gpus_for(jobs: Sequence[JobRun], load: float) -> int:
    work = sum(job.kind.gpus * (job.duration_seconds or 0.0) for job in jobs)
    span_s = max(job.started_s for job in jobs) - min(job.started_s for job in jobs)
    return max(max(job.kind.gpus for job in jobs), round(work / span_s / load))


def _overtaken_s(started: Started) -> float:
    """The longest time after a submission at which anything that was submitted later started before it."""
    submitted_s = np.array([job.started_s for job, _ in started])
    starts_s = np.array([start_s for _, start_s in started])
    longest_s = 0.0
    for own_s, start_s in zip(submitted_s, starts_s, strict=True):
        before = starts_s[(submitted_s > own_s) & (starts_s < start_s)]
        longest_s = max(longest_s, float(before.max(initial=own_s)) - own_s)
    return longest_s


def _passed_by_s(started: Started) -> float:
    """How much later than another anything was submitted that started before it, at most."""
    submitted_s = np.array([job.started_s for job, _ in started])
    starts_s = np.array([start_s for _, start_s in started])
    longest_s = 0.0
    for own_s, start_s in zip(submitted_s, starts_s, strict=True):
        longest_s = max(longest_s, float(submitted_s[starts_s < start_s].max(initial=own_s)) - own_s)
    return longest_s


def class_of(job: JobRun) -> float:
    return _CLASSES[zlib.crc32(job.job.encode()) % len(_CLASSES)]


def _workload(job: JobRun) -> PendingWorkload:
    return PendingWorkload(job.job, class_of(job), job.kind.gpus, job.started_s)


def _replay(jobs: Sequence[JobRun], gpus: int, *, score: Score) -> Started:
    """Jobs with their starts: whenever something ends or comes, those with the highest score until one does not fit."""
    arrivals = sorted(jobs, key=lambda job: job.started_s)
    ends: list[tuple[float, int]] = []
    pending: list[JobRun] = []
    result = []
    free, arrived = gpus, 0
    while arrived < len(arrivals) or ends:
        next_s = arrivals[arrived].started_s if arrived < len(arrivals) else float("inf")
        now_s = min(next_s, ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now_s:
            free += heapq.heappop(ends)[1]
        while arrived < len(arrivals) and arrivals[arrived].started_s <= now_s:
            pending.append(arrivals[arrived])
            arrived += 1
        pending.sort(key=lambda job: (-score(job, now_s), job.started_s, job.job))
        while pending and pending[0].kind.gpus <= free:
            job = pending.pop(0)
            free -= job.kind.gpus
            heapq.heappush(ends, (now_s + (job.duration_seconds or 0.0), job.kind.gpus))
            result.append((job, now_s))
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
