"""A queue of jobs on one pool of GPUs, replayed under backfilling by estimates of run times."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kopt.core.workload.run_time import JobRun
from kopt.policies.backfilling import Holding, PendingJob

Choose = Callable[[int, Sequence[PendingJob], Sequence[Holding], float], list[int]]
"""Free GPUs, the queue, what runs, now → indexes of the jobs that start."""


class Estimates(Protocol):
    """What a scheduler is told of run times. All times are those of the replay, in seconds."""

    def whole(self, job: JobRun, now_s: float) -> float:
        """How long a job that waits will run."""
        ...

    def remaining(self, job: JobRun, elapsed_s: float, now_s: float) -> float:
        """… and how much longer one does that has run for longer than was estimated."""
        ...

    def started(self, job: JobRun, now_s: float) -> None: ...

    def ended(self, job: JobRun, started_s: float, now_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Started:
    """A job of the trace and when it started."""

    job: JobRun
    start_s: float

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.started_s


@dataclass(slots=True)
class _Running:
    job: JobRun
    start_s: float
    until_s: float
    """As estimated."""


def replay(jobs: Sequence[JobRun], gpus: int, choose: Choose, estimates: Estimates) -> list[Started]:
    """Every job of a trace is submitted when it started there and runs as long as there. Jobs larger than the pool, and
    those without an end, are left out."""
    fitting = [job for job in jobs if job.kind.gpus <= gpus and job.duration_seconds is not None]
    arrivals = sorted(fitting, key=lambda job: job.started_s)
    ends: list[tuple[float, int]] = []
    running: dict[int, _Running] = {}
    pending: list[tuple[JobRun, PendingJob]] = []
    result: list[Started] = []
    free, arrived = gpus, 0
    while arrived < len(arrivals) or ends:
        next_arrival_s = arrivals[arrived].started_s if arrived < len(arrivals) else float("inf")
        now_s = min(next_arrival_s, ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now_s:
            _, number = heapq.heappop(ends)
            done = running.pop(number)
            free += done.job.kind.gpus
            estimates.ended(done.job, done.start_s, now_s)
        while arrived < len(arrivals) and arrivals[arrived].started_s <= now_s:
            job = arrivals[arrived]
            pending.append((job, PendingJob(job.kind.gpus, estimates.whole(job, now_s))))
            arrived += 1
        holders = _holders(running, estimates, now_s)
        selected = choose(free, [candidate for _, candidate in pending], holders, now_s)
        for index in selected:
            job, candidate = pending[index]
            number = len(result)
            assert job.duration_seconds is not None
            running[number] = _Running(job, now_s, now_s + candidate.seconds)
            heapq.heappush(ends, (now_s + job.duration_seconds, number))
            free -= job.kind.gpus
            estimates.started(job, now_s)
            result.append(Started(job, now_s))
        if selected:
            started_indexes = set(selected)
            pending = [item for index, item in enumerate(pending) if index not in started_indexes]
    return result


def _holders(running: dict[int, _Running], estimates: Estimates, now_s: float) -> list[Holding]:
    for item in running.values():
        if item.until_s <= now_s:
            item.until_s = now_s + max(1.0, estimates.remaining(item.job, now_s - item.start_s, now_s))
    return [Holding(item.job.kind.gpus, item.until_s) for item in running.values()]
