"""Schedulers that a replay does not know of: which jobs start when GPUs are free, for ``benchmarks.what_if``."""

import bisect
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kopt.simulator.what_if.jobs import PastJob

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_NIGHT = 18, 6
"""Hours between which large jobs may start."""
LARGE, URGENT_SHARE, LIMIT_SHARE = 4, 0.2, 0.4


@dataclass
class State:
    """What a scheduler sees: GPUs in use by queue, and the size of the pool."""

    gpus: int
    used: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Scheduler:
    """``rank`` of a job and its number: less starts first, among equals the oldest. ``may``: whether a job may start,
    given when and what is in use. ``blocks``: nothing passes a job that lacks GPUs."""

    rank: Callable[[PastJob, int], float] = lambda job, number: 0.0
    may: Callable[[PastJob, float, State], bool] = lambda job, now_s, state: True
    blocks: bool = False


def _is_night(now_s: float) -> bool:
    hour = now_s % _DAY_S / _HOUR_S
    return hour >= _NIGHT[0] or hour < _NIGHT[1]


SCHEDULERS = {
    "oldest that fits": Scheduler(),
    "strictly in order": Scheduler(blocks=True),
    "smallest first": Scheduler(rank=lambda job, number: job.gpus),
    "largest first": Scheduler(rank=lambda job, number: -job.gpus),
    "shortest first": Scheduler(rank=lambda job, number: job.seconds),
    "newest first": Scheduler(rank=lambda job, number: -job.submitted_s),
    "a fifth is urgent": Scheduler(rank=lambda job, number: random.Random(number).random() > URGENT_SHARE),
    "large jobs at night": Scheduler(may=lambda job, now_s, state: job.gpus < LARGE or _is_night(now_s)),
    "users are limited": Scheduler(
        may=lambda job, now_s, state: state.used[job.user] + job.gpus <= max(job.gpus, LIMIT_SHARE * state.gpus)
    ),
}
"""By what decides beside the age of a job."""


def starts(jobs: Sequence[PastJob], gpus: int, scheduler: Scheduler) -> list[float]:
    """When each job, by submission and none larger than the pool, starts."""
    state, free, arrived = State(gpus), gpus, 0
    keys = [(scheduler.rank(job, number), number) for number, job in enumerate(jobs)]
    pending: list[tuple[float, int]] = []
    ends: list[tuple[float, int]] = []
    start_s = [math.nan] * len(jobs)
    tick_s = math.inf
    while arrived < len(jobs) or ends or pending:
        next_s = jobs[arrived].submitted_s if arrived < len(jobs) else math.inf
        now_s = min(next_s, ends[0][0] if ends else math.inf, tick_s)
        while ends and ends[0][0] <= now_s:
            job = jobs[heapq.heappop(ends)[1]]
            free += job.gpus
            state.used[job.user] -= job.gpus
        while arrived < len(jobs) and jobs[arrived].submitted_s <= now_s:
            bisect.insort(pending, keys[arrived])
            arrived += 1
        begun = set()
        for _, number in pending if free else ():
            job = jobs[number]
            if job.gpus > free and scheduler.blocks:
                break
            if job.gpus > free or not scheduler.may(job, now_s, state):
                continue
            free -= job.gpus
            state.used[job.user] += job.gpus
            start_s[number] = now_s
            begun.add(number)
            heapq.heappush(ends, (now_s + job.seconds, number))
            if not free:
                break
        if begun:
            pending = [key for key in pending if key[1] not in begun]
        # The night may begin while nothing else happens.
        tick_s = (now_s // _HOUR_S + 1) * _HOUR_S if pending and free else math.inf
    return start_s
