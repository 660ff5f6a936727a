"""How intervals have held against measurements: coverage, error, alarm and the factor that would have held. Pure.

While an alarm lasts, answers are widened by split conformal prediction (Lei et al., Distribution-free predictive
inference for regression, 2018): the factor by which the newest intervals would have had to be wider to cover as often
as they promise.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason

WINDOW = 200
"""Comparisons that count, the newest."""
LEAST = 12
"""Fewer raise no alarm; also the newest ones that decide on recovery."""
_SIGMAS = 3.0
_SLACK = 0.02
MOST_WIDENING = 8.0
"""An interval that would have to be wider says that what is measured is something else than what is predicted."""


@dataclass(frozen=True)
class Comparison:
    """One answer beside its measurement, all in ``unit`` and above 0: ``[low, high]`` holds the truth with
    ``probability``. ``owner`` is the caller or namespace that measured, ``at_s`` Unix time.

    Raises ValueError for amounts that cannot be.
    """

    owner: str
    subject: str
    role: str
    version: str
    at_s: float
    unit: str
    value: float
    low: float
    high: float
    probability: float
    measured: float

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.value <= self.high < math.inf and 0 < self.measured < math.inf):
            raise ValueError("an interval and its measurement are finite and above 0")

    @property
    def covered(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def missed_by(self) -> float:
        """The factor by which the interval would have had to reach further; at most 1 where it covers."""
        return max(self.low / self.measured, self.measured / self.high)


@dataclass(frozen=True)
class IntervalHealth:
    """Of one model version. ``error`` is the median of measured over predicted or its inverse, less 1: .1 is 10 %
    off; ``bias`` the median of measured over predicted, less 1. None before the first comparison."""

    compared: int
    probability: float
    coverage: float | None
    error: float | None
    bias: float | None
    alarm: bool
    widening: float
    """Factor for answers while the alarm lasts, else 1."""
    reasons: tuple[Reason, ...] = ()


def evaluate(comparisons: Sequence[Comparison]) -> IntervalHealth:
    """The health of the newest ``WINDOW`` of one version's comparisons, oldest first."""
    window = comparisons[-WINDOW:]
    if not window:
        return IntervalHealth(0, 0.0, None, None, None, False, 1.0)
    ratios = [math.log(each.measured / each.value) for each in window]
    coverage, probability = coverage_of(window), window[-1].probability
    # The newest decide as well, so that an alarm ends once the model holds again.
    alarm = _too_low(window) and _too_low(window[-LEAST:])
    return IntervalHealth(
        len(window),
        probability,
        coverage,
        math.expm1(statistics.median(map(abs, ratios))),
        math.expm1(statistics.median(ratios)),
        alarm,
        widening(window) if alarm else 1.0,
        (_low(window),) if alarm else (),
    )


def coverage_of(comparisons: Sequence[Comparison]) -> float:
    return statistics.fmean(each.covered for each in comparisons)


def widening(comparisons: Sequence[Comparison]) -> float:
    """The conformal factor: with it intervals cover the next measurement as often as promised, if that is like these.
    At least 1, at most ``MOST_WIDENING``."""
    missed = sorted(each.missed_by for each in comparisons)
    rank = math.ceil((len(missed) + 1) * comparisons[-1].probability)
    return min(max(missed[min(rank, len(missed)) - 1], 1.0), MOST_WIDENING)


def lowest_coverage(probability: float, count: int, sigmas: float) -> float:
    """The share of ``count`` measurements that an honest promise of ``probability`` covers, less ``sigmas`` standard
    deviations and a little slack."""
    return probability - _SLACK - sigmas * math.sqrt(probability * (1 - probability) / count)


def _bound(comparisons: Sequence[Comparison]) -> float:
    return lowest_coverage(statistics.fmean(each.probability for each in comparisons), len(comparisons), _SIGMAS)


def _too_low(comparisons: Sequence[Comparison]) -> bool:
    return len(comparisons) >= LEAST and coverage_of(comparisons) < _bound(comparisons)


def _low(window: Sequence[Comparison]) -> Reason:
    coverage, expected = coverage_of(window), _bound(window)
    text = (
        f"{coverage:.1%} of the last {len(window)} measurements lay in the predicted interval; at least "
        f"{expected:.1%} are expected."
    )
    return Reason("INTERVALS_MISS", text, {"coverage": coverage, "expected": expected, "matched": len(window)})
