"""What a series teaches about itself: an online mixture of experts with a running scale of its errors.

Per horizon five experts are mixed: the last value, the rise that this time of day usually brings, two ridge regressions
on the series' own past (slow and fast forgetting), the global trees and the global network. Weights follow discounted
regrets of the absolute loss (Bernstein online aggregation, Wintenberger 2017, arXiv:1404.1356): the mixture is never
much worse than the best expert, whichever that is for this service. Each forecast is judged only once its bucket has
been observed. The state has constant size and is plain arrays.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.features.demand import COLUMN, DAY_S, HORIZONS_S, steps_ahead

Array = NDArray[np.float64]

EXPERTS = ("last", "daily", "ridge_slow", "ridge_fast", "trees", "network")
_H, _K = len(HORIZONS_S), len(EXPERTS)
_MINUTES = tuple(h // 60 for h in HORIZONS_S)
_LOCAL = tuple(
    tuple(
        COLUMN[name]
        for name in (
            "change_10m", "change_20m", "change_30m", "change_60m", "above_mean_30m", "above_mean_60m",
            "above_mean_120m", "above_mean_360m", "above_mean_1440m", "day1_level", f"day1_rise_{m}m",
            f"day1_smooth_rise_{m}m", "day7_level", f"day7_rise_{m}m", f"daily_median_{m}m", f"daily_mean_{m}m",
            f"daily_level_{m}m", "daily_mean_30m", "daily_mean_60m",
        )
    )
    for m in _MINUTES
)  # fmt: skip
"""Columns the ridge regressions of each horizon look at."""
_LOCAL_INDEX = np.array(_LOCAL)
_P = len(_LOCAL[0])
_MEDIAN = np.array([COLUMN[f"daily_median_{m}m"] for m in _MINUTES])
_RIDGE_HALF_LIFE_S = np.array([7.0, 1.0]) * DAY_S
_RIDGE_PENALTY = np.array([0.2, 0.06])
"""Fractions of each input's own energy, so that the penalty has no unit."""
_RIDGE_MINIMUM = 30
_REFIT_S = 3600
_FORGET = 0.999
_SHARPNESS = 6.0
_SCALE_HALF_LIFE_S = np.array([24.0, 1.0]) * 3600
_SCALE_PRIOR = 6.0
"""The global model's width counts as this many observed errors."""
_CLIP = 3.0
"""Log-ratios beyond a factor of twenty teach nothing about the ordinary."""


@dataclass(frozen=True)
class Glance:
    """What is known at one origin: its feature row (F,), the trees' log-ratios (H, 2), the network's (H,)."""

    row: Array
    trees: Array
    network: Array


@dataclass(frozen=True)
class Outlook:
    """The mixture at one origin in the series' unit: ``centre`` and ``width`` (H,), experts and weights (H, K)."""

    centre: Array
    width: Array
    experts: Array
    weights: Array


@dataclass
class OnlineState:
    """Everything remembered of one series; ``new`` for a series never seen. Arrays are owned by the state."""

    step_s: int
    seen: int
    gram: Array
    moment: Array
    counts: Array
    ridge: Array
    regret: Array
    range: Array
    error_sum: Array
    error_weight: Array
    pending_local: Array
    pending_log: Array
    pending_floor: Array
    pending_experts: Array
    pending_centre: Array
    pending_width: Array

    @classmethod
    def new(cls, step_s: int) -> "OnlineState":
        slots, nan = steps_ahead(HORIZONS_S[-1], step_s), np.nan
        return cls(
            step_s, 0, np.zeros((_H, 2, _P, _P)), np.zeros((_H, 2, _P)), np.zeros(_H), np.zeros((_H, 2, _P)),
            np.zeros((_H, _K)), np.zeros(_H), np.zeros((_H, 2)), np.zeros((_H, 2)), np.full((slots, _H, _P), nan),
            np.full(slots, nan), np.full(slots, nan), np.full((slots, _H, _K), nan), np.full((slots, _H), nan),
            np.full((slots, _H), nan),
        )  # fmt: skip

    def observe(self, value: float, glance: Glance) -> tuple[Outlook, Array]:
        """Take the next bucket and look ahead from it.

        ``value`` may be NaN (a gap). Returns the outlook and the scores (H,) that this bucket settled: how many widths
        above its centre the truth came out, NaN where no forecast was due.
        """
        scores = self._settle(value)
        if self.seen % max(1, _REFIT_S // self.step_s) == 0:
            self._refit()
        outlook = self._look_ahead(glance)
        self.seen += 1
        return outlook, scores

    def _settle(self, value: float) -> Array:
        scores = np.full(_H, np.nan)
        if not np.isfinite(value):
            return scores
        slots, lane = len(self.pending_log), np.arange(_H)
        slot = (self.seen - _ahead(self.step_s)) % slots
        due = np.isfinite(self.pending_centre[slot, lane]) & (self.seen >= _ahead(self.step_s))
        for h in np.flatnonzero(due):
            scores[h] = self._learn(int(h), int(slot[h]), value)
        return scores

    def _learn(self, h: int, slot: int, value: float) -> float:
        centre, local = self.pending_centre[slot, h], self.pending_local[slot, h]
        ratio = np.log(value + self.pending_floor[slot]) - self.pending_log[slot]
        keep = 0.5 ** (self.step_s / _RIDGE_HALF_LIFE_S)
        self.gram[h] = self.gram[h] * keep[:, None, None] + np.outer(local, local)
        self.moment[h] = self.moment[h] * keep[:, None] + local * float(np.clip(ratio, -_CLIP, _CLIP))
        self.counts[h] += 1
        regret = np.sign(centre - value) * (self.pending_experts[slot, h] - centre)
        self.regret[h] = _FORGET * self.regret[h] + regret
        self.range[h] = _FORGET * self.range[h] + float(np.abs(regret).max()) ** 2
        fade = 0.5 ** (self.step_s / _SCALE_HALF_LIFE_S)
        self.error_sum[h] = fade * self.error_sum[h] + abs(value - centre)
        self.error_weight[h] = fade * self.error_weight[h] + 1.0
        return float((value - centre) / max(self.pending_width[slot, h], 1e-12))

    def _refit(self) -> None:
        """Ridge coefficients from the running sums; zero (the last value) until there is enough to fit."""
        energy = np.diagonal(self.gram, axis1=2, axis2=3)
        penalty = energy * _RIDGE_PENALTY[:, None] + 1e-9 + 1e-6 * energy.max(axis=2, keepdims=True)
        system = self.gram + penalty[..., None] * np.eye(_P)
        self.ridge = np.linalg.solve(system, self.moment[..., None])[..., 0]
        self.ridge[self.counts < _RIDGE_MINIMUM] = 0.0

    def _look_ahead(self, glance: Glance) -> Outlook:
        last, floor = glance.row[COLUMN["last_value"]], glance.row[COLUMN["floor"]]
        base = np.log(last + floor)
        local = np.nan_to_num(np.clip(glance.row[_LOCAL_INDEX], -_CLIP, _CLIP))
        ridge = (self.ridge @ local[..., None])[..., 0]
        daily = np.nan_to_num(glance.row[_MEDIAN])
        ratios = np.column_stack([np.zeros(_H), daily, ridge, glance.trees[:, 0], glance.network])
        experts = np.maximum(np.exp(base + np.clip(ratios, -2 * _CLIP, 2 * _CLIP)) - floor, 0.0)
        experts[:, 0] = last
        logits = -_SHARPNESS * self.regret / np.sqrt(self.range + 1e-300)[:, None]
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        centre = (weights * experts).sum(1)
        width = self._width(_trees_width(base, floor, centre, glance.trees)) + 0.05 * floor
        self._remember(local, base, floor, experts, centre, width)
        return Outlook(centre, width, experts, weights)

    def _width(self, trees: Array) -> Array:
        """Distance from the centre to about the 95 % quantile: half from recent errors, half from the trees."""
        prior = trees[:, None] / 3.0
        errors = (self.error_sum + _SCALE_PRIOR * prior) / (self.error_weight + _SCALE_PRIOR)
        width: Array = 0.5 * (2.0 * errors[:, 0] + errors[:, 1]) + 0.5 * trees
        return width

    def _remember(self, local: Array, base: float, floor: float, experts: Array, centre: Array, width: Array) -> None:
        slot = self.seen % len(self.pending_log)
        self.pending_local[slot], self.pending_log[slot], self.pending_floor[slot] = local, base, floor
        self.pending_experts[slot], self.pending_centre[slot] = experts, centre
        self.pending_width[slot] = width


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


def _ahead(step_s: int) -> NDArray[np.int64]:
    return np.array([steps_ahead(h, step_s) for h in HORIZONS_S])
