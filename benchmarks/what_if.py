"""What-if answers against what came of it: jobs of real traces, whose cluster then grew or shrank.

``KOPT_DATA_DIR/jobs``: Microsoft's ITP clusters and virtual clusters of Philly, each as a cluster of its own with GPUs
for its mean demand / .85. Their waits come of schedulers of which the answer is told nothing (``what_if_schedulers``):
it gets the record of one size, as ``kopt capacity what-if`` would, and is compared with what the same scheduler does
with 15 % more or 10 % fewer GPUs. What error of the replay is still trusted was
settled on ITP and on all of Philly as one cluster.
Rivals: nothing changes; the replay without what held jobs; a formula for queues (Allen and Cunneen) at both loads.

Recorded waits: of Alibaba's openb pods, and with ``--logs FOLDER`` of batch systems, whose logs are in the standard
workload format and named ``NAME-PROCESSORS.swf``: how far the replay agrees, and what the answer says of it. Prints
Markdown; returns 1 where trusted answers are off by more than the goal on Philly.

    python -m benchmarks what-if
    python -m benchmarks.what_if --logs FOLDER
"""

import argparse
import csv
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from benchmarks.what_if_schedulers import SCHEDULERS, starts
from kopt.core.units import format_span
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.data.jobs.training import read_jobs
from kopt.simulator.what_if.jobs import History, PastJob, history_of
from kopt.simulator.what_if.replay import Order, Pool, replay
from kopt.simulator.what_if.study import Cluster, changed, days_of, study

ITP, PHILLY = "ITP", "Philly"
TRACES = {ITP: "ms_itp_odd_clusters", PHILLY: "philly_first_half"}
LOAD, CHANGES = 0.85, (0.15, -0.1)
FEWEST, MOST = 1_500, 2_500
"""Jobs of a cluster; of more, the first."""
LARGEST = 0.25
"""Of a pool: larger jobs are left out, as a cluster of this size would not have had them."""
GOAL = 1.2
"""The median factor between the predicted and the true relation of the mean wait after to before, where trusted."""
POOL, OPENB_GPUS = "pool", 6_212


TRUSTED = "WHAT_IF_REPLAY_HOLDS"
_GUESSES = "answer", "without holds", "formula", "nothing changes"
_FACTORS = [f"{guess}: {what}" for guess in _GUESSES for what in ("median", "9 of 10 within")]


@dataclass(frozen=True)
class Outcome:
    """``off``: by guess, the factor between the predicted and the true relation of the mean wait after to before.
    ``covered``: the true change lies in the answer's interval."""

    trace: str
    scheduler: str
    code: str
    error: float
    relation: float
    off: Mapping[str, float]
    covered: bool


def main(arguments: Sequence[str] = ()) -> int:
    """Print the tables; 0 when the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, help="a folder of NAME-PROCESSORS.swf")
    options = parser.parse_args(arguments)
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "jobs"
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    logs = [_of_record("Alibaba openb", list(_runs_of_openb(folder)), OPENB_GPUS)]
    for path in sorted(options.logs.glob("*.swf")) if options.logs else ():
        name, _, processors = path.stem.rpartition("-")
        logs.append(_of_record(name, list(_runs_of_log(path)), int(processors)))
    print(markdown(_LOG_HEAD, logs), end="\n\n")
    outcomes = []
    for trace, jobs in _clusters(folder):
        for name in SCHEDULERS:
            for change in CHANGES:
                outcomes.append(_outcome(trace, jobs, name, change))
                print(outcomes[-1], file=sys.stderr, flush=True)
    print(
        markdown(
            ["jobs of", "the answer says", "cases", "true relation, 10–90 %", *_FACTORS, "in the interval"],
            list(_by_verdict(outcomes)),
        ),
        end="\n\n",
    )
    print(
        markdown(
            ["scheduler", "cases", "trusted", "error of the replay, median", *_FACTORS[:2], "… where trusted"],
            list(_by_scheduler(outcomes)),
        )
    )
    trusted = [each.off["answer"] for each in outcomes if each.trace == PHILLY and each.code == TRUSTED]
    return 0 if trusted and statistics.median(trusted) <= GOAL else 1


def _clusters(folder: Path) -> Iterator[tuple[str, list[PastJob]]]:
    for trace, stem in TRACES.items():
        queues: dict[str, list[PastJob]] = defaultdict(list)
        for number, job in enumerate(read_jobs(folder / f"{stem}.csv.gz")):
            # Neither trace says whose a job is: by turns, so that there are users to limit.
            past = PastJob("", f"user {number % 7}", POOL, job.gpus, job.submitted_s, job.duration_s)
            queues[job.queue].append(past)
        for jobs in queues.values():
            if len(jobs) >= FEWEST:
                yield trace, jobs[:MOST]


def _outcome(trace: str, jobs: Sequence[PastJob], name: str, change: float) -> Outcome:
    fitting, gpus = _sized(jobs)
    after = gpus + int(math.copysign(max(1, round(abs(change) * gpus)), change))
    before_s, after_s = (np.array(starts(fitting, size, SCHEDULERS[name])) for size in (gpus, after))
    submitted_s = np.array([job.submitted_s for job in fitting])
    recorded = [replace(job, waited_s=wait_s) for job, wait_s in zip(fitting, before_s - submitted_s, strict=True)]
    history = History(tuple(recorded), max(job.submitted_s + job.seconds for job in recorded))
    as_is = Cluster({POOL: Pool(gpus)})
    answer = study(history, as_is, replace(as_is, pools={POOL: Pool(after)}))
    days = days_of(history)
    day = days.of(submitted_s)
    counted = (day >= 0) & (day < days.count)
    waits_s = [(starts_s - submitted_s)[counted].mean() for starts_s in (before_s, after_s)]
    unheld_s = [
        (np.array(replay(fitting, Pool(size), Order.BEST_EFFORT), float) - submitted_s)[counted].mean()
        for size in (gpus, after)
    ]
    figure = answer.figure("mean wait")
    relation = _relation(*waits_s)
    guesses = (_relation(figure.as_is, figure.what_if), _relation(*unheld_s), _formula(fitting, gpus, after), 1.0)
    off = {name: math.exp(abs(math.log(each / relation))) for name, each in zip(_GUESSES, guesses, strict=True)}
    low, high = figure.change_interval or (math.nan, math.nan)
    covered = low <= waits_s[1] - waits_s[0] <= high
    return Outcome(trace, name, answer.check.reason.code, answer.check.error or 0.0, relation, off, covered)


def _sized(jobs: Sequence[PastJob]) -> tuple[list[PastJob], int]:
    """Jobs that are not too large for a cluster of the size that they demand, and that size."""
    fitting, gpus = list(jobs), 0
    for _ in range(3):
        span_s = fitting[-1].submitted_s - fitting[0].submitted_s
        gpus = math.ceil(sum(job.gpus * job.seconds for job in fitting) / span_s / LOAD)
        fitting = [job for job in fitting if job.gpus <= max(1, LARGEST * gpus)]
    return fitting, gpus


def _relation(before_s: float, after_s: float) -> float:
    """Waits below a minute are nobody's concern."""
    return float(max(after_s, 60.0) / max(before_s, 60.0))


def _formula(jobs: Sequence[PastJob], before: int, after: int) -> float:
    """Waits in a queue before many servers (Allen and Cunneen; Sakasegawa, An approximation formula, 1977), a server
    being as many GPUs as a job has on average. Where demand exceeds the pool, as at 99 %."""
    span_s = jobs[-1].submitted_s - jobs[0].submitted_s
    demand = sum(job.gpus * job.seconds for job in jobs) / span_s
    each = statistics.fmean(job.gpus for job in jobs)

    def wait(gpus: int) -> float:
        load, servers = min(0.99, demand / gpus), gpus / each
        return float(load ** (math.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load)))

    return wait(after) / wait(before)


def _by_verdict(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    for trace in TRACES:
        for says in ("trusted", "not trusted"):
            listed = [
                each for each in outcomes if each.trace == trace and (each.code == TRUSTED) == (says == "trusted")
            ]
            if listed:
                relations = np.quantile([each.relation for each in listed], (0.1, 0.9))
                factors = [text for guess in _GUESSES for text in _factors([each.off[guess] for each in listed])]
                covered = statistics.fmean(each.covered for each in listed)
                between = f"{relations[0]:.2f} – {relations[1]:.2f}"
                yield [trace, says, str(len(listed)), between, *factors, f"{covered:.0%}"]


def _by_scheduler(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    for name in SCHEDULERS:
        listed = [each for each in outcomes if each.scheduler == name]
        trusted = [each.off["answer"] for each in listed if each.code == TRUSTED]
        yield [
            name,
            str(len(listed)),
            str(len(trusted)),
            f"{statistics.median(each.error for each in listed):.0%}",
            *_factors([each.off["answer"] for each in listed]),
            f"× {statistics.median(trusted):.2f}" if trusted else "",
        ]


def _factors(values: Sequence[float]) -> list[str]:
    return [f"× {value:.2f}" for value in np.quantile(values, (0.5, 0.9))]


_LOG_HEAD = [
    "log",
    "jobs",
    "days",
    "GPUs or processors",
    "mean wait",
    "held: for all",
    "for the job",
    "replayed without holds",
    "replayed",
    "error",
    "the answer says",
]


def _of_record(name: str, runs: Sequence[JobRun], gpus: int) -> list[str]:
    """One cluster with recorded waits; the answer is asked about a tenth more GPUs."""
    as_is = Cluster({POOL: Pool(gpus)})
    history = history_of(runs)
    answer = study(history, as_is, changed(as_is, add={POOL: max(1, gpus // 10)}))
    figure, check = answer.figure("mean wait"), answer.check
    unheld = [replace(job, waited_s=None) for job in history.jobs]
    start_s = replay(unheld, Pool(gpus), Order(check.order))
    waits_s = [at_s - job.submitted_s for at_s, job in zip(start_s, unheld, strict=True) if at_s is not None]
    return [
        name,
        f"{check.jobs:,}",
        str(check.days),
        f"{gpus:,}",
        format_span(figure.recorded or 0.0),
        f"{check.held_share or 0.0:.0%}",
        f"{check.fitting_share or 0.0:.0%}",
        format_span(statistics.fmean(waits_s)),
        f"{format_span(figure.as_is)}, {check.order}",
        f"{check.error or 0.0:.0%}",
        check.reason.code,
    ]


def _runs_of_openb(folder: Path) -> Iterator[JobRun]:
    """Pods of a cluster with their recorded waits; a part of a GPU counts as one."""
    with (folder / "openb_pods_first_half.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["gpus"]) and row["wait"] and row["duration"]:
                submitted_s = float(row["submit_time"])
                start_s = submitted_s + float(row["wait"])
                kind = JobKind(row["qos"], int(row["gpus"]))
                yield JobRun(row["job_id"], kind, start_s, start_s + float(row["duration"]), submitted_s=submitted_s)


def _runs_of_log(path: Path) -> Iterator[JobRun]:
    """Fields from 0: number, submission, wait, run time, processors, …, 7 those asked for, …, 14 the queue."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if not fields or line.startswith(";"):
            continue
        submitted_s, wait_s, run_s = (float(field) for field in fields[1:4])
        processors = max(int(fields[4]), int(fields[7]))
        if min(wait_s, run_s) >= 0 and processors > 0:
            start_s = submitted_s + wait_s
            kind = JobKind(fields[14], processors, "", fields[11])
            yield JobRun(fields[0], kind, start_s, start_s + run_s, submitted_s=submitted_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
