"""The GPUs that a pool will need in each of the next weeks, by quantiles.

What a week needed is the number of GPUs that were enough in a share of its hours (``SERVED``). Its logarithm wanders
around a level, the exponentially weighted mean of the weeks before, which forgets the more slowly the further ahead the
week lies. How far it wanders is measured in steps of the pool itself: the mean absolute change from one week to the
next, shrunk towards that of other machines while few weeks are known. Quantiles of such steps by horizon come from
machines whose jobs were recorded for years (``benchmarks/capacity.py`` fits them, and tests each machine by the
others). It has no trend or season of its own: with one value a week, few pools have enough history for either.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SERVED = 0.95
"""The share of the hours of a week in which what it needs is enough."""
WEEK_HOURS = 168
LEAST_WEEKS = 4
MOST_WEEKS_AHEAD = 26
_LEAST_HOURS = 84
"""A week of which less is known counts as unknown."""


@dataclass(frozen=True)
class Horizon:
    """``steps`` are those of ``QUANTILES``, in mean absolute weekly changes, from the level of ``forgetting``."""

    weeks: int
    forgetting: float
    steps: tuple[float, ...]


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95)
PRIOR_CHANGE, PRIOR_WEEKS = 0.555, 6
"""The mean absolute weekly change of the logarithm on recorded machines, and for how many weeks of a pool it counts."""
HORIZONS = (
    Horizon(1, 0.6, (-2.192, -0.607, 0.0, 0.649, 1.509, 2.209)),
    Horizon(2, 0.4, (-3.051, -0.728, 0.057, 0.922, 1.905, 2.769)),
    Horizon(4, 0.2, (-3.699, -0.817, 0.206, 1.246, 2.228, 3.078)),
    Horizon(8, 0.1, (-4.267, -0.911, 0.327, 1.565, 2.657, 3.5)),
    Horizon(13, 0.05, (-4.62, -0.911, 0.36, 1.639, 2.866, 3.795)),
    Horizon(26, 0.05, (-5.257, -0.653, 0.473, 2.006, 3.425, 4.46)),
)


@dataclass(frozen=True)
class WeekAhead:
    """GPUs that the ``weeks``-th week from now needs, by ``QUANTILES``."""

    weeks: int
    gpus: tuple[float, ...]

    def quantile(self, level: float) -> float:
        """Between the known quantiles in a straight line; the outermost beyond them."""
        return _between(QUANTILES, self.gpus, level)

    def exceeds(self, gpus: float) -> float:
        """The probability that more than ``gpus`` are needed, from .05 to .95."""
        if gpus <= self.gpus[0]:
            return 1 - QUANTILES[0]
        return 1 - _between(self.gpus, QUANTILES, gpus)


class TooShort(ValueError):
    """Too little of the history is known to say anything; the message says how much there is."""


def weekly_need(hours: Sequence[float | None], served: float = SERVED) -> list[float | None]:
    """What each whole week needed, the oldest first, weeks being counted back from the end. ``hours`` are the mean GPUs
    that were demanded in each hour. None for a week of which less than half is known."""
    whole = len(hours) // WEEK_HOURS
    start = len(hours) - whole * WEEK_HOURS
    return [
        _enough([hour for hour in hours[begin : begin + WEEK_HOURS] if hour is not None], served)
        for begin in range(start, len(hours), WEEK_HOURS)
    ]


def forecast(needs: Sequence[float | None], weeks_ahead: int) -> list[WeekAhead]:
    """Each of the next ``weeks_ahead`` weeks (at most MOST_WEEKS_AHEAD). Raises TooShort, ValueError for a horizon out
    of range."""
    if not 1 <= weeks_ahead <= MOST_WEEKS_AHEAD:
        raise ValueError(f"a forecast reaches 1 to {MOST_WEEKS_AHEAD} weeks ahead, not {weeks_ahead}")
    logs = [None if need is None else math.log1p(need) for need in needs]
    measured = sum(log is not None for log in logs)
    if measured < LEAST_WEEKS:
        raise TooShort(f"{measured} of the {LEAST_WEEKS} weeks that are needed at least are known")
    change = mean_change(logs)
    return [_week(logs, change, weeks) for weeks in range(1, weeks_ahead + 1)]


def mean_change(logs: Sequence[float | None]) -> float:
    """The mean absolute change from a week to the next, with the prior's as further weeks."""
    changes = [abs(after - before) for before, after in pairwise(logs) if before is not None and after is not None]
    return (sum(changes) + PRIOR_CHANGE * PRIOR_WEEKS) / (len(changes) + PRIOR_WEEKS)


def level(logs: Sequence[float | None], forgetting: float) -> float:
    """The mean of the known weeks, each of which counts ``1 - forgetting`` times the one after it."""
    weights = [(1 - forgetting) ** age for age in range(len(logs) - 1, -1, -1)]
    measured = [(weight, log) for weight, log in zip(weights, logs, strict=True) if log is not None]
    total = sum(weight for weight, _ in measured)
    # A forgetting of 1 leaves nothing where the last week is not known.
    return sum(weight * log for weight, log in measured) / total if total else measured[-1][1]


def _week(logs: Sequence[float | None], change: float, weeks: int) -> WeekAhead:
    horizon = horizon_of(weeks)
    middle = level(logs, horizon.forgetting)
    return WeekAhead(weeks, tuple(max(0.0, math.expm1(middle + step * change)) for step in horizon.steps))


def horizon_of(weeks: int) -> Horizon:
    """What was fitted for so many weeks, or what lies between its neighbours."""
    fitted = [horizon.weeks for horizon in HORIZONS]
    after = min(bisect_right(fitted, weeks), len(HORIZONS) - 1)
    low, high = HORIZONS[max(after - 1, 0)], HORIZONS[after]
    share = 0.0 if high.weeks == low.weeks else (weeks - low.weeks) / (high.weeks - low.weeks)
    steps = tuple(a + share * (b - a) for a, b in zip(low.steps, high.steps, strict=True))
    return Horizon(weeks, low.forgetting + share * (high.forgetting - low.forgetting), steps)


def _enough(hours: Sequence[float], served: float) -> float | None:
    """The ``served`` quantile, between ranks in a straight line."""
    if len(hours) < _LEAST_HOURS:
        return None
    ordered, rank = sorted(hours), served * (len(hours) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def _between(points: Sequence[float], values: Sequence[float], point: float) -> float:
    if point <= points[0]:
        return values[0]
    for (low, below), (high, above) in pairwise(zip(points, values, strict=True)):
        if point <= high:
            return above if high == low else below + (point - low) / (high - low) * (above - below)
    return values[-1]
