"""Predicted against actual: coverage, error, drift and when to distrust a model. Pure functions on arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.reason import Reason
from kopt.serving.measured.health import lowest_coverage

Floats = NDArray[np.float64]

WINDOW = 864
"""Matched predictions that count: a day of five-minute buckets at three horizons."""
LEAST = 96
"""Fewer matches than this raise no alarm; also the newest ones that decide on recovery."""
_SIGMAS = 4.0
_WORSE, _WORSE_END = 1.25, 1.1
_NOTHING = 0.005
"""An error below half a percent of the demand raises no alarm, even where the last value is better."""
_BINS = 10
PSI_NOTICE = 0.25
"""Siddiqi, *Credit Risk Scorecards* (2006): above 0.25 a population has shifted."""


@dataclass(frozen=True)
class Matched:
    """Matched predictions of one series, oldest first, all of shape (n,).

    ``upper`` is the predicted quantile ``quantile``, ``last`` the value the series had when the prediction was made.
    """

    actual: Floats
    median: Floats
    upper: Floats
    last: Floats
    quantile: float

    def __len__(self) -> int:
        return len(self.actual)

    def newest(self, count: int) -> "Matched":
        return Matched(
            self.actual[-count:], self.median[-count:], self.upper[-count:], self.last[-count:], self.quantile
        )

    @property
    def coverage(self) -> float | None:
        return float((self.actual <= self.upper).mean()) if len(self) else None

    @property
    def error(self) -> float | None:
        return _wape(self.actual, self.median)

    @property
    def error_last_value(self) -> float | None:
        return _wape(self.actual, self.last)


def _wape(actual: Floats, predicted: Floats) -> float | None:
    total = float(actual.sum())
    return float(np.abs(actual - predicted).sum()) / total if total > 0 else None


def alarm(matched: Matched, alarmed: bool) -> tuple[bool, tuple[Reason, ...]]:
    """Whether to distrust the model for this series, given whether it was distrusted before.

    It starts when, over the window and still over the newest ``LEAST`` matches, too many actuals lie above the
    quantile or the model is worse than the last value. It ends when the newest are well inside both bounds: the
    stricter bounds, and the newest deciding both times, keep it from flapping.
    """
    newest = matched.newest(LEAST)
    if len(newest) < LEAST:
        return alarmed, ()
    if alarmed:
        reasons = _faults(newest, _SIGMAS / 2, _WORSE_END)
        return bool(reasons), reasons
    reasons = _faults(matched.newest(WINDOW), _SIGMAS, _WORSE)
    starts = bool(reasons) and bool(_faults(newest, _SIGMAS, _WORSE))
    return starts, reasons if starts else ()


def _faults(window: Matched, sigmas: float, worse: float) -> tuple[Reason, ...]:
    result = (_undercovered(window, sigmas), _worse(window, worse))
    return tuple(reason for reason in result if reason is not None)


def _undercovered(window: Matched, sigmas: float) -> Reason | None:
    coverage, q = window.coverage or 0.0, window.quantile
    bound = lowest_coverage(q, len(window), sigmas)
    if coverage >= bound:
        return None
    text = (
        f"{coverage:.1%} of the last {len(window)} actuals were at or under the predicted quantile {q:g}; at least "
        f"{bound:.1%} are expected."
    )
    return Reason("COVERAGE_LOW", text, {"coverage": coverage, "expected": bound, "matched": len(window)})


def _worse(window: Matched, ratio: float) -> Reason | None:
    error, last = window.error, window.error_last_value
    if error is None or last is None or error <= ratio * last + _NOTHING:
        return None
    text = f"Over the last {len(window)} actuals the model's error is {error:.3g}, the last value's {last:.3g}."
    return Reason("WORSE_THAN_LAST_VALUE", text, {"error": error, "error_last_value": last, "matched": len(window)})


def population_stability(values: Floats, newest: int = 288) -> float | None:
    """PSI of the ``newest`` values against those before, in ten bins of equal share of the latter.

    None with less than a day of either. 0 is no shift; bins are smoothed by half a count.
    """
    finite = values[np.isfinite(values)]
    before, now = finite[:-newest], finite[-newest:]
    if len(before) < newest or len(now) < newest:
        return None
    if before.min() == before.max() and now.min() == now.max() == before.max():
        return 0.0
    edges = np.unique(np.quantile(before, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = len(edges) + 1
    expected = (np.bincount(np.searchsorted(edges, before), minlength=bins) + 0.5) / (len(before) + 0.5 * bins)
    array = (np.bincount(np.searchsorted(edges, now), minlength=bins) + 0.5) / (len(now) + 0.5 * bins)
    return float(((array - expected) * np.log(array / expected)).sum())
