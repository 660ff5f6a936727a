"""Jobs that really ran, as they are replayed, and which part of their waits more GPUs cannot shorten."""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kopt.core.workload.run_time import JobRun


class WhatIfError(ValueError):
    """The question cannot be answered; the message says what to change."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """``seconds`` it ran on its GPUs. ``waited_s`` is None where only the submission was recorded. ``held_s`` of its
    wait passed while its pool had enough GPUs free: something else held it."""

    queue: str
    user: str
    pool: str
    gpus: int
    submitted_s: float
    seconds: float
    waited_s: float | None = None
    held_s: float = 0.0

    @property
    def eligible_s(self) -> float:
        """From when on it waits for GPUs."""
        return self.submitted_s + self.held_s


@dataclass(frozen=True)
class History:
    """Jobs by submission. Nothing is known of what came after ``end_s``; ``unended`` of the jobs still ran then, and
    count with what they had run."""

    jobs: tuple[PastJob, ...]
    end_s: float
    unended: int = 0


def history_of(runs: Iterable[JobRun]) -> History:
    """Runs that were evicted are jobs like others, and so are their next runs. Raises WhatIfError without a run."""
    listed: Sequence[JobRun] = [run for run in runs if run.kind.gpus]
    if not listed:
        raise WhatIfError("there is no run on a GPU")
    end_s = max(run.started_s if run.ended_s is None else run.ended_s for run in listed)
    jobs = [
        PastJob(
            run.kind.queue,
            run.kind.user,
            run.pool,
            run.kind.gpus,
            run.started_s if run.submitted_s is None else run.submitted_s,
            (end_s if run.ended_s is None else run.ended_s) - run.started_s,
            None if run.submitted_s is None else run.started_s - run.submitted_s,
        )
        for run in listed
    ]
    jobs.sort(key=lambda job: job.submitted_s)
    return History(tuple(jobs), end_s, sum(run.ended_s is None for run in listed))


class RecordedUse:
    """GPUs of one pool that its jobs used by the record, over time. Those whose start is not known count from their
    submission on."""

    def __init__(self, jobs: Iterable[PastJob], gpus: int) -> None:
        changes: dict[float, int] = defaultdict(int)
        for job in jobs:
            start_s = job.submitted_s + (job.waited_s or 0.0)
            changes[start_s] += job.gpus
            changes[start_s + job.seconds] -= job.gpus
        self._times_s = sorted(changes)
        self._used = list(itertools.accumulate(changes[at_s] for at_s in self._times_s))
        self._gpus = gpus
        self._enough_s: dict[int, list[float]] = {}

    def excess(self) -> float:
        """The share of the GPU time used that is above the size of the pool."""
        spans_s = [after - before for before, after in itertools.pairwise(self._times_s)]
        used = sum(span_s * used for span_s, used in zip(spans_s, self._used, strict=False))
        above = sum(span_s * max(0, used - self._gpus) for span_s, used in zip(spans_s, self._used, strict=False))
        return above / used if used else 0.0

    def with_holds(self, job: PastJob) -> PastJob:
        """The job with what of its wait passed while it would have fitted."""
        if not job.waited_s or job.gpus > self._gpus:
            return job
        start_s = job.submitted_s + job.waited_s
        held_s = self._enough_until(job.gpus, start_s) - self._enough_until(job.gpus, job.submitted_s)
        return replace(job, held_s=min(job.waited_s, max(0.0, held_s)))

    def _enough_until(self, gpus: int, at_s: float) -> float:
        """Seconds up to a time in which so many GPUs were free, from the first start on; before, negative."""
        if gpus not in self._enough_s:
            spans_s = [
                (after - before) * (self._gpus - used >= gpus)
                for (before, after), used in zip(itertools.pairwise(self._times_s), self._used, strict=False)
            ]
            self._enough_s[gpus] = [0.0, *itertools.accumulate(spans_s)]
        index = bisect.bisect_right(self._times_s, at_s) - 1
        if index < 0:
            return at_s - self._times_s[0]
        fits = self._gpus - self._used[index] >= gpus
        return self._enough_s[gpus][index] + (at_s - self._times_s[index]) * fits
