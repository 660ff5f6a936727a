"""Several policies, pool sizes and seeds over one trace, and the figures of each."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from kopt.data.jobs.training import TraceJob
from kopt.policies.preemption import PreemptionSettings
from kopt.simulator.preemption.behaviour import STEADY, Manner, Scales, sample
from kopt.simulator.preemption.replay import Outcome, Scenario, replay
from kopt.simulator.preemption.rivals import (
    Foresight,
    Ours,
    Rival,
    newest_first,
    priority_only,
)
from kopt.simulator.preemption.sight import Sight
from kopt.simulator.workers import worker_processes

DAY_S, HOUR_S = 86_400.0, 3600.0
_RESAMPLES = 1000
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Setup:
    """What a study replays. ``urgent`` is the share of the jobs submitted after ``warm_s`` that are urgent, at random,
    where they ask for ``largest_urgent`` GPUs at most; ``warm_s`` and ``ends_s`` are seconds of the trace."""

    jobs: tuple[TraceJob, ...]
    gpus: int
    warm_s: float
    ends_s: float
    manners: tuple[Manner, ...] = STEADY
    scales: Scales = field(default_factory=Scales)
    sight: Sight = field(default_factory=Sight)
    settings: PreemptionSettings = field(default_factory=PreemptionSettings)
    budget_s: float = 300.0
    urgent: float = 0.04
    largest_urgent: int = 8


RIVALS: Mapping[str, Callable[[Setup], Rival]] = {
    "priority-only": lambda setup: priority_only,
    "newest-first": lambda setup: newest_first,
    "kopt": lambda setup: Ours(setup.sight, setup.settings, setup.budget_s),
    "oracle-promised": lambda setup: Foresight(setup.budget_s, promised=True),
    "oracle-now": lambda setup: Foresight(0.0),
    "oracle-future": lambda setup: Foresight(setup.budget_s),
}
"""By name. ``oracle-now`` takes the cheapest set by the truth about the present; ``oracle-future`` knows the future too
and waits for the best moment within the budget: the floor. ``oracle-promised`` is the floor under kopt's promises."""
BASELINE = "newest-first"


@dataclass(frozen=True)
class Figures:
    """One policy with one pool size, over all seeds. GPU-hours; waits in seconds.

    ``lost_*`` is per pre-emption (room made for one urgent job), with the interval of 95 % of bootstrap samples;
    ``lost_per_ask`` divides by the urgent jobs that found no room at once instead, whether room was made for them
    or it came free while they waited.
    """

    policy: str
    pool: int
    asks: int
    rooms: int
    lost_mean: float
    lost_low: float
    lost_high: float
    lost_median: float
    lost_per_ask: float
    preempted_share: float
    torn: int
    native: int
    torn_native: int
    wait_mean_s: float
    wait_p95_s: float


def scenario(setup: Setup, pool: int, seed: int) -> Scenario:
    """The same jobs, habits and urgent arrivals for every policy and pool size."""
    return replace(_drawn(setup, seed), pool=pool)


@lru_cache(maxsize=4)
def _drawn(setup: Setup, seed: int) -> Scenario:
    jobs = tuple(job for job in setup.jobs if job.submitted_s < setup.ends_s)
    chance = np.random.default_rng(seed)
    habits = [sample(chance, setup.manners, setup.scales, setup.sight.observable, setup.sight.delay_s) for _ in jobs]
    drawn = chance.random(len(jobs))
    urgent = frozenset(
        index
        for index, job in enumerate(jobs)
        if drawn[index] < setup.urgent and job.gpus <= setup.largest_urgent and job.submitted_s >= setup.warm_s
    )
    return Scenario(jobs, habits, urgent, setup.gpus, 0, setup.warm_s, setup.ends_s, seed)


def study(
    setup: Setup,
    policies: Sequence[str],
    pools: Sequence[int],
    seeds: Sequence[int],
    workers: int | None = None,
    progress: Advance | None = None,
) -> tuple[Figures, ...]:
    """Figures by pool size and policy, in that order. Raises KeyError for a policy that is not in ``RIVALS``."""
    return tuple(
        figures(policy, pool, result)
        for policy, pool, result in outcomes(setup, policies, pools, seeds, workers, progress)
    )


def outcomes(
    setup: Setup,
    policies: Sequence[str],
    pools: Sequence[int],
    seeds: Sequence[int],
    workers: int | None = None,
    progress: Advance | None = None,
) -> list[tuple[str, int, list[Outcome]]]:
    """The replays behind `study`: policy, pool size, one outcome per seed."""
    cases = [(policy, pool, seed) for pool in pools for policy in policies for seed in seeds]
    workers = min(workers or os.cpu_count() or 1, len(cases))
    done: list[Outcome] = []
    with worker_processes(workers) as pool_of_processes:
        result = map if workers == 1 else pool_of_processes.map
        for outcome in result(partial(_outcome, setup), cases):
            done.append(outcome)
            if progress:
                progress(len(done), len(cases))
    return [(*cases[start][:2], done[start : start + len(seeds)]) for start in range(0, len(cases), len(seeds))]


def _outcome(setup: Setup, case: tuple[str, int, int]) -> Outcome:
    policy, pool, seed = case
    return replay(scenario(setup, pool, seed), RIVALS[policy](setup))


def figures(policy: str, pool: int, result: Sequence[Outcome]) -> Figures:
    """Of one policy's replays. Values that nothing stands behind are NaN."""
    rooms = [room for outcome in result for room in outcome.rooms]
    waits = np.array([wait for outcome in result for wait in outcome.waits_s] or [np.nan])
    lost = np.array([room.lost_gpu_s for room in rooms] or [np.nan]) / HOUR_S
    requests = sum(len(outcome.waits_s) for outcome in result)
    low, high = np.quantile(_means(lost), (0.025, 0.975))
    started = sum(outcome.started for outcome in result)
    return Figures(
        policy,
        pool,
        requests,
        len(rooms),
        float(lost.mean()),
        float(low),
        float(high),
        float(np.median(lost)),
        float(lost.sum()) / requests if requests and rooms else 0.0,
        sum(room.victims for room in rooms) / max(1, started),
        sum(room.torn for room in rooms if not room.native),
        sum(room.native for room in rooms),
        sum(room.torn for room in rooms if room.native),
        float(waits.mean()),
        float(np.quantile(waits, 0.95)),
    )


def _means(values: np.ndarray) -> np.ndarray:
    chance = np.random.default_rng(0)
    return np.array([chance.choice(values, len(values)).mean() for _ in range(_RESAMPLES)])


def with_sight(setup: Setup, **changes: float) -> Setup:
    """The setup with another sight, such as ``observable=0.5``."""
    return replace(setup, sight=replace(setup.sight, **changes))
