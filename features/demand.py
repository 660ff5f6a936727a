"""The one transformation from demand histories to feature rows, used by training and by serving.

Everything is measured in logarithms relative to the last value, so a row does not depend on the scale of a series;
a few carrier columns (``last_value``, ``floor`` …) let the predictor undo that. Rows are causal: a row at an origin
uses only buckets up to and including it. Lags and windows are in seconds, so series of different steps share a model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries

Array = NDArray[np.float64]
Index = NDArray[np.int64]

HORIZONS_S = (300, 1800, 3600)
"""Horizons the models are trained for, in seconds ahead of the last observed bucket."""
DAY_S = 86400
LAGS_S = (600, 1200, 1800, 2400, 3600, 5400, 7200, 10800, 21600, 43200)
WINDOWS_S = (1800, 3600, 7200, 21600, 86400)
LOOKBACK_S = 8 * DAY_S
"""Older history changes no feature."""
_CHUNK = 4096

CARRIERS = ("last_value", "floor", "max_7d", "history_days", "step_s")
"""Columns in the series' own units: never inputs of a model, only of the way back from its output."""
_INCREMENTS = ("median", "mean", "deviation", "largest", "level")
FEATURES: tuple[str, ...] = (
    *CARRIERS,
    *(f"change_{lag // 60}m" for lag in LAGS_S),
    *(
        f"{kind}_{window // 60}m"
        for window in WINDOWS_S
        for kind in ("above_mean", "below_max", "above_min", "roughness")
    ),
    *(f"day{day}_{kind}" for day in (1, 7) for kind in ("level", "peak_60m")),
    *(f"day{day}_{kind}_{h // 60}m" for day in (1, 7) for h in HORIZONS_S for kind in ("rise", "smooth_rise")),
    *(f"daily_{kind}_{h // 60}m" for h in HORIZONS_S for kind in _INCREMENTS),
    *(f"jump_{kind}_{h // 60}m" for h in HORIZONS_S[1:] for kind in ("largest_3d", "deviation_1d")),
    "below_max_7d",
    "above_mean_7d",
    "days_seen",
)
INPUTS: tuple[str, ...] = FEATURES[len(CARRIERS) :]
COLUMN = {name: position for position, name in enumerate(FEATURES)}


def steps_ahead(horizon_s: float, step_s: int) -> int:
    """Buckets between an origin and its target; at least one."""
    return max(1, int(horizon_s // step_s))


def fill_gaps(value: Array) -> Array:
    """Forward fill, so that a gap repeats what was last known; leading gaps take the first known value."""
    is_finite = np.isfinite(value)
    position = np.maximum.accumulate(np.where(is_finite, np.arange(len(value)), -1))
    first = int(np.argmax(is_finite))
    filled: Array = value[np.where(position < 0, first, position)]
    return filled


def transform(series: DemandSeries, origins: Index) -> Array:
    """Feature rows at ``origins`` (bucket indexes), shape (len(origins), len(FEATURES)); NaN where history is missing.

    Finer series must be resampled to the grid first (``DemandSeries.resampled``).
    """
    origins = np.asarray(origins, dtype=np.int64)
    if not np.isfinite(series.value).any():
        return np.full((len(origins), len(FEATURES)), np.nan)
    history = _History.of(series)
    rows = [history.rows(origins[start : start + _CHUNK]) for start in range(0, len(origins), _CHUNK)]
    return np.concatenate(rows) if rows else np.empty((0, len(FEATURES)))


@dataclass(frozen=True)
class _History:
    """A filled series with its logarithm; ``first`` is the first known bucket."""

    value: Array
    log: Array
    floor: Array
    step_s: int
    first: int
    log_total: Array
    week_max: "_TrailingMax"

    @classmethod
    def of(cls, series: DemandSeries) -> "_History":
        value = fill_gaps(series.value)
        # One percent of the last day's mean keeps the logarithm of idle services finite and calm.
        day = max(1, DAY_S // series.step_s)
        total = np.concatenate([[0.0], np.cumsum(value)])
        start = np.maximum(np.arange(len(value)) - day + 1, 0)
        mean = (total[1:] - total[start]) / (np.arange(len(value)) - start + 1)
        floor = 0.01 * np.maximum(mean, 0) + 1e-9
        log = np.log(value + floor)
        week = max(1, 7 * DAY_S // series.step_s)
        first = int(np.argmax(np.isfinite(series.value)))
        log_total = np.concatenate([[0.0], np.cumsum(log)])
        return cls(value, log, floor, series.step_s, first, log_total, _TrailingMax.of(value, week))

    def rows(self, origins: Index) -> Array:
        columns = [*self._carriers(origins), *self._changes(origins), *self._windows(origins)]
        columns += [*self._days(origins), *self._daily(origins), *self._jumps(origins), *self._week(origins)]
        return np.column_stack(columns)

    def _buckets(self, seconds: float) -> int:
        return max(1, int(seconds // self.step_s))

    def _at(self, index: Index) -> Array:
        """Logarithms at ``index``; NaN before the first known bucket."""
        logarithms: Array = np.where(index >= self.first, self.log[np.maximum(index, 0)], np.nan)
        return logarithms

    def _smooth_at(self, index: Index) -> Array:
        """Mean of three neighbouring buckets around ``index``."""
        return (self._at(index - 1) + self._at(index) + self._at(index + 1)) / 3

    def _tail(self, origins: Index, buckets: int, source: Array) -> Array:
        """The last ``buckets`` values at each origin, shape (n, buckets); the first known one repeats before it."""
        tail: Array = source[np.maximum(origins[:, None] + np.arange(1 - buckets, 1), self.first)]
        return tail

    def _carriers(self, origins: Index) -> Iterator[Array]:
        yield self.value[origins]
        yield self.floor[origins]
        yield self.week_max.at(origins)
        yield np.maximum(origins - self.first + 1, 0) * self.step_s / DAY_S
        yield np.full(len(origins), float(self.step_s))

    def _changes(self, origins: Index) -> Iterator[Array]:
        last = self.log[origins]
        for lag in LAGS_S:
            yield last - self._at(origins - self._buckets(lag))

    def _windows(self, origins: Index) -> Iterator[Array]:
        last = self.log[origins]
        day = self._tail(origins, self._buckets(WINDOWS_S[-1]) + 1, self.log)
        for window in WINDOWS_S:
            part = day[:, -max(2, self._buckets(window)) :]
            yield last - part.mean(1)
            yield part.max(1) - last
            yield last - part.min(1)
            yield np.diff(part, axis=1).std(1)

    def _days(self, origins: Index) -> Iterator[Array]:
        last, day = self.log[origins], self._buckets(DAY_S)
        hour = np.arange(1, self._buckets(3600) + 1)
        for days in (1, 7):
            then = origins - days * day
            before = self._at(then)
            yield before - last
            yield self._at(then[:, None] + hour).max(1) - before
        for days in (1, 7):
            then = origins - days * day
            for horizon in HORIZONS_S:
                ahead = steps_ahead(horizon, self.step_s)
                yield self._at(then + ahead) - self._at(then)
                yield self._smooth_at(then + ahead) - self._smooth_at(then)

    def _daily(self, origins: Index) -> Iterator[Array]:
        """What the same time of day brought on each of the past seven days."""
        then = origins[:, None] - self._buckets(DAY_S) * np.arange(1, 8)
        now = self._smooth_at(then)
        for horizon in HORIZONS_S:
            ahead = then + steps_ahead(horizon, self.step_s)
            rise, level = self._smooth_at(ahead) - now, self._at(ahead)
            count = np.isfinite(rise).sum(1)
            some = np.where(np.isfinite(rise), rise, 0.0)
            mean = some.sum(1) / np.maximum(count, 1)
            spread = np.where(np.isfinite(rise), rise - mean[:, None], 0.0)
            present = count > 0
            yield np.where(present, _row_median(rise), np.nan)
            yield np.where(present, mean, np.nan)
            yield np.where(present, np.sqrt((spread**2).sum(1) / np.maximum(count, 1)), np.nan)
            yield np.where(present, np.where(np.isfinite(rise), rise, -np.inf).max(1), np.nan)
            yield _row_median(level) - self.log[origins]

    def _jumps(self, origins: Index) -> Iterator[Array]:
        """How far the series has moved within a horizon lately: its furthest rise in three days, its spread in one."""
        day = self._buckets(DAY_S)
        for horizon in HORIZONS_S[1:]:
            ahead = steps_ahead(horizon, self.step_s)
            start = np.maximum(np.arange(len(self.log)) - ahead, self.first)
            move = self.log - self.log[start]
            yield _TrailingMax.of(move, 3 * day).at(origins)
            yield self._tail(origins, day, move).std(1)

    def _week(self, origins: Index) -> Iterator[Array]:
        last = self.log[origins]
        start = np.maximum(origins - self._buckets(7 * DAY_S) + 1, self.first)
        yield np.log(self.week_max.at(origins) + self.floor[origins]) - last
        yield last - (self.log_total[origins + 1] - self.log_total[start]) / np.maximum(origins - start + 1, 1)
        yield np.minimum((origins - self.first + 1) * self.step_s / DAY_S, 7.0)


@dataclass(frozen=True)
class _TrailingMax:
    """Maximum over the last ``window`` buckets at any bucket: two overlapping runs of a power of two cover it."""

    runs: Array
    run: int
    window: int

    @classmethod
    def of(cls, value: Array, window: int) -> "_TrailingMax":
        runs, run = value, 1
        while run * 2 <= window:
            runs = np.concatenate([runs[:run], np.maximum(runs[run:], runs[:-run])])
            run *= 2
        return cls(runs, run, window)

    def at(self, index: Index) -> Array:
        earlier = index - self.window + self.run
        highest: Array = np.maximum(self.runs[index], self.runs[np.where(earlier < 0, index, earlier)])
        return highest


def _row_median(rows: Array) -> Array:
    """Median of each row over its finite entries; NaN where there is none. A sort with NaN last beats nanmedian."""
    count = np.isfinite(rows).sum(1)
    ordered = np.sort(rows, axis=1)
    pick = np.arange(len(rows))
    low, high = np.maximum((count - 1) // 2, 0), np.maximum(count // 2, 0)
    high = np.minimum(high, rows.shape[1] - 1)
    return np.where(count > 0, (ordered[pick, low] + ordered[pick, high]) / 2, np.nan)
