"""Jobs of a trace run on the GPUs that a pool lends, and make room when the service wants them back.

What will be kept is known one lead time ahead: a rule decided it then. Jobs start in the order of submission (those
that do not fit are passed over) where the lent GPUs suffice as far as is known and have done so for ``hold_s``. When
fewer will be lent than are in use, victims are asked for from ``notice_s`` before: a policy chooses among those that
run, and may wait for a better moment. At the moment itself the native scheduler takes what is missing, the newest
first: the service's pods have the higher priority and never wait for us.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kopt.data.demand.rolling import GPUS
from kopt.data.jobs.training import TraceJob
from kopt.policies.preemption import PreemptionSettings
from kopt.simulator.lending.pools import Ints
from kopt.simulator.preemption.behaviour import Habits
from kopt.simulator.preemption.rivals import Ask, Ours, Rival, newest_first
from kopt.simulator.preemption.runs import Run
from kopt.simulator.preemption.sight import Sight

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Borrowing:
    """The jobs that want GPUs, submitted before or while the pool is watched (seconds from its first moment)."""

    jobs: Sequence[TraceJob]
    habits: Sequence[Habits]
    sight: Sight = field(default_factory=Sight)
    settings: PreemptionSettings = field(default_factory=PreemptionSettings)
    hold_s: float = 1800.0
    notice_s: float = 1800.0
    ours: bool = True
    """False takes the newest first, at the moment itself."""


@dataclass(frozen=True)
class Gains:
    """GPU-hours. ``used``: of lent GPUs; ``lost``: of those, work done again and starting again; ``gained`` the rest.

    ``evictions`` by our choice and ``native`` ones by the scheduler's, of ``started`` jobs; ``torn`` writes by ours.
    """

    used: float
    lost: float
    started: int
    evictions: int
    native: int
    torn: int

    @property
    def gained(self) -> float:
        return self.used - self.lost


def borrow(kept: Ints, moments: Ints, step_s: int, lead_steps: int, borrowing: Borrowing) -> Gains:
    """Replay: ``kept`` GPUs stay with the service at each of ``moments`` (buckets; between two that follow each other
    not, the lower is kept)."""
    return _Replay(_gapless(kept, moments), step_s, lead_steps, borrowing).run()


def _gapless(kept: Ints, moments: Ints) -> Ints:
    """What is lent at every bucket from the first to the last; unchanged while the service was not observed."""
    lent = np.full(int(moments[-1] - moments[0]) + 1, -1, dtype=np.int64)
    lent[moments - moments[0]] = GPUS - kept
    for bucket in np.flatnonzero(lent < 0):
        lent[bucket] = lent[bucket - 1]
    return lent


class _Replay:
    """Time in seconds from the first moment; between two moments jobs end, others start."""

    def __init__(self, lent: Ints, step_s: int, lead_steps: int, borrowing: Borrowing) -> None:
        self.lent, self.step_s, self.lead = lent, step_s, lead_steps
        self.by = borrowing
        notice_s = min(borrowing.notice_s, lead_steps * step_s)
        self.notice = max(1, round(notice_s / step_s))
        self.rival: Rival = (
            Ours(borrowing.sight, borrowing.settings, max(0.0, notice_s - 60.0)) if borrowing.ours else newest_first
        )
        self.now_s, self.bucket, self.used = 0.0, 0, 0
        self.running: dict[int, Run] = {}
        self.unfinished: dict[int, tuple[float, tuple[float, ...]]] = {}
        self.queued: dict[int, list[int]] = {}
        self.next_job = 0
        self.ends: list[tuple[float, int]] = []
        self.ask_times: list[tuple[float, int]] = []
        self.requested_at_s: dict[int, float] = {}
        self.used_s = self.lost_s = 0.0
        self.started = self.evictions = self.native = self.torn = 0
        self.order = np.random.default_rng(0).random(len(borrowing.jobs))

    def run(self) -> Gains:
        for bucket in range(len(self.lent)):
            self._events_until(bucket * self.step_s)
            self.bucket = bucket
            self._submit()
            self._ask_ahead()
            self._native()
            self._start()
        self._events_until(len(self.lent) * self.step_s)
        for run in self.running.values():
            self.used_s += run.job.gpus * (self.now_s - run.started_s)
            # Work that is not durable yet goes on after the window; only starting again was no use.
            self.lost_s += run.job.gpus * (run.ready_s - run.started_s)
        return Gains(self.used_s / 3600, self.lost_s / 3600, self.started, self.evictions, self.native, self.torn)

    def _submit(self) -> None:
        jobs = self.by.jobs
        while self.next_job < len(jobs) and jobs[self.next_job].submitted_s <= self.now_s:
            heapq.heappush(self.queued.setdefault(jobs[self.next_job].gpus, []), self.next_job)
            self.next_job += 1

    def _events_until(self, until_s: float) -> None:
        while True:
            end, ask = (queue[0][0] if queue else float("inf") for queue in (self.ends, self.ask_times))
            if min(end, ask) > until_s:
                break
            self.now_s = min(end, ask)
            if end <= ask:
                self._end(heapq.heappop(self.ends)[1])
            else:
                self._ask(heapq.heappop(self.ask_times)[1])
        self.now_s = until_s

    def _end(self, index: int) -> None:
        run = self.running.get(index)
        if run is None or abs(run.finishes_s - self.now_s) > 1e-6:
            return
        self._release_gpus(run)
        self.lost_s += run.job.gpus * (run.ready_s - run.started_s)
        self._start()

    def _release_gpus(self, run: Run) -> None:
        del self.running[run.index]
        self.used -= run.job.gpus
        self.used_s += run.job.gpus * (self.now_s - run.started_s)

    def _ask_ahead(self) -> None:
        """Request room as soon as fewer GPUs will be lent, within the lead time, than are in use."""
        ahead = self.lent[self.bucket : self.bucket + self.notice + 1]
        for bucket in np.flatnonzero(ahead < self.used) + self.bucket:
            if bucket > self.bucket and int(bucket) not in self.requested_at_s:
                self.requested_at_s[int(bucket)] = self.now_s
                self._ask(int(bucket))
                break

    def _ask(self, bucket: int) -> None:
        """Room for what the service keeps from ``bucket`` on."""
        missing = self.used - int(self.lent[bucket])
        at_s = bucket * self.step_s
        if missing <= 0 or self.now_s >= at_s or not self.by.ours:
            return
        pool = list(self.running.values())
        answer = self.rival(
            Ask(f"{bucket}", self.now_s, self.requested_at_s[bucket], missing, pool, dict(enumerate(self.order)))
        )
        for run in answer.victims:
            self.evictions += 1
            self.torn += run.writing(self.now_s)
            self._evict(run)
        if answer.until_s is not None and answer.until_s < at_s:
            heapq.heappush(self.ask_times, (max(answer.until_s, self.now_s + 1.0), bucket))

    def _native(self) -> None:
        missing = self.used - int(self.lent[self.bucket])
        if missing <= 0:
            return
        pool = list(self.running.values())
        for run in newest_first(Ask("", self.now_s, self.now_s, missing, pool, dict(enumerate(self.order)))).victims:
            self.native += 1
            self._evict(run)

    def _evict(self, run: Run) -> None:
        self._release_gpus(run)
        lost_s = run.lost_s(self.now_s) - run.habits.restart_s + (run.ready_s - run.started_s)
        self.lost_s += run.job.gpus * min(lost_s, self.now_s - run.started_s + run.done_s)
        self.unfinished[run.index] = (run.durable_work_s(self.now_s), (*run.killed_s, self.now_s))
        heapq.heappush(self.queued.setdefault(run.job.gpus, []), run.index)

    def _room(self) -> int:
        """GPUs that are lent as far as is known, and have been for the time of the hold."""
        hold_steps = round(self.by.hold_s / self.step_s)
        span = self.lent[max(0, self.bucket - hold_steps) : self.bucket + self.lead + 1]
        return int(span.min()) - self.used

    def _start(self) -> None:
        while True:
            room = self._room()
            fitting = [(queue[0], gpus) for gpus, queue in self.queued.items() if queue and gpus <= room]
            if not fitting:
                return
            index, gpus = min(fitting)
            heapq.heappop(self.queued[gpus])
            done_s, killed_s = self.unfinished.get(index, (0.0, ()))
            run = Run(index, self.by.jobs[index], self.by.habits[index], self.now_s, done_s, len(killed_s), killed_s)
            self.running[index] = run
            self.used += gpus
            self.started += not killed_s
            heapq.heappush(self.ends, (run.finishes_s, index))
