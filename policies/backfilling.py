"""Which waiting jobs start now: in the queue's order, with later ones before their turn where that delays nobody.

EASY (Lifka, The ANL/IBM SP scheduling system, 1995) holds GPUs for the first job that does not fit, and lets others
pass that end before it can start, or leave it enough GPUs all the same. Conservative (Mu'alem and Feitelson,
Utilization, predictability, workloads and user runtime estimates, 2001) holds GPUs for every job that waits. Both go by
estimates of when what runs ends, so they are as good as these.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that waits: its GPUs, and how long it is expected to run."""

    gpus: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Holding:
    """A job that runs: its GPUs, and when it is expected to give them back (any seconds)."""

    gpus: int
    until_s: float


def fifo(free: int, queue: Sequence[PendingJob]) -> list[int]:
    """Indexes of the jobs that start: from the front, until the first that does not fit."""
    result = []
    for index, job in enumerate(queue):
        if job.gpus > free:
            break
        free -= job.gpus
        result.append(index)
    return result


def easy(
    free: int,
    queue: Sequence[PendingJob],
    running: Sequence[Holding],
    now_s: float,
    depth: int = 100,
    *,
    shortest_first: bool = False,
) -> list[int]:
    """Indexes of the jobs that start now. ``depth``: so many of those behind the first that waits are looked at, in the
    queue's order, or ``shortest_first`` (SJBF: Tsafrir, Etsion and Feitelson, Backfilling using system-generated
    predictions rather than user runtime estimates, 2007)."""
    started = fifo(free, queue)
    free -= sum(queue[index].gpus for index in started)
    if len(started) == len(queue):
        return started
    first = len(started)
    holders = [*running, *(Holding(queue[index].gpus, now_s + queue[index].seconds) for index in started)]
    start_s, spare = _reservation(free, queue[first].gpus, holders)
    behind = list(range(first + 1, min(len(queue), first + 1 + depth)))
    if shortest_first:
        behind.sort(key=lambda index: queue[index].seconds)
    for index in behind:
        job = queue[index]
        if job.gpus > free:
            continue
        ends_before = now_s + job.seconds <= start_s
        if not ends_before and job.gpus > spare:
            continue
        free -= job.gpus
        spare -= 0 if ends_before else job.gpus
        started.append(index)
    return started


def conservative(
    free: int, queue: Sequence[PendingJob], running: Sequence[Holding], now_s: float, depth: int = 100
) -> list[int]:
    """Indexes of the jobs that start now, where every one of the first ``depth`` has GPUs held for it."""
    profile = _Profile(free, running, now_s)
    started = []
    for index, job in enumerate(queue[:depth]):
        if profile.hold(job.gpus, job.seconds) <= now_s:
            started.append(index)
    return started


def _reservation(free: int, gpus: int, running: Sequence[Holding]) -> tuple[float, int]:
    """When as many GPUs are free as a job needs, and how many are left then; never, where there are too few."""
    for holding in sorted(running, key=lambda holding: holding.until_s):
        free += holding.gpus
        if free >= gpus:
            return holding.until_s, free - gpus
    return float("inf"), 0


class _Profile:
    """Free GPUs from each moment on."""

    def __init__(self, free: int, running: Sequence[Holding], now_s: float) -> None:
        self._times_s, self._free = [now_s], [free]
        for holding in sorted(running, key=lambda holding: holding.until_s):
            until_s = max(now_s, holding.until_s)
            if until_s > self._times_s[-1]:
                self._times_s.append(until_s)
                self._free.append(self._free[-1])
            self._free[-1] += holding.gpus

    def hold(self, gpus: int, seconds: float) -> float:
        """Hold GPUs from when they are free for so long; returns that time, infinite where they never are."""
        for first, start_s in enumerate(self._times_s):
            end_s = start_s + seconds
            last = bisect.bisect_left(self._times_s, end_s)
            if min(self._free[first:last], default=self._free[first]) >= gpus:
                self._split(end_s)
                for at in range(first, bisect.bisect_left(self._times_s, end_s)):
                    self._free[at] -= gpus
                return start_s
        return float("inf")

    def _split(self, at_s: float) -> None:
        index = bisect.bisect_left(self._times_s, at_s)
        if index == len(self._times_s) or self._times_s[index] != at_s:
            self._times_s.insert(index, at_s)
            self._free.insert(index, self._free[index - 1])
