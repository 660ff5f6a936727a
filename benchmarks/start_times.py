"""Starts that were predicted, against those that came: a queue that replays a trace with its real run times.

The whole trace is one queue, and its larger virtual clusters are queues of their own; each gets GPUs for somewhat more
than its mean demand, which comes in waves, and starts jobs strictly in order. When
a job is submitted and has to wait, its start is predicted from what runs and waits before it. Run times are known as
quantiles of the class (queue and number of GPUs): those of the last jobs that were started before that moment, of which
the ones that still run count as longer than they have run (Kaplan and Meier, 1958), given the time already run. Nothing
that happens later is used.
"""

import heapq
import math
import os
import random
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.data.jobs.training import TraceJob, read_jobs
from kopt.policies.diagnosis import QueuedGpus, QueueModel, RunningGpus, StartCalibration, start_times

TRACE = "jobs/philly_first_half.csv.gz"
LOAD, HISTORY, LEAST_KNOWN, SAMPLES, SHORTEST_S = 0.6, 300, 5, 100, 60.0
LONGEST_HISTORY = 5000
QUEUES, WARM = 3, 0.2
DRAWS = 100
LEVELS = (0.005, 0.01, *(number / 40 for number in range(1, 40)), 0.99, 0.995)
COVERAGE, MEDIAN_ERROR = (0.85, 0.95), 0.35
_LIMIT = "gpus"


@dataclass(frozen=True)
class Prediction:
    """``raw``: what the draws gave; ``estimate``: corrected by the starts before."""

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
    """One queue: strictly in order, ``gpus`` GPUs."""

    def __init__(self, jobs: Sequence[TraceJob], gpus: int, chosen: frozenset[int], history: History) -> None:
        self.jobs, self.gpus, self.sampled, self.history = jobs, gpus, chosen, history
        self.free = gpus
        self.running: dict[int, float] = {}
        self.queue: deque[int] = deque()
        self.ends: list[tuple[float, int]] = []
        self.start_s: dict[int, float] = {}
        self.predicted: dict[int, tuple[StartEstimate, StartEstimate]] = {}
        self.calibration, self.reported = StartCalibration(), set[int]()
        self.seconds: list[float] = []

    def run(self) -> list[Prediction]:
        for index, job in enumerate(self.jobs):
            self._until(job.submitted_s)
            self.queue.append(index)
            self._start(job.submitted_s)
            if index in self.sampled and index not in self.start_s:
                begin = time.perf_counter()
                self._observe(job.submitted_s)
                raw = self._predict(index, job.submitted_s)
                self.predicted[index] = raw, self.calibration.corrected(raw)
                self.seconds.append(time.perf_counter() - begin)
        self._until(math.inf)
        return [
            Prediction(wait_s, *self.predicted[index])
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


def replayed() -> bool:
    """Print the table; whether coverage and error on the whole cluster are reached. True, with a remark, without the
    trace."""
    folder = os.environ.get("KOPT_DATA_DIR", "")
    path = Path(folder) / TRACE
    if not folder or not path.exists():
        print(f"starts: left out, KOPT_DATA_DIR has no {TRACE}")
        return True
    jobs = read_jobs(path)
    by_queue: dict[str, list[TraceJob]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue].append(job)
    several = sorted(by_queue.items(), key=lambda item: len(item[1]), reverse=True)[1 : 1 + QUEUES]
    rows, every, seconds = [], list[Prediction](), list[float]()
    for name, queue in (("the whole cluster", list(jobs)), *several):
        replay = replay_of(queue)
        predictions = replay.run()
        seconds += replay.seconds
        rows.append([name, str(replay.gpus), *_figures(predictions)])
        every = every or predictions
    head = ["queue", "GPUs", "waits", "median wait", "known", "draws' p90 covers", "p90 covers", "median error"]
    print(markdown(head, rows))
    print(f"\nA start is predicted in {1000 * sorted(seconds)[len(seconds) // 2]:.0f} ms (median).")
    coverage, error = covered(every), median_error(every)
    return COVERAGE[0] <= coverage <= COVERAGE[1] and error <= MEDIAN_ERROR


def replay_of(jobs: Sequence[TraceJob]) -> Replay:
    """With GPUs for the demand of these jobs, and predictions of a sample of them; the first fifth only teaches."""
    span_s = jobs[-1].submitted_s - jobs[0].submitted_s
    demand = sum(job.gpus * job.duration_s for job in jobs) / span_s
    gpus = max(math.ceil(demand / LOAD), max(job.gpus for job in jobs))
    # Most of them do not wait.
    sampled = frozenset(random.Random(0).sample(range(len(jobs)), min(len(jobs), 5 * SAMPLES)))
    return Replay(jobs, gpus, sampled, History())


def covered(predictions: Sequence[Prediction], *, raw: bool = False) -> float:
    """The share that started by p90, among those whose start was predicted."""
    pairs = [(item.wait_s, (item.raw if raw else item.estimate).p90_s) for item in predictions]
    known = [(wait_s, p90_s) for wait_s, p90_s in pairs if p90_s is not None]
    return sum(wait_s <= p90_s for wait_s, p90_s in known) / max(1, len(known))


def median_error(predictions: Sequence[Prediction]) -> float:
    """Of p50, as a share of the wait."""
    pairs = [(item.wait_s, item.estimate.p50_s) for item in predictions]
    errors = sorted(abs(p50_s - wait_s) / wait_s for wait_s, p50_s in pairs if p50_s is not None)
    return errors[len(errors) // 2] if errors else math.inf


def _figures(predictions: Sequence[Prediction]) -> list[str]:
    if not predictions:
        return ["0", "", "", "", "", ""]
    waits = sorted(item.wait_s for item in predictions)
    known = sum(item.estimate.p90_s is not None for item in predictions)
    return [
        str(len(predictions)),
        f"{waits[len(waits) // 2] / 3600:.1f} h",
        f"{known / len(predictions):.0%}",
        f"{covered(predictions, raw=True):.1%}",
        f"{covered(predictions):.1%}",
        f"{median_error(predictions):.0%}",
    ]
