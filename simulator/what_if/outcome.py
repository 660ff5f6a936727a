"""What came of jobs, by the day: their waits, and how many GPUs they used."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAY_S = 86_400.0
Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]
_LONGEST_BLOCK, _LEAST_BLOCKS = 7, 8


@dataclass(frozen=True)
class Days:
    """``count`` whole days from ``start_s`` on, which figures are of."""

    start_s: float
    count: int

    @property
    def end_s(self) -> float:
        return self.start_s + DAY_S * self.count

    def of(self, at_s: Floats) -> Indexes:
        """The day of each time; negative before the first."""
        return np.floor((at_s - self.start_s) / DAY_S).astype(np.intp)

    def gpu_hours(self, gpus: Floats, start_s: Floats, seconds: Floats) -> Floats:
        """Used on each day, (count,), by jobs (jobs,)."""
        bounds = self.start_s + DAY_S * np.arange(self.count + 1)
        # What every job has run before each bound.
        before = [gpus @ np.clip(bound - start_s, 0.0, seconds) for bound in bounds]
        return np.diff(before) / 3600.0


def drawn_days(days: int, draws: int) -> Floats:
    """Every day once, and ``draws`` times how often each is drawn: (1 + draws, days).

    In blocks of consecutive days, as what waits today waits because of yesterday (Politis and Romano, A circular
    block-resampling procedure for stationary data, 1992).
    """
    length = max(1, min(_LONGEST_BLOCK, days // _LEAST_BLOCKS))
    blocks = -(-days // length)
    starts = np.random.default_rng(0).integers(0, days, (draws, blocks))
    drawn = ((starts[:, :, None] + np.arange(length)) % days).reshape(draws, blocks * length)[:, :days]
    counts = [np.bincount(row, minlength=days) for row in drawn]
    return np.array([np.ones(days), *counts], dtype=np.float64)


class Waits:
    """Of jobs, each of a day that figures are of; a figure is answered for each row of weights of days."""

    def __init__(self, seconds: Floats, days: Indexes) -> None:
        order = np.argsort(seconds, kind="stable")
        self._seconds, self._days = seconds[order], days[order]

    def quantile(self, level: float, weights: Floats) -> Floats:
        """(draws, days) → (draws,); NaN for a row without jobs, and where not every wait is known."""
        return np.array([self._weighted(level, row[self._days]) for row in weights])

    def mean(self, weights: Floats) -> Floats:
        """As ``quantile``."""
        days = weights.shape[1]
        sums = weights @ np.bincount(self._days, self._seconds, days)
        counts = weights @ np.bincount(self._days, minlength=days)
        means: Floats = np.divide(sums, counts, out=np.full(len(weights), np.nan), where=counts > 0)
        return means

    def _weighted(self, level: float, weights: Floats) -> float:
        summed = np.cumsum(weights)
        if not summed.size or not summed[-1] or np.isnan(self._seconds[-1]):
            return float("nan")
        return float(self._seconds[np.searchsorted(summed, level * summed[-1])])


def error_by_day(recorded_s: Floats, replayed_s: Floats, held_s: Floats, days: Indexes) -> float:
    """What the waits of each day differ by, as a share of what was waited for GPUs, which is what was not held;
    infinite where nobody waited for them but in the replay."""
    off = float(np.abs(np.bincount(days, recorded_s - replayed_s)).sum())
    waited_s = float((recorded_s - held_s).sum())
    if off < 1:
        return 0.0
    return off / waited_s if waited_s >= 1 else float("inf")
