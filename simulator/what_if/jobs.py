"""Jobs that really ran, as they are replayed, and which part of their waits more GPUs cannot shorten."""

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kopt.core.workload.run_time import JobRun


class WhatIfError(ValueError):
    """The question cannot be answered; the message says what to change."""


@dataclass(frozen=True, slots=True)
class PastJob:
    """``seconds`` it ran on its GPUs. ``waited_s`` is None where only the submission was recorded. ``held_s`` of its
    wait passed while its pool had enough GPUs free for all that waited: something else held it."""

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


class Record:
    """What the record says of one pool, whose ``jobs`` are by submission. Those whose start is not recorded count from
    their submission on."""

    def __init__(self, jobs: Sequence[PastJob], gpus: int) -> None:
        self._jobs, self._gpus = jobs, gpus
        starts_s = [job.submitted_s + (job.waited_s or 0.0) for job in jobs]
        # At the same time ends come first, and what is submitted waits before it starts.
        self._events = sorted(
            [
                *(
                    (start_s + job.seconds, 0, rank)
                    for rank, (job, start_s) in enumerate(zip(jobs, starts_s, strict=True))
                ),
                *((job.submitted_s, 1, rank) for rank, job in enumerate(jobs) if job.waited_s),
                *((start_s, 2, rank) for rank, start_s in enumerate(starts_s)),
            ]
        )

    def excess(self) -> float:
        """The share of the GPU time used that is above the size of the pool."""
        used, total, above = 0, 0.0, 0.0
        for (at_s, kind, rank), (next_s, _, _) in itertools.pairwise(self._events):
            used += (-1, 0, 1)[kind] * self._jobs[rank].gpus
            total += (next_s - at_s) * used
            above += (next_s - at_s) * max(0, used - self._gpus)
        return above / total if total > 0 else 0.0

    def fitting_s(self) -> float:
        """Seconds that jobs waited while enough GPUs were free for each of them alone, summed up."""
        total, free, queued = 0.0, self._gpus, Counter[int]()
        for (at_s, kind, rank), (next_s, _, _) in itertools.pairwise(self._events):
            job = self._jobs[rank]
            free += (1, 0, -1)[kind] * job.gpus
            if kind and job.waited_s:
                queued[job.gpus] += (0, 1, -1)[kind]
            if next_s > at_s:
                total += (next_s - at_s) * sum(count for gpus, count in queued.items() if gpus <= free)
        return total

    def with_holds(self) -> list[PastJob]:
        """The jobs with what of their waits passed while the pool had enough GPUs free for each and for all that had
        waited for longer: no order of the queue keeps a job waiting then."""
        held_s, free, queued = [0.0] * len(self._jobs), self._gpus, list[int]()
        for (at_s, kind, rank), (next_s, _, _) in itertools.pairwise(self._events):
            job = self._jobs[rank]
            free += (1, 0, -1)[kind] * job.gpus
            if kind == 1:
                bisect.insort(queued, rank)
            elif kind == 2 and job.waited_s:
                del queued[bisect.bisect_left(queued, rank)]
            left = free
            for other in queued if next_s > at_s else ():
                left -= self._jobs[other].gpus
                if left < 0:
                    break
                held_s[other] += next_s - at_s
        return [
            replace(job, held_s=min(job.waited_s or 0.0, held)) for job, held in zip(self._jobs, held_s, strict=True)
        ]
