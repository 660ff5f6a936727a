"""Keeps a series' quantiles honest: thresholds on the scores that the online mixture settles.

A score says how many widths above its centre the truth came out. The threshold of each level starts at the pooled
quantile of services the model was not fitted on, then tracks its own misses: a truth above it raises it, every other
lowers it a little, so that misses come out at the nominal rate whatever the series does (quantile tracking: Gibbs &
Candès 2021, arXiv:2106.00170; Angelopoulos et al. 2023, arXiv:2307.16895).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kopt.features.demand import HORIZONS_S, steps_ahead

Array = NDArray[np.float64]

LEVELS = (0.05, 0.5, 0.9, 0.95, 0.99)
"""Quantiles that are tracked; the median stays at the mixture's centre, which is fitted for it."""
_MISSES = np.array([0.95, 0.5, 0.1, 0.05, 0.0115])
"""Nominal share of truths above each threshold. The last allows for the floor under it, which only ever adds safety:
with .01 the measured share on services never seen is .009."""
_STEP = np.array([0.02, 0.0, 0.02, 0.01, 0.1])
"""Size of a correction, as a part of the threshold as it stands (below the median: of its start): a service whose tail
is four times as long as usual is reached in 15 misses, where .03 of the start needed a hundred. Larger steps follow
faster and lend less, for then the quantile itself is restless."""
_PRIOR_SERIES = 10
_FLOOR = 0.5
"""A calm spell may not take a threshold below this part of its start: the next spike would find it asleep."""
_FURTHEST = 20.0
"""And none further than this many times its start."""
DEFAULT_THRESHOLDS = np.array([[-0.7, 0.0, 0.58, 0.86, 1.8]] * len(HORIZONS_S))
"""Where nothing could be held out to learn them; close to what every public data set gives."""


@dataclass
class Calibration:
    """Thresholds of S series in step, ``current`` (S, H, levels), and those in force at forecasts not yet settled.

    ``start`` (H, levels) is the same for all of them.
    """

    start: Array
    current: Array
    pending: Array
    observed_buckets: int
    step_s: int

    @classmethod
    def new(cls, start: Array, step_s: int, series: int = 1) -> Self:
        slots = steps_ahead(HORIZONS_S[-1], step_s)
        current = np.repeat(start[None], series, axis=0)
        return cls(start, current, np.repeat(current[:, None], slots, axis=1), 0, step_s)

    def part(self, series: slice) -> Self:
        """These series only."""
        return replace(self, current=self.current[series].copy(), pending=self.pending[series].copy())

    def observe(self, scores: Array) -> Array:
        """Take the scores (S, H) of one bucket (NaN: none was due); returns the thresholds (S, H, levels) in force."""
        slots = self.pending.shape[1]
        series, h = np.nonzero(np.isfinite(scores))
        if len(h):
            ahead = np.array([steps_ahead(horizon, self.step_s) for horizon in HORIZONS_S])
            above = scores[series, h][:, None] > self.pending[series, (self.observed_buckets - ahead[h]) % slots, h]
            size, start = np.abs(self.start)[h], self.start[h]
            current = self.current[series, h]
            moved = current + _STEP * np.where(start < 0, size, current) * (above - _MISSES)
            low = np.where(start < 0, -_FURTHEST * size, _FLOOR * size)
            self.current[series, h] = np.clip(moved, low, np.where(start < 0, 0.0, _FURTHEST * size))
        self.current = np.maximum.accumulate(self.current, axis=-1)
        self.pending[:, self.observed_buckets % slots] = self.current
        self.observed_buckets += 1
        return self.current


def pooled_thresholds(scores: Sequence[Array]) -> Array:
    """Starting thresholds (H, levels) from the scores (n, H) of held-out series, each series weighing the same.

    Few series say little about tails, so the result is drawn towards the defaults, which weigh as much as ten series.
    """
    columns = []
    for h in range(len(HORIZONS_S)):
        finite = [score[np.isfinite(score[:, h]), h] for score in scores]
        finite = [item for item in finite if len(item)]
        if not finite:
            return DEFAULT_THRESHOLDS.copy()
        values, weights = np.concatenate(finite), np.concatenate([np.full(len(item), 1 / len(item)) for item in finite])
        order = np.argsort(values)
        share = np.cumsum(weights[order]) / weights.sum()
        index = np.minimum(np.searchsorted(share, LEVELS), len(values) - 1)
        columns.append(values[order][index])
    thresholds = np.array(columns)
    thresholds[:, LEVELS.index(0.5)] = 0.0
    thresholds[:, 0] = np.minimum(thresholds[:, 0], -1e-3)
    thresholds[:, 2:] = np.maximum(thresholds[:, 2:], 1e-3)
    trust = len(scores) / (len(scores) + _PRIOR_SERIES)
    drawn = np.sign(thresholds) * np.abs(thresholds) ** trust * np.abs(DEFAULT_THRESHOLDS) ** (1 - trust)
    result: Array = np.maximum.accumulate(drawn, axis=1)
    return result


def between(levels_values: Array, wanted: Sequence[float]) -> Array:
    """Values at ``wanted`` probabilities from those at ``LEVELS`` (…, levels), linear in the logit; (…, wanted).

    Beyond the outermost levels the last slope goes on, so 0.995 lies above 0.99.
    """
    x, at = _logit(np.array(LEVELS)), _logit(np.asarray(wanted, dtype=np.float64))
    right = np.clip(np.searchsorted(x, at), 1, len(x) - 1)
    share = (at - x[right - 1]) / (x[right] - x[right - 1])
    result: Array = levels_values[..., right - 1] * (1 - share) + levels_values[..., right] * share
    return result


def _logit(p: Array) -> Array:
    return np.log(p / (1 - p))
