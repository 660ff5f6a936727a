"""What a replay knows of run times while it goes on: by the class of a job, and by kopt's predictor."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from kopt.core.workload.run_time import LEVELS, JobKind, JobRun, RunTimeQuantiles, RunTimeQuestion
from kopt.data.jobs.training import TraceJob
from kopt.models.runtime.predictor import RunTimePredictor

HISTORY, LONGEST_HISTORY, LEAST_KNOWN = 300, 5000, 5
FINE = (0.005, 0.01, *(number / 40 for number in range(1, 40)), 0.99, 0.995)


class KnownTimes(Protocol):
    """Jobs go by their number in the trace."""

    def started(self, number: int, job: TraceJob, at_s: float) -> None: ...

    def ended(self, number: int, job: TraceJob, started_s: float, at_s: float) -> None: ...

    def left(self, jobs: Mapping[int, tuple[TraceJob, float | None]], now_s: float) -> dict[str, RunTimeQuantiles]:
        """Of what runs (since when) the time that is left, of the rest its whole run time; what nothing is known of is
        left out."""
        ...


class ByModel:
    """kopt's predictor, which has to be of other clusters; it hears of starts and ends as they come."""

    def __init__(self, model: RunTimePredictor) -> None:
        self._model, self._runs = model, model.cluster_runs()
        self._news: list[JobRun] = []

    def started(self, number: int, job: TraceJob, at_s: float) -> None:
        self._news.append(JobRun(str(number), _kind(job), at_s))

    def ended(self, number: int, job: TraceJob, started_s: float, at_s: float) -> None:
        self._news.append(JobRun(str(number), _kind(job), started_s, at_s))

    def left(self, jobs: Mapping[int, tuple[TraceJob, float | None]], now_s: float) -> dict[str, RunTimeQuantiles]:
        self._runs.observe(self._news)
        self._news = []
        questions = [
            RunTimeQuestion(_kind(job), now_s, started_s, job="" if started_s is None else str(number))
            for number, (job, started_s) in jobs.items()
        ]
        answers = self._model.remaining(questions, self._runs)
        return {
            str(number): RunTimeQuantiles(LEVELS, answer.seconds, (question.kind.queue, question.kind.gpus))
            for number, question, answer in zip(jobs, questions, answers, strict=True)
            if answer.seconds is not None
        }


def _kind(job: TraceJob) -> JobKind:
    return JobKind(job.queue, job.gpus)


class ByClass:
    """The last jobs of the queue and size that were started, of which those that still run count as longer than they
    have run (Kaplan and Meier, 1958), given the time already run."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, int], deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=HISTORY))
        self._jobs["", 0] = deque(maxlen=LONGEST_HISTORY)
        self._curves: dict[tuple[tuple[str, int], float], tuple[np.ndarray, np.ndarray]] = {}

    def started(self, number: int, job: TraceJob, at_s: float) -> None:
        for key in _classes(job):
            self._jobs[key].append((at_s, job.duration_s))

    def ended(self, number: int, job: TraceJob, started_s: float, at_s: float) -> None:
        """It is known from its start on when it will have ended; ``left`` looks no further than now."""

    def left(self, jobs: Mapping[int, tuple[TraceJob, float | None]], now_s: float) -> dict[str, RunTimeQuantiles]:
        answers = {
            number: self._quantiles(job, now_s, 0.0 if started_s is None else now_s - started_s)
            for number, (job, started_s) in jobs.items()
        }
        return {str(number): quantiles for number, quantiles in answers.items() if quantiles is not None}

    def _quantiles(self, job: TraceJob, now_s: float, ran_s: float) -> RunTimeQuantiles | None:
        seconds = self._times(_classes(job), np.array(FINE), now_s, ran_s)
        if seconds is None:
            return None
        remaining = np.maximum.accumulate(np.maximum(seconds - ran_s, 0.0))
        return RunTimeQuantiles(FINE, tuple(remaining.tolist()), (job.queue, job.gpus))

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
