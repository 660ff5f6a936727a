"""Every service as a pool of its own, every lead time, every rule: what was lent and what became of it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kopt.data.demand.rolling import GPUS, TEST_DAYS, Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.data.jobs.training import TraceJob
from kopt.policies.lending.caution import CautionSettings
from kopt.simulator.lending.borrowers import Borrowing, Gains, borrow
from kopt.simulator.lending.pools import (
    Ints,
    LendingPool,
    forecast_rule,
    matched_reactive,
    oracle_rule,
    pool_of,
    reactive_rule,
)
from kopt.simulator.preemption.behaviour import STEADY, Manner, Scales, sample
from kopt.simulator.preemption.sight import Sight
from kopt.simulator.workers import worker_processes

_DAY_S = 86_400.0
_QUEUED_S = 7 * _DAY_S
"""Jobs of so long before wait already: pools lend to queues that are never empty."""
RULES = ("kopt", "reactive, matched", "reactive 1.2", "oracle")
"""``reactive, matched`` has the least factor at which it falls short no more often than kopt did in that pool; it takes
the newest jobs first, as schedulers do. The oracle knows the need, and evicts as kopt does."""
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class LendingSetup:
    """What a study replays. Jobs are those of the trace from a day drawn by ``seed`` and the service's number on."""

    jobs: tuple[TraceJob, ...]
    manners: tuple[Manner, ...] = STEADY
    sight: Sight = field(default_factory=Sight)
    caution: CautionSettings = field(default_factory=CautionSettings)
    hold_s: float = 900.0
    notice_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True)
class LendingOutcome:
    """One rule on one service's pool. ``lent`` and ``free`` (the oracle's) are shares of all GPU-time."""

    series: str
    lead_s: int
    rule: str
    violation: float
    lent: float
    free: float
    gains: Gains

    @property
    def share_of_oracle(self) -> float:
        return self.lent / self.free if self.free else 0.0


def study(
    setup: LendingSetup,
    series: Sequence[DemandSeries],
    forecasts: Sequence[Forecasts],
    leads_s: Sequence[int],
    workers: int | None = None,
    progress: Advance | None = None,
) -> tuple[LendingOutcome, ...]:
    """Every rule for every series and lead time, in that order; series that never change are left out."""
    cases = [
        (number, demand_series, forecast, lead_s)
        for number, (demand_series, forecast) in enumerate(zip(series, forecasts, strict=True))
        for lead_s in leads_s
    ]
    workers = min(workers or os.cpu_count() or 1, len(cases))
    lending_outcomes: list[LendingOutcome] = []
    with worker_processes(workers) as processes:
        each = map if workers == 1 else processes.map
        for done, outcomes in enumerate(each(partial(_case, setup), cases), 1):
            lending_outcomes += outcomes
            if progress:
                progress(done, len(cases))
    return tuple(lending_outcomes)


def _case(setup: LendingSetup, case: tuple[int, DemandSeries, Forecasts, int]) -> tuple[LendingOutcome, ...]:
    number, series, forecasts, lead_s = case
    pool = pool_of(series, forecasts, lead_s)
    if pool is None:
        return ()
    borrowing = _borrowing(setup, number)
    ours = forecast_rule(pool, setup.caution)
    natively = replace(borrowing, ours=False)
    rules = zip(
        RULES,
        (
            (ours, borrowing),
            (matched_reactive(pool, _violation(pool, ours)), natively),
            (reactive_rule(pool, 1.2), natively),
            (oracle_rule(pool), borrowing),
        ),
        strict=True,
    )
    return tuple(_outcome(pool, lead_s, rule, kept, by) for rule, (kept, by) in rules)


def _outcome(pool: LendingPool, lead_s: int, rule: str, kept: Ints, borrowing: Borrowing) -> LendingOutcome:
    gains = borrow(kept, pool.moments, pool.step_s, pool.lead_steps, borrowing)
    lent, free = (float((GPUS - array).mean()) / GPUS for array in (kept, pool.need))
    return LendingOutcome(pool.name, lead_s, rule, _violation(pool, kept), lent, free, gains)


def _violation(pool: LendingPool, kept: Ints) -> float:
    return float((pool.need > kept).mean())


def _borrowing(setup: LendingSetup, number: int) -> Borrowing:
    """The same jobs and habits for every rule and lead time of a service."""
    chance = np.random.default_rng((setup.seed, number))
    last_s = setup.jobs[-1].submitted_s if setup.jobs else 0.0
    first_s = setup.jobs[0].submitted_s if setup.jobs else 0.0
    from_s = first_s + _QUEUED_S + chance.random() * max(0.0, last_s - first_s - _QUEUED_S - TEST_DAYS * _DAY_S)
    jobs = [
        replace(job, submitted_s=job.submitted_s - from_s)
        for job in setup.jobs
        if job.gpus <= GPUS and from_s - _QUEUED_S <= job.submitted_s < from_s + TEST_DAYS * _DAY_S
    ]
    habits = [sample(chance, setup.manners, Scales(), setup.sight.observable, setup.sight.delay_s) for _ in jobs]
    return Borrowing(jobs, habits, setup.sight, hold_s=setup.hold_s, notice_s=setup.notice_s)
