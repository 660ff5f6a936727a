"""Starts that were predicted, against those that came: queues that replay a trace with its real run times.

``KOPT_DATA_DIR/jobs``: all of Philly as one queue, and each of its virtual clusters and of Microsoft's ITP clusters as
a queue of its own, small ones included. Each gets GPUs for more than its mean demand, which comes in waves, and starts
jobs strictly in order. When a job is submitted and has to wait, its start is predicted from what runs and waits
before it. Run times are known as quantiles of the class (queue and number of GPUs): those of the last jobs that were
started before that moment, of which the ones that still run count as longer than they have run (Kaplan and Meier,
1958), given the time already run. Nothing that happens later is used.

The first fifth of a queue's jobs only teaches. *Earlier* are jobs up to 60 %: whatever is chosen, is chosen on these.
*Later* are the rest. Prints Markdown; returns 1 when the later ones of a queue with enough waits miss a goal.

    python -m benchmarks start-times [QUEUE …]
"""

import heapq
import math
import os
import random
import sys
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.data.jobs.training import TraceJob, read_jobs
from kopt.policies.diagnosis import QueuedGpus, QueueModel, RunningGpus, StartCalibration, start_times

PHILLY, ITP = "jobs/philly_first_half.csv.gz", "jobs/ms_itp_odd_clusters.csv.gz"
WHOLE = "Philly, whole"
LOAD, HISTORY, LEAST_KNOWN, SAMPLES, SHORTEST_S = 0.6, 300, 5, 300, 60.0
LONGEST_HISTORY = 5000
WARM, CHOSEN_ON = 0.2, 0.6
FEWEST_JOBS, FEWEST_WAITS = 100, 25
MOST_BEFORE = 400
"""Workloads before one whose start is predicted; beyond, it is left out, as it would take seconds."""
DRAWS = 100
LEVELS = (0.005, 0.01, *(number / 40 for number in range(1, 40)), 0.99, 0.995)
COVERAGE, MEDIAN_ERROR = (0.85, 0.95), 0.35
_LIMIT = "gpus"


@dataclass(frozen=True)
class Prediction:
    """``raw``: what the draws gave; ``estimate``: corrected by the starts before; ``later``: of the jobs on which
    nothing was chosen."""

    later: bool
    wait_s: float
    raw: StartEstimate
    estimate: StartEstimate


class History:
    """Run times of a class by when their jobs were started; those that still run are censored."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, int], deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=HISTORY))
        self._jobs["", 0] = deque(maxlen=LONGEST_HISTORY)
        self._curves: dict[tuple[tuple[str, int], float], tuple[np.ndarray, np.ndarray]] = {}

    def started(self, job: TraceJob, at_s: float) -> None:
        for key in _classes(job):
            self._jobs[key].append((at_s, job.duration_s))

    def quantiles(self, job: TraceJob, now_s: float, ran_s: float = 0.0) -> RunTimeQuantiles | None:
        """Of the time that is left after ``ran_s``."""
        seconds = self._times(_classes(job), np.array(LEVELS), now_s, ran_s)
        if seconds is None:
            return None
        remaining = np.maximum.accumulate(np.maximum(seconds - ran_s, 0.0))
        return RunTimeQuantiles(LEVELS, tuple(remaining.tolist()), (job.queue, job.gpus))

    def _times(
        self, keys: Sequence[tuple[str, int]], levels: np.ndarray, now_s: float, ran_s: float
    ) -> np.ndarray | None:
        """Run times at levels, given that it has run so long. Of a class whose jobs mostly still run only the lower
        levels are known; above them the next wider class speaks."""
        if not keys:
            return None
        ends, survival = self._curve(keys[0], now_s)
        index = int(np.searchsorted(ends, ran_s, side="right"))
        if len(ends) - index < LEAST_KNOWN:
            return self._times(keys[1:], levels, now_s, ran_s)
        share = 1 - survival[index:] / (survival[index - 1] if index else 1.0)
        seconds, known = np.interp(levels, share, ends[index:]), float(share[-1])
        beyond = levels > known
        if known < 1 and beyond.any():
            rest = self._times(keys[1:], (levels[beyond] - known) / (1 - known), now_s, float(ends[-1]))
            if rest is not None:
                seconds[beyond] = rest
        return seconds

    def _curve(self, key: tuple[str, int], now_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Times at which jobs ended, and the share that runs longer."""
        if (key, now_s) not in self._curves:
            self._curves = {(other, at_s): curve for (other, at_s), curve in self._curves.items() if at_s == now_s}
            times, is_end = [], []
            for start_s, duration_s in self._jobs[key]:
                times.append(min(duration_s, now_s - start_s))
                is_end.append(start_s + duration_s <= now_s)
            array, ended = np.array(times), np.array(is_end, dtype=bool)
            order = np.argsort(array, kind="stable")
            at_risk = len(order) - np.arange(len(order))
            survival = np.cumprod(1 - ended[order] / at_risk)
            self._curves[key, now_s] = array[order][ended[order]], survival[ended[order]]
        return self._curves[key, now_s]


def _classes(job: TraceJob) -> tuple[tuple[str, int], ...]:
    """From the narrowest to all jobs."""
    return (job.queue, job.gpus), (job.queue, 0), ("", 0)


class Replay:
    """One queue: strictly in order, ``gpus`` GPUs. Starts of ``sampled`` are predicted; with None, of none, and
    ``waiting`` has those that could be."""

    def __init__(self, jobs: Sequence[TraceJob], gpus: int, sampled: Collection[int] | None, history: History) -> None:
        self.jobs, self.gpus, self.sampled, self.history = jobs, gpus, sampled, history
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
            Prediction(index >= CHOSEN_ON * len(self.jobs), wait_s, *self.predicted[index])
            for index in sorted(self.predicted)
            if index >= WARM * len(self.jobs)
            and (wait_s := self.start_s[index] - self.jobs[index].submitted_s) >= SHORTEST_S
        ]

    def _until(self, now_s: float) -> None:
        while self.ends and self.ends[0][0] <= now_s:
            end_s, index = heapq.heappop(self.ends)
            self.free += self.jobs[index].gpus
            del self.running[index]
            self._start(end_s)

    def _start(self, now_s: float) -> None:
        while self.queue and self.jobs[self.queue[0]].gpus <= self.free:
            index = self.queue.popleft()
            job = self.jobs[index]
            self.free -= job.gpus
            self.running[index] = self.start_s[index] = now_s
            heapq.heappush(self.ends, (now_s + job.duration_s, index))
            self.history.started(job, now_s)

    def _observe(self, now_s: float) -> None:
        """What is known by now of earlier predictions: that they have started, or wait beyond their p90."""
        known = []
        for index in self.predicted.keys() - self.reported:
            raw, _ = self.predicted[index]
            begun, submitted_s = index in self.start_s, self.jobs[index].submitted_s
            wait_s = (self.start_s[index] if begun else now_s) - submitted_s
            if begun or (raw.p90_s is not None and wait_s > 2 * raw.p90_s):
                known.append((submitted_s + wait_s, index, wait_s))
        for _, index, wait_s in sorted(known):
            self.reported.add(index)
            self.calibration = self.calibration.observed(self.predicted[index][0], wait_s)

    def _predict(self, index: int, now_s: float) -> StartEstimate:
        times: dict[str, RunTimeQuantiles] = {}
        for other, started_s in self.running.items():
            if (quantiles := self.history.quantiles(self.jobs[other], now_s, now_s - started_s)) is not None:
                times[str(other)] = quantiles
        for other in self.queue:
            if (quantiles := self.history.quantiles(self.jobs[other], now_s)) is not None:
                times[str(other)] = quantiles
        running = tuple(RunningGpus(str(other), by_limit={_LIMIT: self.jobs[other].gpus}) for other in self.running)
        queue = tuple(QueuedGpus(str(other), 1, 1000, {_LIMIT: self.jobs[other].gpus}) for other in self.queue)
        model = QueueModel(running, queue, free_by_limit={_LIMIT: self.free}, strict=True)
        return start_times(model, str(index), times, np.random.default_rng(index), DRAWS)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table; 0 when the later jobs of every queue with enough waits reach both goals."""
    rows, seconds, missed = list[list[str]](), list[float](), 0
    for name, jobs in _queues(os.environ.get("KOPT_DATA_DIR", "")):
        if arguments and name not in arguments:
            continue
        replay = replay_of(jobs)
        predictions = replay.run()
        seconds += replay.seconds
        later = [item for item in predictions if item.later]
        known = sum(item.estimate.p90_s is not None for item in predictions) / max(1, len(predictions))
        earlier = [item for item in predictions if not item.later]
        rows.append([name, str(replay.gpus), f"{known:.0%}", *_figures(earlier), *_figures(later)])
        print("; ".join(rows[-1]), file=sys.stderr, flush=True)
        missed += len(later) >= FEWEST_WAITS and not reached(later)
    if not rows:
        print("no queue of that name, or KOPT_DATA_DIR names no folder with jobs/")
        return 1
    part = ["waits", "median wait", "draws' p90 covers", "p90 covers", "error of p50"]
    head = ["queue", "GPUs", "known", *(f"earlier: {name}" for name in part), *(f"later: {name}" for name in part)]
    print(markdown(head, rows))
    print(f"\nA start is predicted in {1000 * sorted(seconds)[len(seconds) // 2]:.0f} ms (median, time on a core).")
    return 1 if missed else 0


def _queues(folder: str) -> Iterator[tuple[str, Sequence[TraceJob]]]:
    """Small ones first: those of few jobs have few waits to judge by, and are left out."""
    found: dict[str, list[TraceJob]] = defaultdict(list)
    for trace, whose in ((PHILLY, "Philly"), (ITP, "ITP")):
        path = Path(folder) / trace
        if not folder or not path.exists():
            continue
        for job in read_jobs(path):
            found[f"{whose} {job.queue.removeprefix('cluster')}"].append(job)
            if whose == "Philly":
                found[WHOLE].append(job)
    yield from sorted(
        ((name, jobs) for name, jobs in found.items() if len(jobs) >= FEWEST_JOBS), key=lambda item: len(item[1])
    )


def replay_of(jobs: Sequence[TraceJob]) -> Replay:
    """With GPUs for the demand of these jobs, and predictions for a sample of those that wait."""
    span_s = jobs[-1].submitted_s - jobs[0].submitted_s
    demand = sum(job.gpus * job.duration_s for job in jobs) / span_s
    gpus = max(math.ceil(demand / LOAD), max(job.gpus for job in jobs))
    rehearsal = Replay(jobs, gpus, None, History())
    rehearsal.run()
    waiting = rehearsal.waiting
    sampled = random.Random(0).sample(waiting, min(len(waiting), SAMPLES))
    return Replay(jobs, gpus, frozenset(sampled), History())


def reached(predictions: Sequence[Prediction]) -> bool:
    coverage, error = covered(predictions), median_error(predictions)
    return COVERAGE[0] <= coverage <= COVERAGE[1] and error <= MEDIAN_ERROR


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
        return ["0", "", "", "", ""]
    waits = sorted(item.wait_s for item in predictions)
    return [
        str(len(predictions)),
        f"{waits[len(waits) // 2] / 3600:.1f} h",
        f"{covered(predictions, raw=True):.0%}",
        f"{covered(predictions):.0%}",
        f"{median_error(predictions):.0%}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
