"""What each queue had of the GPUs, integrated over time from the events of a replay, beside what it ideally had.

In: for each job when the engine could see it, when it held its GPUs and when it let go of them. Between two events
nothing changes, so that nothing is sampled. Ideal is `policies.shares` of what was there to be run at that time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.scheduling.queue_tree import GPU
from kopt.policies.shares import QueueUse, ShareQueue, misallocated, share_rows

HOUR_S = 3600
_MILLI = 1000


@dataclass
class JobRecord:
    """A job as the engine has it. Times are seconds of the day; ``evicted_s`` are its evictions."""

    name: str
    queue: str
    gpus: int
    appeared_s: float
    held_since_s: float | None = None
    held_s: float = 0.0
    left_s: float | None = None
    evicted_s: list[float] = field(default_factory=list)

    def waited_s(self, until_s: float) -> float:
        """Without GPUs, from when the engine could see it until it left."""
        end_s = until_s if self.left_s is None else self.left_s
        held_s = self.held_s + (0.0 if self.held_since_s is None else end_s - self.held_since_s)
        return end_s - self.appeared_s - held_s


@dataclass
class Hour:
    """Integrals over one hour, in parts of the capacity times seconds. By queue: ``error`` is what it held above its
    ideal, ``whole_jobs`` the same for the nearest division into whole jobs, ``in_place`` for the nearest in which no
    queue stops jobs of its own to start others of its own. ``broken_s`` is of queues below their quota."""

    seconds: float = 0.0
    error: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    whole_jobs: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_place: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    contended_s: float = 0.0
    misallocated: float = 0.0
    broken_s: float = 0.0

    @property
    def share_error(self) -> float:
        """Of the queue that was furthest from its ideal, over the hour."""
        return self._largest(self.error)

    @property
    def whole_jobs_error(self) -> float:
        """The same where at each event any jobs could have been started and stopped at once."""
        return self._largest(self.whole_jobs)

    @property
    def in_place_error(self) -> float:
        """The same where at each event, from what ran, each queue could have either started or stopped jobs."""
        return self._largest(self.in_place)

    def _largest(self, values: Mapping[str, float]) -> float:
        return max((abs(value) for value in values.values()), default=0.0) / self.seconds


class Ledger:
    """Takes events in the order of their times. Raises ValueError for one of an unknown job, or from the past."""

    def __init__(self, quotas: Mapping[str, int], capacity: int) -> None:
        """In GPUs; weights are the quotas."""
        self.quotas, self.capacity = dict(quotas), capacity
        self.jobs: dict[str, JobRecord] = {}
        self.hours: dict[int, Hour] = defaultdict(Hour)
        self._now_s = 0.0
        self._there: dict[str, JobRecord] = {}
        self._standing: _Standing | None = None

    def appears(self, name: str, queue: str, gpus: int, at_s: float) -> None:
        self.advance(at_s)
        self.jobs[name] = self._there[name] = JobRecord(name, queue, gpus, at_s)
        self._standing = None

    def holds(self, name: str, at_s: float) -> None:
        """The job has its GPUs; again is no event."""
        job = self._job(name)
        if job.held_since_s is None:
            self.advance(at_s)
            job.held_since_s, self._standing = at_s, None

    def lets_go(self, name: str, at_s: float) -> None:
        """The job was evicted, and its GPUs are free."""
        job = self._job(name)
        if job.held_since_s is not None:
            self.advance(at_s)
            job.held_s += at_s - job.held_since_s
            job.held_since_s, self._standing = None, None
            job.evicted_s.append(at_s)

    def leaves(self, name: str, at_s: float) -> None:
        """The job is gone, and its GPUs are free."""
        job = self._job(name)
        self.advance(at_s)
        if job.held_since_s is not None:
            job.held_s += at_s - job.held_since_s
        job.held_since_s, job.left_s, self._standing = None, at_s, None
        del self._there[name]

    def advance(self, at_s: float) -> None:
        """Nothing happened until then."""
        if at_s < self._now_s:
            raise ValueError(f"an event of {at_s:.3f} s after one of {self._now_s:.3f} s")
        while self._now_s < at_s:
            hour = int(self._now_s // HOUR_S)
            end_s = min(at_s, (hour + 1) * HOUR_S)
            self._add(self.hours[hour], end_s - self._now_s)
            self._now_s = end_s

    @property
    def waiting(self) -> int:
        """Jobs without GPUs."""
        return sum(job.held_since_s is None for job in self._there.values())

    @property
    def has_room(self) -> bool:
        """Whether a job without GPUs would fit into what is free."""
        free = self.capacity - sum(job.gpus for job in self._there.values() if job.held_since_s is not None)
        return any(job.held_since_s is None and job.gpus <= free for job in self._there.values())

    def waits_s(self) -> list[float]:
        """Of all jobs, sorted; those that are there have waited until now."""
        return sorted(job.waited_s(self._now_s) for job in self.jobs.values())

    def _job(self, name: str) -> JobRecord:
        if name not in self._there:
            raise ValueError(f"there is no job {name}")
        return self._there[name]

    def _add(self, hour: Hour, seconds: float) -> None:
        if self._standing is None:
            self._standing = _Standing.of(self._there.values(), self.quotas, self.capacity)
        standing = self._standing
        hour.seconds += seconds
        hour.misallocated += seconds * standing.misallocated
        hour.broken_s += seconds * standing.broken
        hour.contended_s += seconds * standing.contended
        for queue in self.quotas:
            hour.error[queue] += seconds * standing.error[queue]
            hour.whole_jobs[queue] += seconds * standing.whole_jobs[queue]
            hour.in_place[queue] += seconds * standing.in_place[queue]


@dataclass(frozen=True)
class _Standing:
    """Between two events. ``broken`` counts queues; ``contended``: not everything could run."""

    error: Mapping[str, float]
    whole_jobs: Mapping[str, float]
    in_place: Mapping[str, float]
    misallocated: float
    broken: int
    contended: bool

    @classmethod
    def of(cls, jobs: Iterable[JobRecord], quotas: Mapping[str, int], capacity: int) -> "_Standing":
        runs, waits = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for job in jobs:
            (waits if job.held_since_s is None else runs)[job.queue].append(job.gpus)
        demand = {name: sum(runs[name]) + sum(waits[name]) for name in quotas}
        queues = [
            ShareQueue(
                name,
                weight=_MILLI * quota,
                quota={GPU: _MILLI * quota},
                demand={GPU: _MILLI * demand[name]},
            )
            for name, quota in quotas.items()
        ]
        uses = {name: QueueUse({GPU: _MILLI * sum(runs[name])}) for name in quotas}
        rows = share_rows(queues, uses, {GPU: _MILLI * capacity})
        ideal = {row.queue.name: row.ideal.get(GPU, 0) / _MILLI for row in rows}
        sums = {name: subset_sums([*runs[name], *waits[name]]) for name in quotas}
        from_here = {
            name: [*subset_sums(runs[name]), *(sum(runs[name]) + more for more in subset_sums(waits[name])[1:])]
            for name in quotas
        }
        return cls(
            {row.queue.name: row.share_error for row in rows},
            _errors(nearest_division(ideal, sums, capacity), ideal, capacity),
            _errors(nearest_division(ideal, from_here, capacity), ideal, capacity),
            misallocated(rows),
            sum(bool(row.broken) for row in rows),
            sum(demand.values()) > capacity,
        )


def nearest_division(ideal: Mapping[str, float], amounts: Mapping[str, Sequence[int]], capacity: int) -> dict[str, int]:
    """GPUs of each queue out of ``amounts`` that it can have, 0 among them, together within the capacity, such that the
    queue that is furthest from its ideal is as near as can be."""
    for bound in sorted({abs(value - ideal[name]) for name, values in amounts.items() for value in values}):
        within = {
            name: [value for value in values if abs(value - ideal[name]) <= bound] for name, values in amounts.items()
        }
        if all(within.values()) and sum(map(min, within.values())) <= capacity:
            return _nearest_each(within, ideal, capacity)
    raise ValueError("a queue cannot have 0 GPUs")


def subset_sums(sizes: Sequence[int]) -> list[int]:
    """What whole jobs of these sizes can have together, in order; the first is 0."""
    bits = 1
    for size in sizes:
        bits |= bits << size
    return [value for value in range(bits.bit_length()) if bits >> value & 1]


def _nearest_each(within: Mapping[str, list[int]], ideal: Mapping[str, float], capacity: int) -> dict[str, int]:
    """Of what is near enough, for each queue in turn what is nearest, with room for the least of the others."""
    result = {name: min(values) for name, values in within.items()}
    for name, values in within.items():
        room = capacity - sum(result.values()) + result[name]
        result[name] = min((value for value in values if value <= room), key=lambda value: abs(value - ideal[name]))
    return result


def _errors(division: Mapping[str, int], ideal: Mapping[str, float], capacity: int) -> dict[str, float]:
    return {name: (value - ideal[name]) / capacity for name, value in division.items()}
