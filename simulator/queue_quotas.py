"""Jobs through queues that lend each other quota on one pool, as Kueue's cohorts do it with aggressive reclaim.

A job of a queue starts within the queue's quota, evicting borrowers, the last started first, where the pool is full; or
above it, on what is idle. One that is evicted goes back to its place in the queue, and has lost what it did since its
last checkpoint. Jobs that fit go ahead of those that do not (Kueue's ``BestEffortFIFO``). Nothing is random.
"""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

HOUR_S = 3600.0
_LOOKED_AT = 40
"""Jobs at the head of a queue that are tried each time."""


@dataclass(slots=True)
class QueueJob:
    """``wait_s`` sums up all its waits; ``remaining_s`` is what it has still to run."""

    queue: str
    gpus: int
    submitted_s: float
    remaining_s: float
    number: int = 0
    wait_s: float = 0.0
    since_s: float = 0.0
    """Since when it waits, or runs."""
    evictions: int = 0
    term: int = 0


@dataclass
class WeekResult:
    """What happened between two times: GPU-hours, evictions, and jobs that were submitted."""

    start_s: float
    jobs: list[QueueJob] = field(default_factory=list)
    used_gpu_h: float = 0.0
    borrowed_gpu_h: float = 0.0
    lost_gpu_h: float = 0.0
    evictions: int = 0
    demand: dict[str, list[float]] = field(default_factory=dict)
    """By queue, the mean of each hour, GPUs that are used or waited for."""


class QueueReplay:
    """Goes on from ``run`` to ``run``, each with its own quotas in GPUs; their sum is the pool."""

    def __init__(self, jobs: Iterable[QueueJob], queues: Sequence[str], checkpoint_s: float = HOUR_S) -> None:
        self._arrivals = sorted(jobs, key=lambda job: job.submitted_s)
        self._queues, self._checkpoint_s = list(queues), checkpoint_s
        self._next, self._now_s = 0, 0.0
        self._pending: dict[str, list[tuple[float, int, QueueJob]]] = {name: [] for name in queues}
        self._running: dict[str, list[QueueJob]] = {name: [] for name in queues}
        self._used = dict.fromkeys(queues, 0)
        self._pending_gpus = dict.fromkeys(queues, 0)
        self._ends: list[tuple[float, int, int, QueueJob]] = []
        for number, job in enumerate(self._arrivals):
            job.number = number

    def run(self, quotas: Mapping[str, int], until_s: float) -> WeekResult:
        """Up to a time."""
        pool = sum(quotas.values())
        result = WeekResult(self._now_s, demand={name: [] for name in self._queues})
        # What runs under quotas that are gone now may exceed nothing but its queue's.
        while True:
            at_s = min(self._next_event_s(), until_s, (self._now_s // HOUR_S + 1) * HOUR_S)
            self._pass(at_s, quotas, result)
            if at_s >= until_s:
                return result
            self._events(at_s, result)
            self._start(quotas, pool, result)

    def _next_event_s(self) -> float:
        while self._ends and self._ends[0][3].term != self._ends[0][2]:
            heappop(self._ends)
        arrival = self._arrivals[self._next].submitted_s if self._next < len(self._arrivals) else float("inf")
        return min(arrival, self._ends[0][0] if self._ends else float("inf"))

    def _pass(self, at_s: float, quotas: Mapping[str, int], result: WeekResult) -> None:
        hours = (at_s - self._now_s) / HOUR_S
        for name in self._queues:
            result.used_gpu_h += hours * self._used[name]
            result.borrowed_gpu_h += hours * max(0, self._used[name] - quotas[name])
            rows, hour = result.demand[name], int((self._now_s - result.start_s) // HOUR_S)
            while len(rows) <= hour:
                rows.append(0.0)
            rows[hour] += hours * (self._used[name] + self._pending_gpus[name])
        self._now_s = at_s

    def _events(self, at_s: float, result: WeekResult) -> None:
        while self._next_event_s() <= at_s:
            if self._ends and self._ends[0][0] <= at_s:
                job = heappop(self._ends)[3]
                job.term += 1
                self._used[job.queue] -= job.gpus
                self._running[job.queue].remove(job)
                continue
            job = self._arrivals[self._next]
            self._next += 1
            result.jobs.append(job)
            self._enqueue(job)

    def _enqueue(self, job: QueueJob) -> None:
        job.since_s = self._now_s
        self._pending_gpus[job.queue] += job.gpus
        insort(self._pending[job.queue], (job.submitted_s, job.number, job))

    def _start(self, quotas: Mapping[str, int], pool: int, result: WeekResult) -> None:
        for within in (True, False):
            order = sorted(self._queues, key=lambda name: (self._used[name] / max(1, quotas[name]), name))
            for name in order:
                for entry in list(self._pending[name][:_LOOKED_AT]):
                    job = entry[2]
                    free = pool - sum(self._used.values())
                    fits_quota = self._used[name] + job.gpus <= quotas[name]
                    if within and not (fits_quota and self._make_room(job.gpus - free, name, quotas, result)):
                        continue
                    if within or job.gpus <= free:
                        self._pending[name].remove(entry)
                        self._begin(job)

    def _begin(self, job: QueueJob) -> None:
        job.wait_s += self._now_s - job.since_s
        job.since_s = self._now_s
        self._pending_gpus[job.queue] -= job.gpus
        self._used[job.queue] += job.gpus
        self._running[job.queue].append(job)
        heappush(self._ends, (self._now_s + job.remaining_s, job.number, job.term, job))

    def _make_room(self, missing: int, owner: str, quotas: Mapping[str, int], result: WeekResult) -> bool:
        """Evict borrowers of other queues, the last started first; nobody where that is not enough."""
        victims: list[QueueJob] = []
        over = {name: self._used[name] - quotas[name] for name in self._queues if name != owner}
        running = [job for name in over if over[name] > 0 for job in self._running[name]]
        for job in sorted(running, key=lambda job: (-job.since_s, job.number)):
            if missing <= 0:
                break
            if over[job.queue] > 0:
                victims.append(job)
                over[job.queue] -= job.gpus
                missing -= job.gpus
        if missing > 0:
            return False
        for job in victims:
            self._evict(job, result)
        return True

    def _evict(self, job: QueueJob, result: WeekResult) -> None:
        ran_s = self._now_s - job.since_s
        lost_s = ran_s % self._checkpoint_s
        job.remaining_s -= ran_s - lost_s
        job.term += 1
        job.evictions += 1
        result.evictions += 1
        result.lost_gpu_h += lost_s * job.gpus / HOUR_S
        self._used[job.queue] -= job.gpus
        self._running[job.queue].remove(job)
        self._enqueue(job)
