"""By how much steps became slower, as an interval that holds at every look: a confidence sequence.

Logarithms of step times before and after are compared as two normal samples with one unknown variance. With a normal
mixture over the effect in standard deviations, and the right Haar prior on mean and deviation, the Bayes factor of each
difference is a martingale where that difference is the true one, so Ville's inequality bounds the chance that the
interval *ever* leaves it out (Robbins 1970; Johari et al. 2022, "Always valid inference", Operations Research 70(3);
for the unknown variance Pérez-Ortiz et al. 2024, "E-statistics, group invariance and anytime-valid testing", Annals of
Statistics 52(4)). It may therefore be looked at after every step and acted upon.

Step times are neither normal nor independent. Outliers (a checkpoint is written) are drawn in to the bulk of the
times, and the number of observations is lowered by their autocorrelation; both are approximations, which
``benchmarks/rightsizing.py`` holds against noise of other kinds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

_EFFECT_VARIANCE = 1.0
"""Of the mixture, in variances of one observation."""
_OUTLIER = 4.0
_SMALLEST_SPREAD = 0.002
_MOST_CORRELATED = 0.9


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Ratios less one: .05 is five per cent more time for a step."""

    low: float
    estimate: float
    high: float


def slowdown(before: Sequence[float], after: Sequence[float], alpha: float) -> Slowdown:
    """Of mean log step times, with an interval that leaves the truth out at any time with probability ``alpha`` at
    most. ``before`` and ``after``: step times in seconds, positive, in their order."""
    if len(before) < 3 or len(after) < 2:
        return Slowdown(-1.0, 0.0, math.inf)
    first, second = _winsorized(before), _winsorized(after)
    difference = fmean(second) - fmean(first)
    half = _half_width(first, second, alpha)
    return Slowdown(_ratio(difference - half), _ratio(difference), _ratio(difference + half))


def _half_width(first: Sequence[float], second: Sequence[float], alpha: float) -> float:
    residuals = [_centred(first), _centred(second)]
    r = _autocorrelation(residuals)
    # What means and variances of correlated observations are worth (Bayley and Hammersley 1946).
    of_means, of_squares = (1 - r) / (1 + r), (1 - r * r) / (1 + r * r)
    n, m, count = of_means * len(first), of_means * len(second), len(first) + len(second)
    freedom, together = of_squares * count - 2, n * m / (n + m)
    if freedom < 1 or (unbiased := count - 2 / of_means) < 1:
        return math.inf
    squares = sum(value * value for part in residuals for value in part)
    variance = max(squares / unbiased, _SMALLEST_SPREAD**2)
    spread = 1 + together * _EFFECT_VARIANCE
    # The Bayes factor at t is below 1/alpha for all t up to this.
    bound = (spread / alpha**2) ** (1 / (freedom + 1))
    if bound >= spread:
        return math.inf
    return math.sqrt(freedom * (bound - 1) / (1 - bound / spread) * variance / together)


def _winsorized(times: Sequence[float]) -> list[float]:
    """Logarithms, with those far from the bulk drawn in to its edge; 1.4826 makes a standard deviation of the median
    distance (Hampel 1974)."""
    logs = [math.log(each) for each in times]
    middle = median(logs)
    spread = _OUTLIER * max(1.4826 * median(abs(each - middle) for each in logs), _SMALLEST_SPREAD)
    return [min(max(each, middle - spread), middle + spread) for each in logs]


def _centred(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


def _autocorrelation(parts: Sequence[Sequence[float]]) -> float:
    """Of neighbours, from 0 to ``_MOST_CORRELATED``, without the bias of short series (Kendall 1954)."""
    squares = sum(value * value for part in parts for value in part)
    if squares == 0:
        return 0.0
    products = sum(left * right for part in parts for left, right in pairwise(part))
    r = products / squares
    return min(max(r + (1 + 3 * r) / sum(map(len, parts)), 0.0), _MOST_CORRELATED)


def _ratio(log_ratio: float) -> float:
    return math.inf if log_ratio > 700 else math.exp(log_ratio) - 1
