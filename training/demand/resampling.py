"""Paired resampling of two models' scores: how far a difference may come from chance.

Blocks of four hours are drawn within services, the same ones for both models, and services too where there are enough
(Efron & Tibshirani 1993, bootstrap of clusters).
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.rolling import GPUS
from kopt.training.demand.evaluate import MATCHED_VIOLATION, Score

Array = NDArray[np.float64]

ACCURACY = "accuracy"
LENDING = "lending"
SAFETY = "safety"


@dataclass(frozen=True)
class Pair:
    """Both models' scores of one service at one horizon, and each metric for the blocks as they are (entry 0) and
    resampled (entries 1…R), by the same draws for both; shape (R+1,)."""

    champion: Score
    challenger: Score
    drawn: Mapping[str, tuple[Array, Array]]

    @classmethod
    def of(cls, champion: Score, challenger: Score, resamples: int, seed: int) -> "Pair":
        if not np.array_equal(champion.rows, challenger.rows):
            raise ValueError(f"{champion.series}: champion and challenger were scored on different rows")
        rng = np.random.default_rng([seed, zlib.crc32(champion.series.encode()), champion.horizon_s])
        blocks = len(champion.rows)
        weight = np.vstack([np.ones((1, blocks)), rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=resamples)])
        metrics = {ACCURACY: _errors, LENDING: _lending, SAFETY: _violations}
        return cls(champion, challenger, {k: (f(champion, weight), f(challenger, weight)) for k, f in metrics.items()})

    @property
    def units(self) -> int:
        return len(self.champion.rows)

    @property
    def horizon_s(self) -> int:
        return self.champion.horizon_s


def _errors(score: Score, weight: Array) -> Array:
    return _ratio(weight @ score.error, weight @ score.rows)


def _violations(score: Score, weight: Array) -> Array:
    return _ratio(weight @ score.violations[0.99], weight @ score.rows)


def _lending(score: Score, weight: Array) -> Array:
    """Share of the oracle's lending with the factor that matches 1 % violation found anew in every draw."""
    moments, need = score.moments, score.moments.need()
    ratio = moments.truth / moments.forecast
    order = np.argsort(ratio)
    array = np.empty(len(weight))
    for i, drawn in enumerate(weight):
        each = drawn[moments.block]
        reached = np.cumsum(each[order])
        factor = ratio[order][np.searchsorted(reached, (1 - MATCHED_VIOLATION) * reached[-1])]
        lent = GPUS - np.clip(np.ceil(moments.forecast * factor - 1e-9), 1, GPUS)
        array[i] = (each @ lent) / max(float(each @ (GPUS - need)), 1.0)
    return array


def _ratio(upper: Array, lower: Array) -> Array:
    """Where a draw holds no row at all, the ratio of the data as they are."""
    whole: Array = np.where(lower > 0, upper / np.maximum(lower, 1e-12), upper[0] / lower[0])
    return whole


@dataclass(frozen=True)
class Draws:
    """Metrics of several services drawn together; ``weight`` (R+1, services) says how often each was drawn."""

    matched: Sequence[Pair]
    weight: Array
    freedom: int
    violation_limit: float

    @classmethod
    def of(cls, matched: Sequence[Pair], *, clustered_from: int, violation_limit: float, seed: int) -> "Draws":
        count = len(matched)
        resamples = len(matched[0].drawn[ACCURACY][0]) - 1
        weight = np.ones((resamples + 1, count))
        clustered = len({pair.champion.series for pair in matched}) >= clustered_from
        if clustered:
            rng = np.random.default_rng(seed)
            weight[1:] = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
        units = count if clustered else sum(pair.units for pair in matched)
        return cls(matched, weight, max(1, units - 1), violation_limit)

    def changes(self) -> dict[str, Array]:
        """Improvement by metric, shape (R+1,): geometric-mean error ratio less one, lending, violations avoided."""
        error, lent, short = (self._columns(metric) for metric in (ACCURACY, LENDING, SAFETY))
        ratio = np.log(np.maximum(error[0], 1e-12) / np.maximum(error[1], 1e-12))
        allowed = np.maximum(self._mean(short[0]), self.violation_limit)
        return {
            ACCURACY: np.expm1(self._mean(ratio)),
            LENDING: self._mean(lent[1] - lent[0]),
            SAFETY: allowed - self._mean(short[1]),
        }

    def interval(self, change: Array, level: float) -> tuple[float, float]:
        """Around the change as it is, by its resampled deviation; either end is overstepped with chance ``level``."""
        reach = _student(1 - level, self.freedom) * float(change[1:].std())
        return float(change[0]) - reach, float(change[0]) + reach

    def levels(self, metric: str) -> tuple[float, float]:
        champion, challenger = self._columns(metric)
        return float(champion[0].mean()), float(challenger[0].mean())

    def _columns(self, metric: str) -> tuple[Array, Array]:
        """Both models' metric, (R+1, services) each."""
        both = [pair.drawn[metric] for pair in self.matched]
        return np.column_stack([array for array, _ in both]), np.column_stack([other for _, other in both])

    def _mean(self, values: Array) -> Array:
        mean: Array = (values * self.weight).sum(1) / self.weight.sum(1)
        return mean


def _student(probability: float, freedom: int) -> float:
    """Quantile of Student's t by the Cornish-Fisher expansion around the normal (Abramowitz & Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(probability)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
