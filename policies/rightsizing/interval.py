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


@dataclass(frozen=True, slots=True)
class Summary:
    """Of log step times in their order, outliers drawn in: sums of squares and of products of neighbours are about
    the mean."""

    count: int
    mean: float
    squares: float
    products: float


def summary(times: Sequence[float]) -> Summary:
    """Of step times in seconds, positive and at least one."""
    logs = _winsorized(times)
    mean = fmean(logs)
    rest = [value - mean for value in logs]
    squares, products = sum(value * value for value in rest), sum(left * right for left, right in pairwise(rest))
    return Summary(len(logs), mean, squares, products)


def slowdown(before: Summary | None, after: Summary | None, alpha: float) -> Slowdown:
    """Of mean log step times, with an interval that leaves the truth out at any time with probability ``alpha`` at
    most; an endless one where there is too little to tell, or nothing."""
    if before is None or after is None or before.count < 3 or after.count < 2:
        return Slowdown(-1.0, 0.0, math.inf)
    difference, half = after.mean - before.mean, _half_width(before, after, alpha)
    return Slowdown(_ratio(difference - half), _ratio(difference), _ratio(difference + half))


def _half_width(first: Summary, second: Summary, alpha: float) -> float:
    r = _autocorrelation(first, second)
    # What means and variances of correlated observations are worth (Bayley and Hammersley 1946).
    of_means, of_squares = (1 - r) / (1 + r), (1 - r * r) / (1 + r * r)
    n, m, count = of_means * first.count, of_means * second.count, first.count + second.count
    freedom, together = of_squares * count - 2, n * m / (n + m)
    if freedom < 1 or (unbiased := count - 2 / of_means) < 1:
        return math.inf
    variance = max((first.squares + second.squares) / unbiased, _SMALLEST_SPREAD**2)
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


def _autocorrelation(first: Summary, second: Summary) -> float:
    """Of neighbours, from 0 to ``_MOST_CORRELATED``, without the bias of short series (Kendall 1954)."""
    squares = first.squares + second.squares
    if squares == 0:
        return 0.0
    r = (first.products + second.products) / squares
    return min(max(r + (1 + 3 * r) / (first.count + second.count), 0.0), _MOST_CORRELATED)


def _ratio(log_ratio: float) -> float:
    return math.inf if log_ratio > 700 else math.exp(log_ratio) - 1
