"""The GPUs that a queue will demand in each hour of the next days, by quantiles, from the hours that it did so far.

Two ways of looking back are compared, as queues differ: the same hours of the weeks before (a rhythm of the week), and
the same hour of the last day that is known (a level that wanders). Whichever would have lost less on the last three
weeks is taken. How much is added to it comes from what it missed at that time of day then, as in split conformal
prediction (Lei et al., "Distribution-free predictive inference for regression", 2018): the smallest margin that would
have been enough in a share ``quantile`` of these hours. It needs neither numpy nor a model that is trained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import counted

METHOD = "same-hours/1"
"""The version of the method, as that of a model."""
HOUR_S, DAY_HOURS, WEEK_HOURS = 3600.0, 24, 168
LEAST_DAYS = 14
MOST_AHEAD_HOURS = WEEK_HOURS
"""Beyond a week, the same hour of the last week is not known yet."""
_STALE_HOURS = 6
_MISSED_HOURS = 21 * DAY_HOURS
_LEAST_MISSES = 12
_HALF_LIFE_WEEKS = 2.0
_BESIDE = ((0, 1.0), (-1, 0.5), (1, 0.5))
"""Hours beside the same hour of a week, and what they count."""


class NoForecast(ValueError):
    """Nothing can be said; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass(frozen=True)
class HourlyForecast:
    """Of each hour after the last one of the history, in the unit of the history. ``by``: ``week`` or ``day``;
    ``days``: how many the history has."""

    quantile: float
    middle: tuple[float, ...]
    upper: tuple[float, ...]
    by: str
    days: int


def forecast(hours: Sequence[float | None], quantile: float, ahead: int) -> HourlyForecast:
    """``ahead`` hours from ``hours``, the oldest first; None where nothing is known.

    Raises NoForecast, ValueError for a quantile or a horizon out of range.
    """
    if not 0.5 <= quantile <= 0.99:
        raise ValueError(f"a quantile of {quantile:g} is not between 0.5 and 0.99")
    if not 1 <= ahead <= MOST_AHEAD_HOURS:
        raise ValueError(f"a forecast reaches 1 to {MOST_AHEAD_HOURS} hours ahead, not {ahead}")
    days = sum(each is not None for each in hours) // DAY_HOURS
    _check(hours, days)
    past = _Past(tuple(hours))
    by, usual = past.best(len(hours), quantile)
    middle, upper = [], []
    for index in range(len(hours), len(hours) + ahead):
        lag = (index - len(hours)) // DAY_HOURS + 1
        centre = past.centre(by, index, lag)
        misses = past.misses(by, index, lag, len(hours))
        likely, margin = _enough(misses, 0.5), _enough(misses, quantile)
        middle.append(max(0.0, centre + (likely or 0.0)))
        upper.append(max(0.0, centre + (usual if margin is None else margin), middle[-1]))
    return HourlyForecast(quantile, tuple(middle), tuple(upper), by, days)


def kept_share(hours: Sequence[float | None], quantile: float) -> float | None:
    """The share of the hours of the last week that stayed within what was forecast a day ahead, from what was known
    then; None where too little was."""
    inside = known = 0
    for first in range(len(hours) - WEEK_HOURS, len(hours), DAY_HOURS):
        try:
            upper = forecast(hours[: max(0, first - DAY_HOURS)], quantile, 2 * DAY_HOURS).upper[DAY_HOURS:]
        except NoForecast:
            continue
        for index, most in enumerate(upper, first):
            value = hours[index]
            inside += value is not None and value <= most + 1e-9
            known += value is not None
    return inside / known if known else None


def _check(hours: Sequence[float | None], days: int) -> None:
    if days < LEAST_DAYS:
        raise _too_short(days)
    unknown = next(age for age, each in enumerate(reversed(hours)) if each is not None)
    if unknown >= _STALE_HOURS:
        message = f"Nothing is known of its demand in the last {counted(unknown, 'hour')}."
        raise NoForecast(Reason("RESERVATION_HISTORY_STALE", message, {"hours": unknown}))


def _too_short(days: int) -> NoForecast:
    message = f"Demand is known of {counted(days, 'day')}; a forecast takes {LEAST_DAYS}, the last weeks among them."
    return NoForecast(Reason("RESERVATION_HISTORY_SHORT", message, {"days": days, "least_days": LEAST_DAYS}))


class _Past:
    """What each way of looking back would have said of an hour, by hours before it alone."""

    def __init__(self, hours: tuple[float | None, ...]) -> None:
        self._hours = hours
        self._known = _filled(hours)
        self._weekly: dict[int, float] = {}

    def centre(self, by: str, index: int, lag: int) -> float:
        """Of hour ``index`` (from the oldest), ``lag`` days before it ends."""
        if by == "day":
            return self._known[index - lag * DAY_HOURS]
        if index not in self._weekly:
            self._weekly[index] = self._week(index)
        return self._weekly[index]

    def _week(self, index: int) -> float:
        weighted = []
        for age, same in enumerate(range(index - WEEK_HOURS, -1, -WEEK_HOURS)):
            for beside, weight in _BESIDE:
                at = same + beside
                if 0 <= at < min(index - WEEK_HOURS + 2, len(self._hours)):
                    weighted.append((self._known[at], weight * 0.5 ** (age / _HALF_LIFE_WEEKS)))
        return _weighted_median(weighted)

    def misses(self, by: str, around: int, lag: int, end: int) -> list[float]:
        """What it missed at the time of day of hour ``around``, an hour before and after, in the weeks before ``end``:
        the positive ones were more than its centre."""
        first = max(WEEK_HOURS, end - _MISSED_HOURS, lag * DAY_HOURS)
        result = []
        for index in range(first, end):
            distance = (index - around) % DAY_HOURS
            value = self._hours[index]
            if value is not None and distance in (0, 1, DAY_HOURS - 1):
                result.append(value - self.centre(by, index, lag))
        return result

    def best(self, end: int, quantile: float) -> tuple[str, float]:
        """The way that would have lost less by ``end``, and its margin at any time of day. Raises NoForecast."""
        losses = {}
        for by in ("week", "day"):
            misses = [miss for index in range(end, end + DAY_HOURS, 3) for miss in self.misses(by, index, 1, end)]
            margin = _enough(misses, quantile)
            if margin is None:
                raise _too_short(len(misses) // DAY_HOURS)
            lost = sum(_pinball(miss - margin, quantile) for miss in misses) / len(misses)
            losses[by] = (lost, margin)
        by = "week" if losses["week"][0] <= losses["day"][0] else "day"
        return by, losses[by][1]


def _enough(misses: Sequence[float], quantile: float) -> float | None:
    """The smallest margin that is enough in a share ``quantile`` of further ones; None of too few."""
    if len(misses) < _LEAST_MISSES:
        return None
    return sorted(misses)[min(len(misses), math.ceil(quantile * (len(misses) + 1))) - 1]


def _pinball(miss: float, quantile: float) -> float:
    return max(quantile * miss, (quantile - 1) * miss)


def _weighted_median(weighted: list[tuple[float, float]]) -> float:
    total, cumulative = sum(weight for _, weight in weighted), 0.0
    for value, weight in sorted(weighted):
        cumulative += weight
        if cumulative >= total / 2:
            return value
    return 0.0


def _filled(hours: Sequence[float | None]) -> tuple[float, ...]:
    """Gaps have the value before them, or at the beginning the first one."""
    last = next((each for each in hours if each is not None), 0.0)
    result = []
    for each in hours:
        last = last if each is None else each
        result.append(last)
    return tuple(result)
