"""Demand outside of what a service's own past lets expect, bucket by bucket.

What is expected is the median of the same time of the last seven days, moved along with where demand has been lately.
How far a bucket lies from it is measured in the misses that are usual for this service at this hour, on a logarithmic
scale (which sees drops) and on a linear one (which sees rises). Evidence of either side is added up and forgotten with
a half-life of half an hour (a leaky CUSUM: Page 1954, Biometrika 41), so that a little for long counts as much as much
at once; above a threshold an anomaly begins. As the level moves along, a lasting change stops being one after hours.

The state of a service has constant size, follows from its stored history alone, and costs the same for each new bucket.
"""

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S

Array = NDArray[np.float64]
Direction = Literal["higher", "lower"]

FALSE_ALARMS_PER_WEEK = 0.5
_THRESHOLDS = {0.25: 30.0, 0.5: 18.0, 1.0: 12.7, 2.0: 9.8}
"""Evidence by false alarms per service and week, as ``benchmarks.anomalies`` measured it on the sources looked at."""
_DAYS, _LEAST_DAYS = 7, 3
"""Days that are compared with, and how many there must be before anything is an anomaly."""
_COMPARABLE = 0.1
"""Days with less than this part of the last day's demand are none to compare with: the service has just begun."""
_SMOOTHED_S = 1800
_FLOOR = 0.05
"""Of a day's mean, added to demand before logarithms: among next to nothing no ratio means anything."""
_LEVEL_HALF_LIFE_S, _LARGEST_LEVEL_STEP = 3 * 3600.0, 1.0
_MISS_HALF_LIFE_DAYS, _HOUR_HALF_LIFE_DAYS = 3.0, 5.0
_HOUR_PRIOR, _HOUR_WEIGHT = 6.0, 0.5
_LARGEST_MISS = 6.0
"""Of the usual: an anomaly must not widen what counts as usual by more than this."""
_SIGMAS_PER_MISS, _LEAST_SIGMA = 1.25, 0.03
"""A normal distribution's standard deviation is 1.25 mean absolute deviations."""
_SLACK, _KEPT, _PER_S = 1.5, 0.8, 600.0
"""In ten minutes evidence loses this many standard deviations, and keeps this part of what it was."""
_LARGEST_SIGMAS = 12.0
_RESOLVED_SHARE, _RESOLVED_AFTER_S = 0.5, 1800.0
_LONG_GAP_S = 6 * 3600.0


def threshold(false_alarms_per_week: float = FALSE_ALARMS_PER_WEEK) -> float:
    """The evidence at which an anomaly begins. Raises ValueError for a budget outside of what was measured."""
    rates = np.log(list(_THRESHOLDS))
    if not min(_THRESHOLDS) <= false_alarms_per_week <= max(_THRESHOLDS):
        raise ValueError(
            f"{false_alarms_per_week} false alarms per service and week: {min(_THRESHOLDS)} to {max(_THRESHOLDS)} "
            "have been measured"
        )
    return float(np.interp(np.log(false_alarms_per_week), rates, list(_THRESHOLDS.values())))


@dataclass(frozen=True)
class Anomaly:
    """Demand that is not what the service's past lets expect, as of its newest bucket."""

    direction: Direction
    since_s: float
    """Start of the bucket with which it began, on the clock of the series."""
    value: float
    expected: float
    """Demand in the newest bucket, and what was expected of it, in the series' unit."""
    severity: float
    """The largest evidence since it began over what an anomaly takes, at least 1."""


@dataclass
class _Misses:
    """How far off is usual: a mean over days and one for each hour of the day, both forgetting."""

    total: float = 0.0
    weight: float = 0.0
    by_hour: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(24)])

    def sigma(self, hour: int) -> float:
        usual = self.total / self.weight
        of_hour, weight = self.by_hour[hour]
        hourly = (of_hour + _HOUR_PRIOR * usual) / (weight + _HOUR_PRIOR)
        return _SIGMAS_PER_MISS * ((1 - _HOUR_WEIGHT) * usual + _HOUR_WEIGHT * hourly) + _LEAST_SIGMA

    def learn(self, miss: float, hour: int, step_s: int) -> None:
        if self.weight > DAY_S / step_s / 4:
            miss = min(miss, _LARGEST_MISS * self.total / self.weight)
        keep = 0.5 ** (step_s / DAY_S / _MISS_HALF_LIFE_DAYS)
        self.total, self.weight = keep * self.total + miss, keep * self.weight + 1
        keep, of_hour = 0.5 ** (step_s / 3600 / _HOUR_HALF_LIFE_DAYS), self.by_hour[hour]
        of_hour[:] = keep * of_hour[0] + miss, keep * of_hour[1] + 1


@dataclass
class Watch:
    """What is known of one service after the bucket that began at ``newest_s``. Not thread-safe."""

    least_evidence: float = field(default_factory=threshold)
    newest_s: float = -np.inf
    anomaly: Anomaly | None = None
    _level: float = np.nan
    _ratio_misses: _Misses = field(default_factory=_Misses)
    _linear_misses: _Misses = field(default_factory=_Misses)
    _evidence: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Of lower demand by ratio, of higher demand by ratio, and of higher demand by amount."""
    _calm_s: float = 0.0

    def catch_up(self, series: DemandSeries) -> list[float]:
        """Observe the buckets of ``series`` that are new, and return the evidence after each of them (NaN in gaps).

        What came late for a bucket that has been observed counts from tomorrow on, as a past to compare with.
        """
        first = 0
        if np.isfinite(self.newest_s):
            first = max(0, round((self.newest_s - series.start_s) / series.step_s) + 1)
        if first >= len(series):
            return []
        evidence = []
        for index, expected in enumerate(_expected(series, first), first):
            at_s = series.start_s + index * series.step_s
            value = float(series.value[index])
            evidence.append(np.nan if np.isnan(value) else self._observe(value, at_s, series.step_s, expected))
        return evidence

    def _observe(self, value: float, at_s: float, step_s: int, expected: "_Expected") -> float:
        if at_s - self.newest_s > _LONG_GAP_S:
            self._evidence, self.anomaly, self._level = [0.0, 0.0, 0.0], None, np.nan
        self.newest_s = at_s
        if not np.isfinite(expected.value):
            return 0.0
        floor = _FLOOR * expected.day_mean + 1e-9
        ratio = float(np.log((value + floor) / (expected.value + floor)))
        level = 0.0 if np.isnan(self._level) else self._level
        step = min(max(ratio - level, -_LARGEST_LEVEL_STEP), _LARGEST_LEVEL_STEP)
        self._level = level + (1 - 0.5 ** (step_s / _LEVEL_HALF_LIFE_S)) * step
        moved = max((expected.value + floor) * float(np.exp(level)) - floor, 0.0)
        hour = int(at_s // 3600) % 24
        by_ratio = _sigmas(ratio - level, self._ratio_misses, hour, step_s)
        by_amount = _sigmas((value - moved) / (expected.day_mean + 1e-9), self._linear_misses, hour, step_s)
        if expected.days >= _LEAST_DAYS:
            self._add((-by_ratio, by_ratio, by_amount), step_s)
        self._decide(value, moved, at_s, step_s)
        return max(self._evidence)

    def _add(self, sigmas: Sequence[float], step_s: int) -> None:
        keep, slack = _KEPT ** (step_s / _PER_S), _SLACK * step_s / _PER_S
        for lane, each in enumerate(sigmas):
            bounded = min(max(each, -_LARGEST_SIGMAS), _LARGEST_SIGMAS)
            self._evidence[lane] = max(0.0, keep * self._evidence[lane] + bounded - slack)

    def _decide(self, value: float, expected: float, at_s: float, step_s: int) -> None:
        severity = max(self._evidence) / self.least_evidence
        self._calm_s = self._calm_s + step_s if severity < _RESOLVED_SHARE else 0.0
        if self.anomaly is not None and self._calm_s < _RESOLVED_AFTER_S:
            worst = max(severity, self.anomaly.severity)
            self.anomaly = Anomaly(self.anomaly.direction, self.anomaly.since_s, value, expected, worst)
        elif severity >= 1:
            lower = self._evidence[0] >= max(self._evidence[1:])
            self.anomaly = Anomaly("lower" if lower else "higher", at_s, value, expected, severity)
        else:
            self.anomaly = None


@dataclass(frozen=True)
class _Expected:
    """Of a bucket: the median of its time of day, the mean of the day before, and how many days can be compared."""

    value: float
    day_mean: float
    days: int


def _expected(series: DemandSeries, first: int) -> list[_Expected]:
    """Of the buckets from ``first`` on, from what lies at least a day (a smoothed one) or a bucket (a mean) before."""
    day, around = DAY_S // series.step_s, max(1, _SMOOTHED_S // series.step_s) // 2
    lead = (_DAYS + 1) * day + around
    padded = np.concatenate([np.full(lead, np.nan), series.value])[first:]
    buckets = len(series) - first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a mean of gaps alone is a gap
        means = _rolling_means(padded, day)[around:]
        smooth = _rolling_means(padded, 2 * around + 1)
        past = np.stack([smooth[(_DAYS + 1 - k) * day :][:buckets] for k in range(1, _DAYS + 1)])
        value = np.nanmedian(past, axis=0)
        days = np.stack([means[(_DAYS - k) * day :][:buckets] for k in range(_DAYS)])
    comparable = (days >= _COMPARABLE * days[0]) & np.isfinite(past) & (days > 0)
    return [_Expected(*row) for row in zip(value.tolist(), days[0].tolist(), comparable.sum(0).tolist(), strict=True)]


def _rolling_means(value: Array, width: int) -> Array:
    """Means of the known among ``value[i : i + width]``, NaN where less than an eighth is known; (n - width + 1,)."""
    known = np.isfinite(value)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, value, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    total, count = sums[width:] - sums[:-width], counts[width:] - counts[:-width]
    return np.where(count >= max(1, width / 8), np.maximum(total, 0.0) / np.maximum(count, 1), np.nan)


def _sigmas(miss: float, misses: _Misses, hour: int, step_s: int) -> float:
    result = miss / misses.sigma(hour) if misses.weight else 0.0
    misses.learn(abs(miss), hour, step_s)
    return result


class Watches:
    """The watches of many services; of more than ``most``, those that were observed longest ago begin anew."""

    def __init__(self, most: int = 20_000, false_alarms_per_week: float = FALSE_ALARMS_PER_WEEK) -> None:
        self._most, self._least_evidence = most, threshold(false_alarms_per_week)
        self._watches: OrderedDict[str, Watch] = OrderedDict()

    def observe(self, series: DemandSeries) -> Anomaly | None:
        """The anomaly of a service as of the newest bucket of its history, of which it takes what is new."""
        watch = self._watches.pop(series.name, None) or Watch(self._least_evidence)
        watch.catch_up(series)
        self._watches[series.name] = watch
        if len(self._watches) > self._most:
            self._watches.popitem(last=False)
        return watch.anomaly

    def __contains__(self, name: str) -> bool:
        return name in self._watches

    def __len__(self) -> int:
        return len(self._watches)
