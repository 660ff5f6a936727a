"""Figures of both clusters over the same days, drawn again and again for their intervals."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kopt.simulator.what_if.answer import EVERYBODY, Figure, Interval, Unit
from kopt.simulator.what_if.check import LEAST_DAYS
from kopt.simulator.what_if.jobs import PastJob
from kopt.simulator.what_if.outcome import DAY_S, Days, Floats, Waits, drawn_days
from kopt.simulator.what_if.replay import Pool

_DRAWS = 200
_MOST_GROUPS, _LEAST_JOBS = 10, 20
"""Queues or users that are listed, those with most jobs, and jobs of one."""
_MONTH_HOURS = 730
_LEVELS = {"median wait": 0.5, "95 % wait up to": 0.95}


@dataclass(frozen=True)
class Replayed:
    """Of each job its pool and its start in a replay, NaN where it never fits."""

    pools: Mapping[str, Pool]
    prices: Mapping[str, float]
    pool_of: Sequence[str]
    start_s: Floats


def figures_of(
    jobs: Sequence[PastJob], days: Days, before: Replayed, after: Replayed, *, by_user: bool = False
) -> tuple[Figure, ...]:
    """Waits are of the jobs that fit into both clusters."""
    weights = drawn_days(days.count, _DRAWS if days.count >= LEAST_DAYS else 0)
    return (
        *_of_pools(jobs, days, before, after, weights),
        *_of_waits(jobs, days, before, after, weights, by_user=by_user),
    )


def _of_waits(
    jobs: Sequence[PastJob], days: Days, before: Replayed, after: Replayed, weights: Floats, *, by_user: bool
) -> Iterator[Figure]:
    submitted_s = np.array([job.submitted_s for job in jobs])
    day = days.of(submitted_s)
    fits = ~np.isnan(before.start_s) & ~np.isnan(after.start_s) & (day >= 0) & (day < days.count)
    groups = [job.user if by_user else job.queue for job in jobs]
    counts = Counter(group for group, counted in zip(groups, fits, strict=True) if counted and group)
    listed = [name for name, count in counts.most_common(_MOST_GROUPS) if count >= _LEAST_JOBS]
    recorded_s = np.array([np.nan if job.waited_s is None else job.waited_s for job in jobs])
    for name in (EVERYBODY, *(listed if len(counts) > 1 else ())):
        of = np.flatnonzero(fits & np.array([name in (EVERYBODY, group) for group in groups]))
        if of.size:
            every = (recorded_s, before.start_s - submitted_s, after.start_s - submitted_s)
            yield from _of_group(name, [Waits(waits_s[of], day[of]) for waits_s in every], weights)


def _of_group(name: str, sides: Sequence[Waits], weights: Floats) -> Iterator[Figure]:
    for what, level in _LEVELS.items():
        yield _figure(what, name, Unit.SECONDS, *(side.quantile(level, weights) for side in sides))
    if name == EVERYBODY:
        yield _figure("mean wait", name, Unit.SECONDS, *(side.mean(weights) for side in sides))


def _of_pools(
    jobs: Sequence[PastJob], days: Days, before: Replayed, after: Replayed, weights: Floats
) -> Iterator[Figure]:
    gpus = np.array([job.gpus for job in jobs], dtype=np.float64)
    seconds = np.array([job.seconds for job in jobs])
    recorded_s = np.array([job.submitted_s + (job.waited_s or 0.0) for job in jobs])
    sides = (Replayed(before.pools, before.prices, before.pool_of, recorded_s), before, after)
    for name in dict.fromkeys((*before.pools, *after.pools)):
        used = [weights @ _hours(side, name, days, gpus, seconds) for side in sides]
        there = [side.pools[name].gpus if name in side.pools else 0 for side in sides]
        yield _exact("GPUs", name, Unit.GPUS, there[1], there[2])
        shares = [
            hours / (count * 24 * days.count) if count else np.zeros_like(hours)
            for hours, count in zip(used, there, strict=True)
        ]
        yield _figure("utilisation", name, Unit.SHARE, *shares)
        yield _figure("GPU-hours used", name, Unit.GPU_HOURS, *used)
        yield from _of_prices(name, [side.prices.get(name) for side in sides[1:]], there[1:], used[1:], days)
    never = [float(np.isnan(side.start_s).sum()) for side in (before, after)]
    yield _exact("never fit", EVERYBODY, Unit.JOBS, *never)
    lost = [float((gpus * seconds)[np.isnan(side.start_s)].sum()) / 3600 for side in (before, after)]
    yield _exact("GPU-hours that never fit", EVERYBODY, Unit.GPU_HOURS, *lost)


def _hours(side: Replayed, pool: str, days: Days, gpus: Floats, seconds: Floats) -> Floats:
    of = np.flatnonzero(np.array([name == pool for name in side.pool_of]) & ~np.isnan(side.start_s))
    return days.gpu_hours(gpus[of], side.start_s[of], seconds[of])


def _of_prices(
    pool: str, prices: Sequence[float | None], gpus: Sequence[int], used: Sequence[Floats], days: Days
) -> Iterable[Figure]:
    price = next((each for each in prices if each is not None), None)
    if price is None:
        return
    yield _exact("a month", pool, Unit.MONEY, *(price * count * _MONTH_HOURS for count in gpus))
    span_hours = days.count * DAY_S / 3600
    each = [
        np.divide(price * count * span_hours, hours, out=np.full_like(hours, np.nan), where=hours > 0)
        for count, hours in zip(gpus, used, strict=True)
    ]
    if not any(np.isnan(side).any() for side in each):
        yield _figure("per GPU-hour used", pool, Unit.MONEY, None, *each)


def _exact(what: str, of: str, unit: Unit, as_is: float, what_if: float) -> Figure:
    return Figure(what, of, unit, None, as_is, what_if)


def _figure(what: str, of: str, unit: Unit, recorded: Floats | None, as_is: Floats, what_if: Floats) -> Figure:
    """Of values over every day, and then over days that were drawn. NaN is recorded where not every wait is."""
    now = None if recorded is None or np.isnan(recorded[0]) else float(recorded[0])
    intervals = (_interval(as_is), _interval(what_if), _interval(what_if - as_is))
    return Figure(what, of, unit, now, float(as_is[0]), float(what_if[0]), *intervals)


def _interval(values: Floats) -> Interval | None:
    drawn = values[1:][~np.isnan(values[1:])]
    return (float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))) if drawn.size else None
