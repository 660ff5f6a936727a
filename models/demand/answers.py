"""From an outlook to predictions: refusals, fallbacks, tail cap, other horizons, confidence and reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, DAY_S, HORIZONS_S, fill_gaps
from kopt.models.demand.calibration import LEVELS, between
from kopt.models.demand.explanation import mixture_reason
from kopt.models.demand.memory import SeriesMemory
from kopt.models.demand.table import TrainingTable

Array = NDArray[np.float64]

FURTHEST_S = 7200.0
"""Beyond twice the longest trained horizon nothing is known about the errors."""
STALE_S = 900.0
"""Metrics older than this (and than three steps) say nothing about now."""
CAP = 2.0
"""Upper quantiles end at this multiple of the trailing seven days' maximum: uncapped tails explode on some series."""
INTERVAL = (LEVELS[0], 0.95)
DEFAULT_EARLY = np.array([[-0.8, 0.0, 0.5, 0.8, 1.5]] * len(HORIZONS_S))
"""Log-ratios to the last value at ``LEVELS``, where no table could teach them."""


@dataclass(frozen=True)
class Question:
    """A series on the grid and what is asked of it."""

    series: DemandSeries
    horizons_s: tuple[float, ...]
    quantiles: tuple[float, ...]
    now_s: float | None
    model: ModelVersion

    @property
    def end_s(self) -> float:
        """When the last bucket ended."""
        return self.series.start_s + len(self.series) * self.series.step_s


def refuse(question: Question) -> tuple[Prediction, ...] | None:
    """Refusals for a question that cannot be answered at all; None otherwise.

    Raises ValueError for quantiles outside [0.01, 0.999]: that is a mistake of the program that asks.
    """
    if not question.quantiles or not all(0.01 <= q <= 0.999 for q in question.quantiles):
        raise ValueError(f"quantiles {question.quantiles} must lie in [0.01, 0.999]")
    if np.isfinite(question.series.value).any():
        return None
    text = "Every bucket of the history is a gap; nothing can be said before a value has been collected."
    return tuple(_refusal(question, h, Reason("NO_DATA", text)) for h in question.horizons_s)


def history_s(series: DemandSeries) -> float:
    """Seconds from the first known bucket to the end."""
    return float(len(series) - int(np.argmax(np.isfinite(series.value)))) * series.step_s


def staleness_s(question: Question) -> float | None:
    """Age of the last known bucket in seconds where that is too old to forecast from, else None."""
    finite_buckets = np.flatnonzero(np.isfinite(question.series.value))
    unknown_s = (len(question.series) - 1 - finite_buckets[-1]) * question.series.step_s
    since_end_s = 0.0
    if question.now_s is not None and question.series.start_known:
        since_end_s = max(0.0, question.now_s - question.end_s)
    age_s = float(unknown_s + since_end_s)
    return age_s if age_s > max(STALE_S, 3 * question.series.step_s) else None


def static(question: Question, age_s: float) -> tuple[Prediction, ...]:
    """Stale data: the spread of the past week stands for whatever is happening now."""
    week = question.series.value[-int(7 * DAY_S // question.series.step_s) :]
    recent = week[np.isfinite(week)]
    if not len(recent):
        recent = question.series.value[np.isfinite(question.series.value)][-1:]
    text = (
        f"The newest value is {age_s / 60:.0f} minutes old; the past week's distribution stands in for a forecast. "
        "Check the collection of this service's metrics."
    )
    reason = Reason("STALE", text, {"age_s": age_s})
    levels = np.quantile(recent, LEVELS)
    levels[-1] = recent.max()
    return tuple(_predict(question, h, levels, 0.1, (reason,), fallback=True) for h in question.horizons_s)


def early_ratios(table: TrainingTable) -> Array:
    """Pooled log-ratios to the last value at ``LEVELS`` per horizon, (H, levels): what is recent of a new service."""
    ratios = table.log_ratios()
    return np.array(
        [np.nanquantile(column, LEVELS) if np.isfinite(column).any() else DEFAULT_EARLY[0] for column in ratios.T]
    )


def early(question: Question, ratios: Array) -> tuple[Prediction, ...]:
    """Less than a day of history: the last value with the pooled spread of other services."""
    hours = history_s(question.series) / 3600
    text = f"Only {hours:.1f} hours of history: the last value with the spread of other services; a day is needed."
    reason = Reason("SHORT_HISTORY", text, {"history_hours": round(hours, 2)})
    values = early_values(question.series, np.array([len(question.series) - 1]), ratios, LEVELS)[0]
    return tuple(
        _predict(question, h, at_horizon(values, h), 0.3, (reason,), fallback=True)
        if h <= FURTHEST_S
        else _too_far(question, h)
        for h in question.horizons_s
    )


def early_values(series: DemandSeries, origins: NDArray[np.int64], ratios: Array, quantiles: Sequence[float]) -> Array:
    """Quantiles (n, H, Q) from the last value at each origin and pooled log-ratios."""
    filled = fill_gaps(series.value)[origins]
    return filled[:, None, None] * np.exp(between(ratios, quantiles))[None]


def answer(question: Question, memory: SeriesMemory) -> tuple[Prediction, ...]:
    """Predictions from a memory that is up to date."""
    outlook, calibration = memory.outlook, memory.calibration
    if outlook is None or calibration is None:
        raise ValueError("the memory has not seen this series")
    values = outlook.centre[0, :, None] + outlook.width[0, :, None] * calibration.current[0]
    peak = float(memory.row[COLUMN["max_7d"]])
    values = bounded(values, np.full(len(values), peak), LEVELS)
    return tuple(
        _too_far(question, h) if h > FURTHEST_S else _answer(question, memory, values, peak, h)
        for h in question.horizons_s
    )


def _answer(question: Question, memory: SeriesMemory, values: Array, peak: float, horizon_s: float) -> Prediction:
    levels = at_horizon(values, horizon_s)
    median, upper = float(levels[LEVELS.index(0.5)]), float(levels[LEVELS.index(0.95)])
    # Sure of itself: a narrow interval, and a week in which the mixture has been judged.
    history_weeks = min(1.0, history_s(question.series) / (7 * DAY_S))
    confidence = round((0.5 + 0.5 * history_weeks) / (1.0 + (upper - median) / max(median, 1e-9)), 3)
    reasons = [mixture_reason(memory, horizon_s)]
    if levels[-1] >= CAP * peak * (1 - 1e-9) and peak > 0:
        text = f"The upper quantiles end at {CAP:g} times the past week's maximum of {peak:.4g}."
        reasons.append(Reason("TAIL_CAP", text, {"max_7d": peak}))
    return _predict(question, horizon_s, levels, confidence, tuple(reasons))


def bounded(values: Array, peak: Array, quantiles: Sequence[float]) -> Array:
    """``values`` (…, Q) made non-negative and non-decreasing in the quantile, ending at the cap over ``peak`` (…)."""
    order = np.argsort(quantiles)
    capped = np.clip(values[..., order], 0.0, np.maximum(CAP * peak, 0.0)[..., None])
    result = np.empty_like(values)
    result[..., order] = np.maximum.accumulate(capped, axis=-1)
    return result


def trailing_max(series: DemandSeries) -> Array:
    """Maximum of the last seven days at every bucket, (n,)."""
    window = int(7 * DAY_S // series.step_s)
    filled = fill_gaps(series.value)
    if len(filled) <= window:
        return np.maximum.accumulate(filled)
    padded = np.concatenate([np.full(window - 1, -np.inf), filled])
    result: Array = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return result


def at_horizon(values: Array, horizon_s: float) -> Array:
    """Levels at any horizon from those at ``HORIZONS_S`` (H, levels): linear between, the nearest outside.

    Past the longest horizon the distance from the median grows with the root of time, as errors of a random walk do.
    """
    if horizon_s <= HORIZONS_S[-1]:
        return np.array([np.interp(horizon_s, HORIZONS_S, column) for column in values.T])
    median = values[-1, LEVELS.index(0.5)]
    stretched: Array = np.maximum(median + (values[-1] - median) * (horizon_s / HORIZONS_S[-1]) ** 0.5, 0.0)
    return stretched


def _predict(
    question: Question,
    horizon_s: float,
    levels: Array,
    confidence: float,
    reasons: tuple[Reason, ...],
    fallback: bool = False,
) -> Prediction:
    wanted = sorted({0.5, *INTERVAL, *question.quantiles})
    values = np.maximum.accumulate(np.maximum(between(levels, wanted), 0.0))
    by_level = {q: float(value) for q, value in zip(wanted, values, strict=True)}
    return Prediction(
        by_level[0.5],
        by_level[INTERVAL[0]],
        by_level[INTERVAL[1]],
        INTERVAL[1] - INTERVAL[0],
        question.series.unit,
        confidence,
        question.model,
        reasons,
        {q: by_level[q] for q in question.quantiles},
        question.end_s,
        horizon_s,
        fallback,
    )


def _too_far(question: Question, horizon_s: float) -> Prediction:
    text = f"{horizon_s / 60:.0f} minutes ahead is beyond the {FURTHEST_S / 60:.0f} minutes this model can answer for."
    return _refusal(question, horizon_s, Reason("HORIZON_TOO_FAR", text, {"limit_s": FURTHEST_S}))


def _refusal(question: Question, horizon_s: float, reason: Reason) -> Prediction:
    return Prediction.refusal(reason, unit=question.series.unit, model=question.model, horizon_s=horizon_s)
