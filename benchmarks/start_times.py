"""Starts that were predicted, against those that came: queues that replay a trace with its real run times.

``KOPT_DATA_DIR/jobs``: all of Philly as one queue, and each of its virtual clusters and of Microsoft's ITP clusters as
a queue of its own, small ones included. Each gets GPUs for more than its mean demand, which comes in waves, and starts
jobs strictly in order. When a job is submitted and has to wait, its start is predicted from what runs and waits
before it, by run times of the class and by those of kopt's predictor (``known_run_times``); the predictor answers about
Philly as it was fitted on ITP, and the other way round. Nothing that happens later is used.

The first fifth of a queue's jobs only teaches. *Earlier* are jobs up to 60 %: whatever is chosen, is chosen on these.
*Later* are the rest. Waits that overlap, also by others in between, hang on the same few ends and are a *wave*: a queue
with three waves says little, however many waited. The goals are therefore set on the waves of all queues, each counting
the same. Prints Markdown; returns 1 when the later ones miss a goal.

    python -m benchmarks.start_times [QUEUE …]
"""

import heapq
import math
import os
import random
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.known_run_times import ByClass, ByModel, KnownTimes
from benchmarks.tables import markdown
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.settings import Settings
from kopt.data.jobs.training import TraceJob, read_jobs
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.table import joined, table_of
from kopt.policies.diagnosis import QueuedGpus, QueueModel, RunningGpus, StartCalibration, start_times
from kopt.training.runtime.default_data import DEFAULT_DATA
from kopt.training.runtime.recipe import RunDataset

PHILLY, ITP = "Philly", "ITP"
TRACES = {PHILLY: "philly_first_half", ITP: "ms_itp_odd_clusters"}
WHOLE = "Philly, whole"
LOAD, SAMPLES, SHORTEST_S = 0.6, 300, 60.0
WARM, CHOSEN_ON = 0.2, 0.6
FEWEST_JOBS = 100
SOURCES = CLASS, KOPT = "class", "kopt"
MOST_BEFORE = 400
"""Workloads before one whose start is predicted; beyond, it is left out, as it would take seconds."""
DRAWS = 100
COVERAGE, MEDIAN_ERROR = (0.85, 0.95), 0.35
_LIMIT = "gpus"


@dataclass(frozen=True)
class Prediction:
    """``raw``: what the draws gave at ``asked_s``; ``estimate``: corrected by the starts before; ``later``: of the jobs
    on which nothing was chosen."""

    later: bool
    asked_s: float
    wait_s: float
    raw: StartEstimate
    estimate: StartEstimate


Wave = list[Prediction]


class Replay:
    """One queue: strictly in order, ``gpus`` GPUs. Starts of ``sampled`` are predicted; with None, of none, and
    ``waiting`` has those that could be."""

    def __init__(
        self, jobs: Sequence[TraceJob], gpus: int, sampled: Collection[int] | None, times: KnownTimes | None
    ) -> None:
        self.jobs, self.gpus, self.sampled, self.times = jobs, gpus, sampled, times
        self.free = gpus
        self.running: dict[int, float] = {}
        self.queue: deque[int] = deque()
        self.ends: list[tuple[float, int]] = []
        self.start_s: dict[int, float] = {}
        self.predicted: dict[int, tuple[StartEstimate, StartEstimate]] = {}
        self.calibration, self.reported = StartCalibration(), set[int]()
        self.waiting: list[int] = []
        self.seconds: list[float] = []

    def run(self) -> list[Prediction]:
        for index, job in enumerate(self.jobs):
            self._until(job.submitted_s)
            self.queue.append(index)
            self._start(job.submitted_s)
            if index in self.start_s or len(self.running) + len(self.queue) > MOST_BEFORE:
                continue
            if self.sampled is None:
                self.waiting.append(index)
            elif index in self.sampled:
                begin = time.process_time()
                self._observe(job.submitted_s)
                raw = self._predict(index, job.submitted_s)
                self.predicted[index] = raw, self.calibration.corrected(raw)
                self.seconds.append(time.process_time() - begin)
        self._until(math.inf)
        return [
            Prediction(
                index >= CHOSEN_ON * len(self.jobs), self.jobs[index].submitted_s, wait_s, *self.predicted[index]
            )
            for index in sorted(self.predicted)
            if index >= WARM * len(self.jobs)
            and (wait_s := self.start_s[index] - self.jobs[index].submitted_s) >= SHORTEST_S
        ]

    def _until(self, now_s: float) -> None:
        while self.ends and self.ends[0][0] <= now_s:
            end_s, index = heapq.heappop(self.ends)
            self.free += self.jobs[index].gpus
            started_s = self.running.pop(index)
            if self.times is not None:
                self.times.ended(index, self.jobs[index], started_s, end_s)
            self._start(end_s)

    def _start(self, now_s: float) -> None:
        while self.queue and self.jobs[self.queue[0]].gpus <= self.free:
            index = self.queue.popleft()
            job = self.jobs[index]
            self.free -= job.gpus
            self.running[index] = self.start_s[index] = now_s
            heapq.heappush(self.ends, (now_s + job.duration_s, index))
            if self.times is not None:
                self.times.started(index, job, now_s)

    def _observe(self, now_s: float) -> None:
        """What is known by now of earlier predictions: that they have started, or wait beyond their p90."""
        known = []
        for index in self.predicted.keys() - self.reported:
            raw, _ = self.predicted[index]
            begun, submitted_s = index in self.start_s, self.jobs[index].submitted_s
            wait_s = (self.start_s[index] if begun else now_s) - submitted_s
            if begun or (raw.p90_s is not None and wait_s > 2 * raw.p90_s):
                known.append((submitted_s + wait_s, index, wait_s))
        for known_s, index, wait_s in sorted(known):
            submitted_s = known_s - wait_s
            self.reported.add(index)
            self.calibration = self.calibration.observed(self.predicted[index][0], wait_s, submitted_s)

    def _predict(self, index: int, now_s: float) -> StartEstimate:
        assert self.times is not None, "starts are predicted"
        before: dict[int, tuple[TraceJob, float | None]] = {other: (self.jobs[other], None) for other in self.queue}
        before |= {other: (self.jobs[other], started_s) for other, started_s in self.running.items()}
        times = self.times.left(before, now_s)
        running = tuple(RunningGpus(str(other), by_limit={_LIMIT: self.jobs[other].gpus}) for other in self.running)
        queue = tuple(QueuedGpus(str(other), 1, 1000, {_LIMIT: self.jobs[other].gpus}) for other in self.queue)
        model = QueueModel(running, queue, free_by_limit={_LIMIT: self.free}, strict=True)
        return start_times(model, str(index), times, np.random.default_rng(index), DRAWS)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table; 0 when the later jobs of every queue with enough waits reach both goals."""
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / DEFAULT_DATA.folder
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    models = _models(folder)
    rows, seconds = list[list[str]](), list[float]()
    every: dict[tuple[str, bool], list[Wave]] = defaultdict(list)
    for name, whose, jobs in _queues(folder):
        if arguments and name not in arguments:
            continue
        sources: tuple[tuple[str, KnownTimes], ...] = ((CLASS, ByClass()), (KOPT, ByModel(models[whose])))
        for by, times in sources:
            replay = replay_of(jobs, times)
            predictions = replay.run()
            earlier = [item for item in predictions if not item.later]
            later = [item for item in predictions if item.later]
            known = sum(item.estimate.p90_s is not None for item in predictions) / max(1, len(predictions))
            rows.append([name, str(replay.gpus), by, f"{known:.0%}", *_figures(earlier), *_figures(later)])
            print("; ".join(rows[-1]), file=sys.stderr, flush=True)
            for part in (earlier, later):
                every[by, part is later] += waves_of(part)
            seconds += replay.seconds if by == KOPT else []
    if not rows:
        print("no queue of that name")
        return 1
    rows += [["all, by waves", "", by, "", *_pooled(every[by, False]), *_pooled(every[by, True])] for by in SOURCES]
    figures = ["waits", "waves", "median wait", "draws' p90 covers", "p90 covers", "error of p50"]
    head = ["queue", "GPUs", "run times by", "known"]
    head += [f"{when}: {figure}" for when in ("earlier", "later") for figure in figures]
    print(markdown(head, rows))
    print(f"\nA start is predicted in {1000 * sorted(seconds)[len(seconds) // 2]:.0f} ms (median, time on a core).")
    coverage, error = _by_waves(every[KOPT, True])
    return 0 if COVERAGE[0] <= coverage <= COVERAGE[1] and error <= MEDIAN_ERROR else 1


def _models(folder: Path) -> dict[str, RunTimePredictor]:
    """Of run times, by whose jobs they answer about: each is fitted on the other's alone."""
    dataset: RunDataset = DEFAULT_DATA.read(folder, Settings(home=Path()))
    tables = {
        whose: [table_of(trace) for trace in dataset.traces if trace.name.startswith(stem)]
        for whose, stem in TRACES.items()
    }
    return {whose: RunTimePredictor().fit(joined(tables[other])) for whose, other in ((PHILLY, ITP), (ITP, PHILLY))}


def _queues(folder: Path) -> Iterator[tuple[str, str, Sequence[TraceJob]]]:
    """Small ones first: those of few jobs have few waits to judge by, and are left out."""
    queues: dict[tuple[str, str], list[TraceJob]] = defaultdict(list)
    for whose, stem in TRACES.items():
        for job in read_jobs(folder / f"{stem}.csv.gz"):
            queues[f"{whose} {job.queue.removeprefix('cluster')}", whose].append(job)
            if whose == PHILLY:
                queues[WHOLE, whose].append(job)
    for (name, whose), jobs in sorted(queues.items(), key=lambda item: len(item[1])):
        if len(jobs) >= FEWEST_JOBS:
            yield name, whose, jobs


def replay_of(jobs: Sequence[TraceJob], times: KnownTimes) -> Replay:
    """With GPUs for the demand of these jobs, and predictions for a sample of those that wait."""
    span_s = jobs[-1].submitted_s - jobs[0].submitted_s
    demand = sum(job.gpus * job.duration_s for job in jobs) / span_s
    gpus = max(math.ceil(demand / LOAD), max(job.gpus for job in jobs))
    rehearsal = Replay(jobs, gpus, None, None)
    rehearsal.run()
    waiting = rehearsal.waiting
    sampled = random.Random(0).sample(waiting, min(len(waiting), SAMPLES))
    return Replay(jobs, gpus, frozenset(sampled), times)


def covered(predictions: Sequence[Prediction], *, raw: bool = False) -> float:
    """The share that started by p90, among those whose start was predicted."""
    p90s = [(item.wait_s, (item.raw if raw else item.estimate).p90_s) for item in predictions]
    known = [(wait_s, p90_s) for wait_s, p90_s in p90s if p90_s is not None]
    return sum(wait_s <= p90_s for wait_s, p90_s in known) / max(1, len(known))


def median_error(predictions: Sequence[Prediction]) -> float:
    """Of p50, as a share of the wait."""
    p50s = [(item.wait_s, item.estimate.p50_s) for item in predictions]
    errors = sorted(abs(p50_s - wait_s) / wait_s for wait_s, p50_s in p50s if p50_s is not None)
    return errors[len(errors) // 2] if errors else math.inf


def _figures(predictions: Sequence[Prediction]) -> list[str]:
    if not predictions:
        return ["0", "", "", "", "", ""]
    waits = sorted(item.wait_s for item in predictions)
    return [
        str(len(predictions)),
        str(len(waves_of(predictions))),
        f"{waits[len(waits) // 2] / 3600:.1f} h",
        f"{covered(predictions, raw=True):.0%}",
        f"{covered(predictions):.0%}",
        f"{median_error(predictions):.0%}",
    ]


def waves_of(predictions: Sequence[Prediction]) -> list[Wave]:
    result: list[Wave] = []
    until_s = -math.inf
    for item in sorted(predictions, key=lambda item: item.asked_s):
        if item.asked_s > until_s:
            result.append([])
        result[-1].append(item)
        until_s = max(until_s, item.asked_s + item.wait_s)
    return result


def _by_waves(waves: Sequence[Wave], *, raw: bool = False) -> tuple[float, float]:
    """The mean of the waves' coverages, the median of their errors."""
    known = [wave for wave in waves if any((item.raw if raw else item.estimate).p90_s is not None for item in wave)]
    if not known:
        return 0.0, math.inf
    coverage = sum(covered(wave, raw=raw) for wave in known) / len(known)
    return coverage, statistics.median(median_error(wave) for wave in waves)


def _pooled(waves: Sequence[Wave]) -> list[str]:
    coverage, error = _by_waves(waves)
    raw, _ = _by_waves(waves, raw=True)
    return [str(sum(map(len, waves))), str(len(waves)), "", f"{raw:.0%}", f"{coverage:.0%}", f"{error:.0%}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
