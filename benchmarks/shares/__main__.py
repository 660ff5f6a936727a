"""A day of Philly's arrivals through one tree of KaiwoQueues on the real Kueue and KAI: how far each queue is from its
ideal.

The five largest virtual clusters of the first day on which most are busy share 96 GPUs; quotas are three quarters of
the capacity, by what each demanded on the days before. Idle time passes as fast as ``--speed`` says; while an engine
works, a second counts as ``--scale`` seconds in every arm. A job is one pod, and one that is evicted goes on from where
it was. An hour's share error is that of the queue furthest from its ideal (`policies.shares`) on average over the hour,
of GPUs alone; beside it stands how near whole jobs come moment by moment (taking turns they could come nearer), where
at each event any could be started and stopped at once, and where no queue stops its own jobs to start others of its own
(in place). Hours without contention are left out. Arms: objects as compiled, with nobody else; without fair sharing;
and ``kopt controller queues``, with aggressive queues and with conservative ones, whose graces and pauses are shorter
by the scale. KAI binds pods to one simulated node. Prints Markdown; returns 1 where a goal is missed.

    python -m benchmarks.shares --jobs philly.csv.gz --arm kueue --arm kai
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shares.arms import ARMS, Arm, running
from benchmarks.shares.day import DAY_S, GPUS, TraceJob, day_of, of_hours
from benchmarks.shares.ledger import HOUR_S, Ledger
from benchmarks.shares.replay import Replay
from benchmarks.tables import markdown

GOAL, WITHIN_S = 0.02, 600.0
HEAD = [
    "engine and arm",
    "share error of an hour: median",
    "worst",
    "nearest in place: median",
    "worst",
    "nearest of whole jobs: median",
    "worst",
    "not with whom it belongs",
    "below quota, queue-min",
    "evictions",
    "of one job, most",
    "within 10 min",
    "wait P50, min",
    "P95",
    "mean",
    "jobs ended",
]


@dataclass(frozen=True)
class Run:
    """An arm's day, measured."""

    arm: Arm
    ledger: Ledger
    ended: int
    causes: Mapping[str, int]


def main() -> int:
    """Print the table; 0 when every arm reaches both goals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=Path, required=True, help="job_id,submit_time,duration,gpus,vc")
    parser.add_argument("--from-hour", type=int, default=0, help="of the day; what runs by then is sent at once")
    parser.add_argument("--hours", type=int, default=DAY_S // HOUR_S, help="from then")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="default: all")
    parser.add_argument("--speed", type=float, default=240.0, help="seconds of the day in an idle second")
    parser.add_argument(
        "--scale",
        type=scale_of,
        default=10.0,
        help="seconds of the day in one of an engine that works; our controller's spans are shorter by as much, and "
        "with it in one while anybody waits",
    )
    parser.add_argument("--quiet", type=float, default=0.6, help="seconds after the last event until an engine is idle")
    options = parser.parse_args()
    jobs, quotas = day_of(options.jobs)
    end_hour = min(DAY_S // HOUR_S, options.from_hour + options.hours)
    options.hours = end_hour - options.from_hour
    jobs = of_hours(jobs, options.from_hour * HOUR_S, end_hour * HOUR_S)
    hours = f"hours {options.from_hour} to {end_hour}"
    print(f"{len(jobs)} jobs, {hours}, quotas {quotas} of {GPUS} GPUs\n", flush=True)
    runs = []
    for name in options.arm or ARMS:
        runs.append(_run(ARMS[name], jobs, quotas, options))
        print(markdown(HEAD, [row(runs[-1])]), file=sys.stderr, flush=True)
        print(f"{ARMS[name].text}: evictions by {dict(runs[-1].causes)}", file=sys.stderr, flush=True)
        print(_by_hour(runs[-1].ledger), file=sys.stderr, flush=True)
    print(markdown(HEAD, map(row, runs)))
    measured = [hour for run in runs for hour in run.ledger.hours.values() if hour.contended_s]
    return 0 if all(hour.share_error <= GOAL and not hour.broken_s for hour in measured) else 1


def scale_of(text: str) -> float:
    """Raises argparse.ArgumentTypeError for what is no scale."""
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1 <= scale < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return scale


def _run(arm: Arm, jobs: Sequence[TraceJob], quotas: Mapping[str, int], options: argparse.Namespace) -> Run:
    ledger = Ledger(quotas, GPUS)
    with (
        tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder,
        running(arm, quotas, GPUS, options.scale, Path(folder)) as engine,
    ):

        def report(hour: int) -> None:
            print(f"{arm.text}, to the end of hour {options.from_hour + hour}", file=sys.stderr)
            print(_by_hour(ledger), file=sys.stderr, flush=True)

        pace = {"speed": options.speed, "quiet_s": options.quiet, "scale": options.scale, "paced": arm.controller}
        replay = Replay(engine, ledger, jobs, **pace, each_hour=report)
        replay.run(options.hours * HOUR_S)
    return Run(arm, ledger, replay.ended, replay.causes)


def row(run: Run) -> tuple[str, ...]:
    """Of the table; errors are of the hours in which at any time not everything could run."""
    waits, every = run.ledger.waits_s(), list(run.ledger.hours.values())
    hours = [hour for hour in every if hour.contended_s] or every
    evicted = [job.evicted_s for job in run.ledger.jobs.values()]
    lost = sum(hour.misallocated for hour in hours) / sum(hour.seconds for hour in hours)
    errors = [
        [hour.share_error for hour in hours],
        [hour.in_place_error for hour in hours],
        [hour.whole_jobs_error for hour in hours],
    ]
    return (
        run.arm.text,
        *(f"{100 * value:.1f} %" for each in errors for value in (statistics.median(each), max(each))),
        f"{100 * lost:.1f} %",
        f"{sum(hour.broken_s for hour in hours) / 60:.0f}",
        str(sum(map(len, evicted))),
        str(max(map(len, evicted), default=0)),
        str(max(map(_most_within, evicted), default=0)),
        *(f"{value / 60:.1f}" for value in (_quantile(waits, 0.5), _quantile(waits, 0.95), statistics.fmean(waits))),
        str(run.ended),
    )


def _by_hour(ledger: Ledger) -> str:
    rows = [
        (
            str(number),
            f"{100 * hour.share_error:.2f} %",
            f"{100 * hour.in_place_error:.2f} %",
            f"{100 * hour.whole_jobs_error:.2f} %",
            f"{hour.contended_s / 60:.0f}",
            f"{hour.broken_s / 60:.1f}",
            ", ".join(f"{name} {100 * value / hour.seconds:+.2f}" for name, value in hour.error.items()),
        )
        for number, hour in sorted(ledger.hours.items())
    ]
    return markdown(
        ["hour", "share error", "in place", "of whole jobs", "contended, min", "below quota, queue-min", "by queue, %"],
        rows,
    )


def _most_within(times_s: Sequence[float]) -> int:
    """Of the evictions of one job, the most within ten minutes."""
    return max((sum(0 <= other - at_s < WITHIN_S for other in times_s) for at_s in times_s), default=0)


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[int(part * (len(ordered) - 1))]


if __name__ == "__main__":
    raise SystemExit(main())
