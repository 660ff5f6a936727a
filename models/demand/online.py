"""What a series teaches about itself: an online mixture of experts with a running scale of its errors.

Per horizon these experts are mixed: the last value, the rise that this time of day usually brings, two ridge
regressions on the series' own past (a slow one that corrects the trees, a fast one on its own), the global trees, the
global network, and the median of all of these. Weights follow discounted regrets of the absolute loss (Bernstein online
aggregation, Wintenberger 2017, arXiv:1404.1356): the mixture is never much worse than the best expert, whichever it is
for this service. Each forecast is judged only once its bucket has been observed. The state has constant size and is
plain arrays with one row a series: several series that are replayed in step share the cost of each call.
"""

import functools
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kopt.features.demand import COLUMN, DAY_S, HORIZONS_S, steps_ahead

Array = NDArray[np.float64]
Index = NDArray[np.int64]

EXPERTS = ("last", "daily", "ridge_slow", "ridge_fast", "trees", "network", "middle")
_H, _K = len(HORIZONS_S), len(EXPERTS)
_LANES = np.arange(_H)
_MINUTES = tuple(h // 60 for h in HORIZONS_S)
_LOCAL = tuple(
    tuple(
        COLUMN[name]
        for name in (
            "change_10m",
            "change_20m",
            "change_30m",
            "change_60m",
            "above_mean_30m",
            "above_mean_60m",
            "above_mean_120m",
            "above_mean_360m",
            "above_mean_1440m",
            "day1_level",
            f"day1_rise_{m}m",
            f"day1_smooth_rise_{m}m",
            "day7_level",
            f"day7_rise_{m}m",
            f"daily_median_{m}m",
            f"daily_mean_{m}m",
            f"daily_level_{m}m",
            "daily_mean_30m",
            "daily_mean_60m",
        )
    )
    for m in _MINUTES
)
"""Columns the ridge regressions of each horizon look at."""
_LOCAL_INDEX = np.array(_LOCAL)
_P = len(_LOCAL[0])
_MEDIAN = np.array([COLUMN[f"daily_median_{m}m"] for m in _MINUTES])
_RIDGE_HALF_LIFE_S = np.array([7.0, 1.0]) * DAY_S
_RIDGE_PENALTY = np.array([0.2, 0.06])
"""Fractions of each input's own energy, so that the penalty has no unit."""
_RIDGE_FLOOR = 1e-3
"""And at least this fraction of the energy of the input that has most: an input that begins to be known (the same day a
week ago, on the eighth day) has taught next to nothing, and must not move the first forecast in which it is large."""
_RIDGE_MINIMUM = 30
_REFIT_S = 3600
_LARGEST_WEIGHT, _SMALLEST_WEIGHT = 20.0, 0.02
"""Rows teach in proportion to demand over its daily mean, as errors cost in the series' own unit, within bounds."""
_OUTLIER = 2.0
"""Rows missed by more than this many typical misses teach in inverse proportion (Huber 1964)."""
_TYPICAL_HALF_LIFE_S = 34 * 3600.0
_FORGET = 0.9995
_SHARPNESS = 6.0
_SCALE_HALF_LIFE_S = np.array([168.0, 1.0]) * 3600
_HOURS = 24
_HOUR_HALF_LIFE_DAYS = 7.0
_SCALE_WEIGHT, _HOUR_WEIGHT, _DISAGREEMENT_WEIGHT = 0.38, 0.57, 0.85
"""Of every error scale and of the trees' width; of the errors at this hour of the day; of the experts' standard
deviation. Together about the 95 % width."""
_SCALE_PRIOR = 6.0
"""The global model's width counts as this many observed errors."""
_CLIP = 3.0
"""Log-ratios beyond a factor of twenty teach nothing about the ordinary."""


@dataclass(frozen=True)
class Glance:
    """What is known at one origin of S series: feature rows (S, F), the trees' log-ratios (S, H, 2), the network's
    (S, H)."""

    row: Array
    trees: Array
    network: Array


@dataclass(frozen=True)
class Outlook:
    """The mixture at one origin, in each series' unit: centre and width (S, H), experts and weights (S, H, K)."""

    centre: Array
    width: Array
    experts: Array
    weights: Array

    def part(self, series: slice) -> Self:
        return type(self)(self.centre[series], self.width[series], self.experts[series], self.weights[series])


@dataclass
class OnlineState:
    """Everything remembered of S series in step; ``new`` for series never seen. Arrays are owned by the state."""

    step_s: int
    observed_buckets: int
    gram: Array
    moment: Array
    counts: Array
    ridge: Array
    miss: Array
    regret: Array
    range: Array
    error_sum: Array
    error_weight: Array
    hour_sum: Array
    hour_weight: Array
    pending_local: Array
    pending_log: Array
    pending_floor: Array
    pending_experts: Array
    pending_centre: Array
    pending_width: Array
    pending_anchor: Array

    @classmethod
    def new(cls, step_s: int, series: int = 1) -> Self:
        n, slots = series, steps_ahead(HORIZONS_S[-1], step_s)

        def unknown(*shape: int) -> Array:
            return np.full((n, slots, *shape), np.nan)

        return cls(
            step_s,
            0,
            np.zeros((n, _H, 2, _P, _P)),
            np.zeros((n, _H, 2, _P)),
            np.zeros((n, _H)),
            np.zeros((n, _H, 2, _P)),
            np.zeros((n, _H, 2)),
            np.zeros((n, _H, _K)),
            np.zeros((n, _H)),
            np.zeros((n, _H, len(_SCALE_HALF_LIFE_S))),
            np.zeros((n, _H, len(_SCALE_HALF_LIFE_S))),
            np.zeros((n, _H, _HOURS)),
            np.zeros((n, _H, _HOURS)),
            unknown(_H, _P),
            unknown(),
            unknown(),
            unknown(_H, _K),
            unknown(_H),
            unknown(_H),
            unknown(_H),
        )

    def part(self, series: slice) -> Self:
        """The state of these series only."""
        arrays = (getattr(self, field.name) for field in fields(self)[2:])
        return type(self)(self.step_s, self.observed_buckets, *(array[series].copy() for array in arrays))

    def observe(self, value: Array, glance: Glance) -> tuple[Outlook, Array]:
        """Take the next bucket of every series and look ahead from it.

        ``value`` (S,) may hold NaN (a gap). Returns the outlook and the scores (S, H) that this bucket settled: how
        many widths above its centre the truth came out, NaN where no forecast was due.
        """
        scores = self._settle(value)
        if self.observed_buckets % max(1, _REFIT_S // self.step_s) == 0:
            self._refit()
        outlook = self._outlook(glance)
        self.observed_buckets += 1
        return outlook, scores

    def _settle(self, value: Array) -> Array:
        ahead = _ahead(self.step_s)
        slot = (self.observed_buckets - ahead) % self.pending_log.shape[1]
        is_finite = np.isfinite(self.pending_centre[:, slot, _LANES]) & np.isfinite(value)[:, None]
        series, h = np.nonzero(is_finite & (self.observed_buckets >= ahead))
        scores = np.full(is_finite.shape, np.nan)
        if len(h):
            scores[series, h] = self._learn((series, h), (series, slot[h], h), value[series])
        return scores

    def _learn(self, at: tuple[Index, Index], pending: tuple[Index, Index, Index], value: Array) -> Array:
        """What values (n,) say about the forecasts of them: of series and horizons ``at``, kept in ``pending``."""
        self._learn_ridge(at, pending, value)
        centre = self.pending_centre[pending]
        self._learn_weights(at, self.pending_experts[pending], centre[:, None], value[:, None])
        error = np.abs(value - centre)
        fade = 0.5 ** (self.step_s / _SCALE_HALF_LIFE_S)
        self.error_sum[at] = fade * self.error_sum[at] + error[:, None]
        self.error_weight[at] = fade * self.error_weight[at] + 1.0
        hourly = (*at, self._hour(0))
        fade_of_hour = 0.5 ** (min(self.step_s / 3600, 1.0) / _HOUR_HALF_LIFE_DAYS)
        self.hour_sum[hourly] = fade_of_hour * self.hour_sum[hourly] + error
        self.hour_weight[hourly] = fade_of_hour * self.hour_weight[hourly] + 1.0
        scores: Array = (value - centre) / np.maximum(self.pending_width[pending], 1e-12)
        return scores

    def _learn_ridge(self, at: tuple[Index, Index], pending: tuple[Index, Index, Index], value: Array) -> None:
        local, floor, log = self.pending_local[pending], self.pending_floor[pending[:2]], self.pending_log[pending[:2]]
        ratio = np.clip(np.log(value + floor) - log, -_CLIP, _CLIP)
        # The slow regression (first) corrects the trees, the fast one stands alone.
        wanted = np.column_stack([ratio - self.pending_anchor[pending], ratio])
        missed = np.abs(wanted - (self.ridge[at] @ local[..., None])[..., 0])
        fade = 0.5 ** (self.step_s / _TYPICAL_HALF_LIFE_S)
        miss = self.miss[at] = fade * self.miss[at] + (1 - fade) * missed
        # The floor is a hundredth of the daily mean.
        weight = np.clip(np.exp(log) / (100 * floor), _SMALLEST_WEIGHT, _LARGEST_WEIGHT)[:, None]
        counts = self.counts[at][:, None]
        calm = np.minimum(1.0, _OUTLIER * miss / (1 - fade ** (counts + 1)) / np.maximum(missed, 1e-12))
        weight = weight * np.where(counts >= _RIDGE_MINIMUM, calm, 1.0)
        keep = 0.5 ** (self.step_s / _RIDGE_HALF_LIFE_S)
        outer = local[:, None, :, None] * local[:, None, None, :]
        self.gram[at] = self.gram[at] * keep[:, None, None] + weight[..., None, None] * outer
        self.moment[at] = self.moment[at] * keep[:, None] + (weight * wanted)[..., None] * local[:, None]
        self.counts[at] += 1

    def _learn_weights(self, at: tuple[Index, Index], experts: Array, centre: Array, value: Array) -> None:
        # Half the linearised loss, which finds the best mixture, half the loss itself, which finds the best expert.
        steep = np.sign(centre - value) * (experts - centre)
        regret = 0.5 * (steep + np.abs(experts - value) - np.abs(centre - value))
        self.regret[at] = _FORGET * self.regret[at] + regret
        self.range[at] = _FORGET * self.range[at] + np.abs(regret).max(1) ** 2

    def _refit(self) -> None:
        """Ridge coefficients from the running sums; zero (the last value) until there is enough to fit."""
        energy = np.diagonal(self.gram, axis1=-2, axis2=-1)
        penalty = energy * _RIDGE_PENALTY[:, None] + 1e-9 + _RIDGE_FLOOR * energy.max(axis=-1, keepdims=True)
        system = self.gram + penalty[..., None] * np.eye(_P)
        self.ridge = np.linalg.solve(system, self.moment[..., None])[..., 0]
        self.ridge[self.counts < _RIDGE_MINIMUM] = 0.0

    def _outlook(self, glance: Glance) -> Outlook:
        last, floor = glance.row[:, [COLUMN["last_value"]]], glance.row[:, [COLUMN["floor"]]]
        base = np.log(last + floor)
        local = np.nan_to_num(np.clip(glance.row[:, _LOCAL_INDEX], -_CLIP, _CLIP))
        anchor = np.clip(glance.trees[..., 0], -_CLIP, _CLIP)
        experts = self._experts(glance, local, anchor, base, floor)
        # Experts that always agreed differ by rounding only, which is no reason to prefer any of them.
        logits = -_SHARPNESS * self.regret / np.sqrt(self.range + (1e-6 * (last + floor)) ** 2)[..., None]
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        centre = (weights * experts).sum(-1)
        width = self._width(_trees_width(base, floor, centre, glance.trees), experts.std(-1)) + 0.05 * floor
        slot = self.observed_buckets % self.pending_log.shape[1]
        self.pending_local[:, slot], self.pending_anchor[:, slot] = local, anchor
        self.pending_log[:, slot], self.pending_floor[:, slot] = base[:, 0], floor[:, 0]
        self.pending_experts[:, slot], self.pending_centre[:, slot] = experts, centre
        self.pending_width[:, slot] = width
        return Outlook(centre, width, experts, weights)

    def _experts(self, glance: Glance, local: Array, anchor: Array, base: Array, floor: Array) -> Array:
        """What every expert says, (S, H, K), in the series' unit."""
        ridge = (self.ridge @ local[..., None])[..., 0]
        daily = np.nan_to_num(glance.row[:, _MEDIAN])
        trees = glance.trees[..., 0]
        ratios = np.stack(
            [np.zeros_like(trees), daily, ridge[..., 0] + anchor, ridge[..., 1], trees, glance.network], axis=-1
        )
        predicted = np.exp(base[..., None] + np.clip(ratios, -2 * _CLIP, 2 * _CLIP)) - floor[..., None]
        predicted = np.maximum(predicted, 0.0)
        predicted[..., 0] = glance.row[:, [COLUMN["last_value"]]]
        return np.concatenate([predicted, np.median(predicted, axis=-1, keepdims=True)], axis=-1)

    def _width(self, trees: Array, disagreement: Array) -> Array:
        """Distance (S, H) from the centre to about the 95 % quantile.

        From what the mixture missed lately (a week, an hour) and at the forecast hour of the day, what the trees
        expect, and how much the experts differ at this moment: they agree in calm hours and part before turns.
        """
        prior = _SCALE_PRIOR * trees / 3.0
        errors = (self.error_sum + prior[..., None]) / (self.error_weight + _SCALE_PRIOR)
        at_hour = (slice(None), _LANES, self._hour(_ahead(self.step_s)))
        hourly = (self.hour_sum[at_hour] + prior) / (self.hour_weight[at_hour] + _SCALE_PRIOR)
        width: Array = _SCALE_WEIGHT * (errors.sum(-1) + trees) + _HOUR_WEIGHT * hourly
        return width + _DISAGREEMENT_WEIGHT * disagreement

    def _hour(self, ahead: Index | int) -> Index | int:
        """Which of the day's hours, counted from the first bucket of this state, the bucket ``ahead`` lies in."""
        return (self.observed_buckets + ahead) * self.step_s // 3600 % _HOURS


def trees_outlook(rows: Array, trees: Array, network: Array) -> tuple[Array, Array]:
    """Centre and width (n, H) from the global model alone, for rows (n, F) of series without a state."""
    last, floor = rows[:, [COLUMN["last_value"]]], rows[:, [COLUMN["floor"]]]
    base = np.log(last + floor)
    middle = np.clip((trees[..., 0] + network) / 2, -2 * _CLIP, 2 * _CLIP)
    centre = np.maximum(np.exp(base + middle) - floor, 0.0)
    return centre, _trees_width(base, floor, centre, trees) + 0.05 * floor


def _trees_width(base: Array, floor: Array, centre: Array, trees: Array) -> Array:
    """How far above ``centre`` the trees' 95 % quantile lies: as they place it, and moved along with the centre."""
    upper = np.exp(base + np.clip(trees[..., 1], -2 * _CLIP, 2 * _CLIP)) - floor
    moved = (centre + floor) * np.exp(trees[..., 1] - trees[..., 0]) - floor
    return np.maximum(0.5 * upper + 0.5 * moved - centre, 0.0)


@functools.cache
def _ahead(step_s: int) -> Index:
    return np.array([steps_ahead(h, step_s) for h in HORIZONS_S])
