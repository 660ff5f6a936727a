"""Jobs that really ran through one pool of GPUs: there to be started when they were, running for as long as they did.

Backfilling is that of ``policies.backfilling``. Nothing is random.
"""

import bisect
import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.policies.backfilling import Holding, PendingJob, easy
from kopt.simulator.what_if.jobs import PastJob

_LOOKED_AT = 100
"""Jobs at the head of the queue that may be backfilled."""


class Order(StrEnum):
    """In which jobs start. ``FIFO``: those of a queue one after the other (Kueue's StrictFIFO). ``BEST_EFFORT``:
    whatever fits, the oldest first (Kueue's BestEffortFIFO, and Kubernetes without queues). ``BACKFILL``: later ones
    only where that does not delay the first that lacks GPUs (EASY), as if run times were known. ``FAIR``: whatever
    fits, first of the queue that uses fewest GPUs."""

    FIFO = "fifo"
    BEST_EFFORT = "best-effort"
    BACKFILL = "backfill"
    FAIR = "fair"


@dataclass(frozen=True)
class Pool:
    """GPUs that are used together wherever they are. ``quotas``: those that a queue may use at a time; a queue that is
    not named may use all."""

    gpus: int
    quotas: Mapping[str, int] = field(default_factory=dict)

    def fits(self, job: PastJob) -> bool:
        """Whether it ever starts."""
        return job.gpus <= min(self.gpus, self.quotas.get(job.queue, self.gpus))


def replay(jobs: Sequence[PastJob], pool: Pool, order: Order) -> list[float | None]:
    """When each of the jobs starts; None where it never fits. Jobs that wait start by when they became eligible."""
    return _Replay(jobs, pool, order).run()


class _Replay:
    """Jobs are known by their rank among all, by when they are eligible."""

    def __init__(self, jobs: Sequence[PastJob], pool: Pool, order: Order) -> None:
        self._numbers = sorted(range(len(jobs)), key=lambda number: jobs[number].eligible_s)
        self._jobs, self._pool, self._order = [jobs[number] for number in self._numbers], pool, order
        self._free, self._used = pool.gpus, dict.fromkeys((job.queue for job in jobs), 0)
        self._start_s: list[float | None] = [None] * len(jobs)
        self._ends: list[tuple[float, int]] = []
        self._running: dict[int, Holding] = {}
        self._pending: _InOrder | _Lines = _InOrder() if order is Order.BACKFILL else _Lines(self._jobs, order)

    def run(self) -> list[float | None]:
        arrivals = deque(rank for rank, job in enumerate(self._jobs) if self._pool.fits(job))
        while arrivals or self._ends:
            next_s = self._jobs[arrivals[0]].eligible_s if arrivals else math.inf
            now_s = min(next_s, self._ends[0][0] if self._ends else math.inf)
            while self._ends and self._ends[0][0] <= now_s:
                self._end(heapq.heappop(self._ends)[1])
            while arrivals and self._jobs[arrivals[0]].eligible_s <= now_s:
                self._pending.add(arrivals.popleft())
            if self._free and isinstance(self._pending, _InOrder):
                self._backfill(self._pending, now_s)
            elif self._free and isinstance(self._pending, _Lines):
                self._start_heads(self._pending, now_s)
        result: list[float | None] = [None] * len(self._jobs)
        for number, start_s in zip(self._numbers, self._start_s, strict=True):
            result[number] = start_s
        return result

    def _start_heads(self, lines: "_Lines", now_s: float) -> None:
        heads = [(self._precedence(rank), rank) for rank in lines.heads()]
        heapq.heapify(heads)
        # What does not fit now fits no better after others have started.
        while heads and self._free:
            precedence, rank = heapq.heappop(heads)
            if precedence != (now := self._precedence(rank)):
                heapq.heappush(heads, (now, rank))
            elif self._begin(rank, now_s) and (behind := lines.advance(rank)) is not None:
                heapq.heappush(heads, (self._precedence(behind), behind))

    def _precedence(self, rank: int) -> int:
        """Less goes first; among equals the oldest."""
        return self._used[self._jobs[rank].queue] if self._order is Order.FAIR else 0

    def _backfill(self, queue: "_InOrder", now_s: float) -> None:
        if not queue.ranks:
            return
        looked_at = queue.ranks[: _LOOKED_AT + 1]
        queued = [PendingJob(self._jobs[rank].gpus, self._jobs[rank].seconds) for rank in looked_at]
        for at in easy(self._free, queued, list(self._running.values()), now_s, _LOOKED_AT):
            if self._begin(looked_at[at], now_s):
                queue.remove(looked_at[at])

    def _begin(self, rank: int, now_s: float) -> bool:
        job = self._jobs[rank]
        quota = self._pool.quotas.get(job.queue, self._pool.gpus)
        if job.gpus > self._free or self._used[job.queue] + job.gpus > quota:
            return False
        self._used[job.queue] += job.gpus
        self._free -= job.gpus
        self._start_s[rank] = now_s
        self._running[rank] = Holding(job.gpus, now_s + job.seconds)
        heapq.heappush(self._ends, (now_s + job.seconds, rank))
        return True

    def _end(self, rank: int) -> None:
        job = self._jobs[rank]
        del self._running[rank]
        self._free += job.gpus
        self._used[job.queue] -= job.gpus


class _InOrder:
    """All that waits, the oldest first."""

    def __init__(self) -> None:
        self.ranks: list[int] = []

    def add(self, rank: int) -> None:
        bisect.insort(self.ranks, rank)

    def remove(self, rank: int) -> None:
        del self.ranks[bisect.bisect_left(self.ranks, rank)]


class _Lines:
    """What waits, in lines of which only the head can start: those of a queue, or of its jobs of one size."""

    def __init__(self, jobs: Sequence[PastJob], order: Order) -> None:
        self._keys = [(job.queue, 0 if order is Order.FIFO else job.gpus) for job in jobs]
        self._lines: dict[tuple[str, int], deque[int]] = {}

    def add(self, rank: int) -> None:
        self._lines.setdefault(self._keys[rank], deque()).append(rank)

    def heads(self) -> list[int]:
        return [line[0] for line in self._lines.values()]

    def advance(self, rank: int) -> int | None:
        """Takes a head away; the one behind it."""
        line = self._lines[self._keys[rank]]
        line.popleft()
        if line:
            return line[0]
        del self._lines[self._keys[rank]]
        return None
