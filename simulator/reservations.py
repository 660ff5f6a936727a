"""Jobs of a trace on one pool of GPUs with reservations, replayed under the policy that the controller runs.

What is pending starts in order where it fits (as Kueue's BestEffortFIFO) and may. When a lead begins, what can be
stopped is, the last started first; it comes back to the front of the queue with what it has saved.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kopt.core.units import WHOLE_GPU
from kopt.core.workload.run_time import JobRun
from kopt.policies.reservations import Claim, Pending, PoolPlan, PoolSnapshot, Running, plan_pool
from kopt.simulator.backfilling import Estimates

Plan = Callable[[PoolSnapshot], PoolPlan]
OTHERS = "others"
_DEPTH = 100
"""So many pending jobs are looked at."""


@dataclass(frozen=True)
class Saves:
    """Which jobs can be stopped, and what that costs: one saves every ``every_s``, and stopping it loses what it has
    done since, and ``restart_s``."""

    is_killable: Callable[[JobRun], bool]
    every_s: float = 1800.0
    restart_s: float = 120.0


@dataclass
class Kept:
    """How a reservation went. ``backfilled_gpu_s`` of ``held_gpu_s`` before its start were used by jobs."""

    claim: Claim
    late_s: float | None = None
    backfilled_gpu_s: float = 0.0
    held_gpu_s: float = 0.0


@dataclass
class Replayed:
    """``waits_s`` of every job until it starts for the first time, by job; ``lost_gpu_s`` of work was done twice."""

    waits_s: dict[str, float] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    stopped: int = 0
    lost_gpu_s: float = 0.0


@dataclass(slots=True)
class _Job:
    run: JobRun
    remaining_s: float
    start_s: float = 0.0
    estimate_s: float | None = None
    until_s: float = 0.0
    is_killable: bool = False
    queued_s: float = 0.0

    @property
    def gpus(self) -> int:
        return self.run.kind.gpus


class Replay:
    """One replay; ``run`` gives what became of it. ``ahead_s``: GPUs are held for so long before a start."""

    def __init__(
        self,
        jobs: Sequence[JobRun],
        gpus: int,
        claims: Sequence[Claim],
        estimates: Estimates,
        saves: Saves,
        ahead_s: float = 86_400.0,
        plan: Plan = plan_pool,
    ) -> None:
        fitting = [job for job in jobs if job.kind.gpus <= gpus and job.duration_seconds is not None]
        self._arrivals = sorted(fitting, key=lambda job: job.started_s)
        self._gpus, self._estimates, self._saves, self._ahead_s, self._plan = gpus, estimates, saves, ahead_s, plan
        self._claims = sorted(claims, key=lambda claim: claim.start_s)
        self._kept = {claim.name: Kept(claim) for claim in claims}
        self._pending: list[_Job] = []
        self._running: dict[int, _Job] = {}
        self._ends: list[tuple[float, int]] = []
        self._number, self._result = 0, Replayed()

    def run(self) -> Replayed:
        times = {at_s for claim in self._claims for at_s in self._times(claim)}
        timers = sorted(times)
        arrived, timer, before_s = 0, 0, 0.0
        while arrived < len(self._arrivals) or self._ends or timer < len(timers):
            now_s = min(
                self._arrivals[arrived].started_s if arrived < len(self._arrivals) else float("inf"),
                self._ends[0][0] if self._ends else float("inf"),
                timers[timer] if timer < len(timers) else float("inf"),
            )
            self._account(before_s, now_s)
            before_s = now_s
            while timer < len(timers) and timers[timer] <= now_s:
                timer += 1
            self._end(now_s)
            while arrived < len(self._arrivals) and self._arrivals[arrived].started_s <= now_s:
                self._submit(self._arrivals[arrived], now_s)
                arrived += 1
            self._step(now_s)
        self._result.kept = list(self._kept.values())
        return self._result

    def _times(self, claim: Claim) -> tuple[float, ...]:
        """When something is due although no job comes or ends."""
        lead_s = claim.start_s - claim.lead_s
        return (claim.start_s - self._ahead_s, lead_s, claim.start_s, claim.start_s + 60.0, claim.until_s)

    def _submit(self, run: JobRun, now_s: float) -> None:
        killable = self._saves.is_killable(run)
        self._pending.append(_Job(run, run.duration_seconds or 0.0, is_killable=killable, queued_s=now_s))

    def _end(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, number = heapq.heappop(self._ends)
            job = self._running.pop(number, None)
            if job is not None:
                self._estimates.ended(job.run, job.start_s, now_s)

    def _step(self, now_s: float) -> None:
        claims = tuple(claim for claim in self._claims if claim.start_s - self._ahead_s <= now_s < claim.until_s)
        plan = self._plan(self._snapshot(claims, now_s)) if claims else None
        if plan is not None and plan.reclaims and self._stop(plan, now_s):
            plan = self._plan(self._snapshot(claims, now_s))
        self._start(None if plan is None else set(plan.admitted), now_s)
        for claim in claims:
            kept = self._kept[claim.name]
            begun = now_s >= claim.start_s - claim.lead_s
            reserved = sum(each.gpus for each in claims if each.start_s <= claim.start_s) // WHOLE_GPU
            if kept.late_s is None and begun and self._free() >= reserved:
                kept.late_s = max(0.0, now_s - claim.start_s)

    def _snapshot(self, claims: tuple[Claim, ...], now_s: float) -> PoolSnapshot:
        running = tuple(
            Running(
                str(number), OTHERS, job.gpus * WHOLE_GPU, job.start_s, self._remaining_s(job, now_s), job.is_killable
            )
            for number, job in self._running.items()
        )
        pending = []
        for number, job in enumerate(self._pending[:_DEPTH]):
            if job.estimate_s is None:
                job.estimate_s = self._estimates.whole(job.run, now_s)
            pending.append(Pending(str(number), OTHERS, job.gpus * WHOLE_GPU, job.estimate_s, job.is_killable))
        return PoolSnapshot(now_s, self._gpus * WHOLE_GPU, self._free() * WHOLE_GPU, claims, running, tuple(pending))

    def _remaining_s(self, job: _Job, now_s: float) -> float:
        if job.until_s <= now_s:
            job.until_s = now_s + max(1.0, self._estimates.remaining(job.run, now_s - job.start_s, now_s))
        return job.until_s - now_s

    def _free(self) -> int:
        return self._gpus - sum(job.gpus for job in self._running.values())

    def _stop(self, plan: PoolPlan, now_s: float) -> bool:
        """Those that started last first, until there is room; then any others that can be stopped."""
        missing = max(reclaim.gpus for reclaim in plan.reclaims) / WHOLE_GPU
        by_s = min(reclaim.by_s for reclaim in plan.reclaims)
        others = sorted(self._running, key=lambda number: -self._running[number].start_s)
        stopped = False
        for number in dict.fromkeys([*map(int, plan.first), *others]):
            job = self._running[number]
            ends = now_s + self._remaining_s(job, now_s) <= by_s
            if missing <= 0 or not job.is_killable or ends:
                continue
            missing -= job.gpus
            self._evict(number, now_s)
            stopped = True
        return stopped

    def _evict(self, number: int, now_s: float) -> None:
        job = self._running.pop(number)
        ran_s = now_s - job.start_s
        saved_s = ran_s - ran_s % self._saves.every_s
        self._result.stopped += 1
        self._result.lost_gpu_s += (ran_s - saved_s + self._saves.restart_s) * job.gpus
        remaining_s = job.remaining_s - saved_s + self._saves.restart_s
        self._pending.insert(0, replace(job, remaining_s=remaining_s, estimate_s=None, until_s=0.0))

    def _start(self, admitted: set[str] | None, now_s: float) -> None:
        free, started = self._free(), set[int]()
        for number, job in enumerate(self._pending[:_DEPTH]):
            if free <= 0:
                break
            if job.gpus > free or (admitted is not None and str(number) not in admitted):
                continue
            if job.estimate_s is None:
                job.estimate_s = self._estimates.whole(job.run, now_s)
            job.start_s, job.until_s = now_s, now_s + job.estimate_s
            self._running[self._number] = job
            heapq.heappush(self._ends, (now_s + job.remaining_s, self._number))
            self._number += 1
            self._estimates.started(job.run, now_s)
            self._result.waits_s.setdefault(job.run.job, now_s - job.queued_s)
            free -= job.gpus
            started.add(number)
        if started:
            self._pending = [job for number, job in enumerate(self._pending) if number not in started]

    def _account(self, from_s: float, until_s: float) -> None:
        """Reserved GPUs are those that are used last."""
        free = self._free()
        for claim in self._claims:
            began_s = max(from_s, claim.start_s - self._ahead_s)
            span_s = min(until_s, claim.start_s - claim.lead_s) - began_s
            if span_s > 0:
                gpus, kept = claim.gpus // WHOLE_GPU, self._kept[claim.name]
                kept.held_gpu_s += span_s * gpus
                kept.backfilled_gpu_s += span_s * max(0, gpus - free)
