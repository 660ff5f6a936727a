"""Quotas advised from history against those that stay: weeks that the advice has not seen.

Jobs of real traces are replayed through queues that lend each other quota (``simulator.queue_quotas``): Philly's
virtual clusters, and Microsoft's ITP clusters as if they shared one pool. The pool has the mean demand / ``load``. The
first four weeks run with quotas by the mean demand of the first two; each later week with what is advised from the
demand, used and waiting, that was seen up to its start (``policies.queues.advice``). Rivals keep their quotas: those of
the first weeks, equal ones; and the division made of the week itself, which nobody knows. Prints Markdown.

    python -m benchmarks.quota_advice --jobs philly.csv.gz [--load 0.85]
"""

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown
from kopt.data.jobs.training import open_text
from kopt.policies.queues.advice import QuotaDemand, advise, divide
from kopt.simulator.queue_quotas import HOUR_S, QueueJob, QueueReplay, WeekResult

WEEK_S, SEEN_WEEKS, FIRST_WEEKS, LEAST_GPU_H = 7 * 86_400.0, 4, 2, 0.005
HEAD = ["quotas", "borrowed", "evictions", "GPU-h lost", "wait: mean", "P90", "of the worst queue", "changes"]
Quotas = Mapping[str, int]
Demand = Mapping[str, Sequence[float]]
Rule = Callable[["History", int], Quotas]


@dataclass
class History:
    """What a rule may know at the start of a week: the hours before, and the quotas that are."""

    demand: dict[str, list[float]]
    quotas: Quotas
    coming: Demand | None = None


def read_jobs(path: Path) -> list[QueueJob]:
    """Jobs with GPUs of a table with submit_time, duration, gpus and vc; queues of little demand are left out."""
    with open_text(path) as file:
        jobs = [
            QueueJob(row["vc"], int(row["gpus"]), float(row["submit_time"]), float(row["duration"]))
            for row in csv.DictReader(file)
            if int(row["gpus"]) > 0 and float(row["duration"]) > 0
        ]
    demand = _gpu_h(jobs)
    least = LEAST_GPU_H * sum(demand.values())
    return [job for job in jobs if demand[job.queue] >= least]


def _gpu_h(jobs: Sequence[QueueJob]) -> dict[str, float]:
    result: dict[str, float] = {}
    for job in jobs:
        result[job.queue] = result.get(job.queue, 0.0) + job.gpus * job.remaining_s / HOUR_S
    return result


def shared_out(pool: int, wants: Mapping[str, float]) -> dict[str, int]:
    """Whole GPUs by largest remainder."""
    total = sum(wants.values())
    exact = {name: pool * want / total for name, want in wants.items()}
    result = {name: int(value) for name, value in exact.items()}
    rest = sorted(exact, key=lambda name: (result[name] - exact[name], name))[: pool - sum(result.values())]
    return {name: value + (name in rest) for name, value in result.items()}


def leaves(demand: Demand, quotas: Quotas, hours: int | None = None) -> list[QuotaDemand]:
    return [
        QuotaDemand(name, "pool", 1000 * quotas[name], [round(1000 * value) for value in demand[name][-(hours or 0) :]])
        for name in sorted(quotas)
    ]


def advised(history: History, _: int) -> Quotas:
    return {row.queue: row.advised // 1000 for row in advise(leaves(history.demand, history.quotas))}


def kept(history: History, _: int) -> Quotas:
    return history.quotas


def foreseen(history: History, _: int) -> Quotas:
    assert history.coming is not None
    rows = leaves(history.coming, history.quotas)
    divided = divide(rows, dict.fromkeys(range(len(rows[0].demand)), 1.0))
    return {leaf.queue: amount // 1000 for leaf, amount in zip(rows, divided, strict=True)}


def replay(
    jobs: Sequence[QueueJob], first: Quotas, later: Quotas, weeks: int, rule: Rule, coming: Sequence[Demand] = ()
) -> tuple[list[WeekResult], int]:
    """The held-out weeks, and in how many of them quotas changed."""
    fresh = [QueueJob(job.queue, job.gpus, job.submitted_s, job.remaining_s) for job in jobs]
    run = QueueReplay(fresh, sorted(first))
    seen = run.run(first, SEEN_WEEKS * WEEK_S)
    history, results, changes = History({name: list(rows) for name, rows in seen.demand.items()}, later), [], 0
    for week in range(weeks):
        history.coming = coming[week] if coming else None
        quotas = rule(history, week)
        changes += quotas != history.quotas
        result = run.run(quotas, (SEEN_WEEKS + week + 1) * WEEK_S)
        results.append(result)
        for name, rows in result.demand.items():
            history.demand[name] += rows
        history.quotas = quotas
    return results, changes


def row(name: str, results: Sequence[WeekResult], changes: int) -> list[str]:
    jobs = [job for result in results for job in result.jobs]
    waits = sorted(job.wait_s / 60 for job in jobs)
    by_queue: dict[str, list[float]] = {}
    for job in jobs:
        by_queue.setdefault(job.queue, []).append(job.wait_s / 60)
    used = sum(result.used_gpu_h for result in results)
    return [
        name,
        f"{100 * sum(result.borrowed_gpu_h for result in results) / used:.1f} %",
        f"{sum(result.evictions for result in results):,}",
        f"{sum(result.lost_gpu_h for result in results):,.0f}",
        f"{statistics.mean(waits):.0f} min",
        f"{waits[int(0.9 * len(waits))]:.0f} min",
        f"{max(statistics.mean(each) for each in by_queue.values()):.0f} min",
        str(changes),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--load", type=float, default=0.85)
    options = parser.parse_args()
    jobs = read_jobs(options.jobs)
    end_s = max(job.submitted_s for job in jobs)
    weeks = int(end_s // WEEK_S) - SEEN_WEEKS
    pool = round(sum(_gpu_h(jobs).values()) / (end_s / HOUR_S) / options.load)
    jobs = [job for job in jobs if job.gpus <= pool]
    early = _gpu_h([job for job in jobs if job.submitted_s < FIRST_WEEKS * WEEK_S])
    names = {job.queue for job in jobs}
    by_demand = shared_out(pool, {name: early.get(name, 0.0) for name in names})
    equal = shared_out(pool, dict.fromkeys(names, 1.0))
    stays = replay(jobs, by_demand, by_demand, weeks, kept)
    rows = [
        row("by the first two weeks, kept", *stays),
        row("advised each week", *replay(jobs, by_demand, by_demand, weeks, advised)),
        row("equal, kept", *replay(jobs, equal, equal, weeks, kept)),
        row("equal, then advised each week", *replay(jobs, equal, equal, weeks, advised)),
        row(
            "of the week itself",
            *replay(jobs, by_demand, by_demand, weeks, foreseen, [each.demand for each in stays[0]]),
        ),
    ]
    sys.stdout.write(f"{len(names)} queues, {pool} GPUs, {weeks} weeks held out\n\n{markdown(HEAD, rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
