"""Rules and classical models that the demand predictor is held against, all causal and all over the same origins.

Point forecasts: the last value, the same time a day ago, additive Holt-Winters with a damped trend (Gardner 1985) and
AutoTheta (Fiorucci et al. 2016, ``statsforecast``), both fitted again once a day. Their upper quantiles are split
conformal over the last week of their own ratios truth/forecast. The reactive rule is what an autoscaler without a
forecast does: 1.2 times the largest demand of the last half hour.
"""

import hashlib
import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.rolling import window_start
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S, HORIZONS_S, fill_gaps, steps_ahead

Array = NDArray[np.float64]
Points = Callable[[DemandSeries], Array]
"""All origins' point forecasts, shape (buckets, H)."""

QUANTILES = (0.5, 0.9, 0.95, 0.99)
CONFORMAL_DAYS = 7
THETA_DAYS = 7
_SMOOTHING = tuple(itertools.product((0.1, 0.3, 0.6, 0.9), (0.01, 0.05), (0.05, 0.2)))
"""Candidates of level, trend and season smoothing."""
_DAMPING = 0.9


def last_value(series: DemandSeries) -> Array:
    return np.repeat(fill_gaps(series.value)[:, None], len(HORIZONS_S), axis=1)


def seasonal_naive(series: DemandSeries) -> Array:
    """The same time a day before the target; the last value during the first day."""
    filled, day = fill_gaps(series.value), DAY_S // series.step_s
    result = last_value(series)
    for column, ahead in enumerate(_ahead(series)):
        source = np.arange(len(filled)) + ahead - day
        result[:, column] = np.where(source >= 0, filled[np.maximum(source, 0)], filled)
    return result


def holt_winters(series: DemandSeries) -> Array:
    """Every candidate runs along; each day the one with the least squared one-step error of the last week is used."""
    filled, day = fill_gaps(series.value), DAY_S // series.step_s
    alpha, beta, gamma = (np.array(column) for column in zip(*_SMOOTHING, strict=True))
    first = filled[:day]
    level, trend = np.full(len(alpha), first.mean()), np.zeros(len(alpha))
    season = np.repeat((first - first.mean())[:, None], len(alpha), axis=1)
    result, errors, best = last_value(series), np.zeros((len(filled), len(alpha))), 0
    grown = [_DAMPING * (1 - _DAMPING**k) / (1 - _DAMPING) for k in _ahead(series)]
    for now in range(day, len(filled)):
        before = season[now % day]
        expected = level + _DAMPING * trend + before
        errors[now] = (filled[now] - expected) ** 2
        higher = alpha * (filled[now] - before) + (1 - alpha) * (level + _DAMPING * trend)
        trend = beta * (higher - level) + (1 - beta) * _DAMPING * trend
        level = higher
        season[now % day] = gamma * (filled[now] - level) + (1 - gamma) * before
        if now % day == 0:
            best = int(np.argmin(errors[max(day, now - 7 * day) : now + 1].sum(0)))
        for column, ahead in enumerate(_ahead(series)):
            result[now, column] = level[best] + grown[column] * trend[best] + season[(now + ahead) % day, best]
    return np.maximum(result, 0.0)


def auto_theta(series: DemandSeries) -> Array:
    """Fitted once a day on at most a week; between fits only the level follows.

    A fit takes a second or two, so it begins where the conformal window of the first scored origin does.
    """
    filled, day = fill_gaps(series.value), DAY_S // series.step_s
    result = last_value(series)
    first = max(2, window_start(len(filled), series.step_s) // day - CONFORMAL_DAYS)
    for start in range(first * day, len(filled), day):
        past = filled[max(0, start - THETA_DAYS * day) : start]
        if past.max() > past.min():
            result[start : start + day] = _theta_day(past, filled[start : start + day], day, _ahead(series))
    return np.maximum(result, 0.0)


def _theta_day(past: Array, new: Array, day: int, aheads: tuple[int, ...]) -> Array:
    """Forecasts at each new bucket, shape (len(new), H), by the smoothing and drift of a fit on ``past``.

    Theta's forecast is its level plus a drift that grows by ``alpha`` of itself a step, times or plus the season.
    """
    from statsforecast.models import AutoTheta

    fitted = AutoTheta(season_length=day).fit(past).model_
    alpha, theta = float(fitted["par"]["alpha"]), float(fitted["par"]["theta"])
    level, slope = float(fitted["states"][-1][0]), float(fitted["states"][-1][3])
    drift = (1 - 1 / theta) * slope / alpha
    times = fitted.get("decomposition_type") == "multiplicative"
    season = np.full(2 * day, 1.0 if times else 0.0)
    if fitted.get("decompose"):
        season = np.tile(np.asarray(fitted["seas_forecast"]["mean"]), 2)
    result = np.empty((len(new), len(aheads)))
    for now, value in enumerate(new):
        level = alpha * (value / season[now] if times else value - season[now]) + (1 - alpha) * level
        for column, ahead in enumerate(aheads):
            point, part = level + drift * (1 + alpha * (ahead - 1)), season[(now + ahead) % day]
            result[now, column] = point * part if times else point + part
    return result


POINTS: dict[str, Points] = {
    "last value": last_value,
    "seasonal naive": seasonal_naive,
    "Holt-Winters": holt_winters,
    "AutoTheta": auto_theta,
}


def reactive(series: DemandSeries) -> Array:
    """Quantiles (buckets, H, Q) of the reactive rule: it has one number, so all above the median are that number."""
    filled, window = fill_gaps(series.value), max(2, 1800 // series.step_s)
    padded = np.concatenate([np.full(window - 1, filled[0]), filled])
    rule = 1.2 * np.lib.stride_tricks.sliding_window_view(padded, window).max(1)
    columns = np.column_stack([filled, rule, rule, rule])
    return np.repeat(columns[:, None, :], len(HORIZONS_S), axis=1)


def conformal(series: DemandSeries, points: Array) -> Array:
    """Quantiles (buckets, H, Q): the point times quantiles of truth/point over the last week that had come true."""
    import pandas as pd

    filled, day = fill_gaps(series.value), DAY_S // series.step_s
    floor = 0.01 * filled.mean() + 1e-9
    base = np.maximum(points, floor)
    result = np.repeat(points[:, :, None], len(QUANTILES), axis=2)
    for column, ahead in enumerate(_ahead(series)):
        ratio = np.full(len(filled), np.nan)
        ratio[ahead:] = series.value[ahead:] / base[:-ahead, column]
        window = pd.Series(ratio).rolling(CONFORMAL_DAYS * day, min_periods=min(50, day // 2))
        for place, quantile in enumerate(QUANTILES[1:], 1):
            factor = window.quantile(quantile).fillna(2.0).to_numpy()
            result[:, column, place] = base[:, column] * factor
    return np.maximum.accumulate(result, axis=2)


def all_baselines(series: list[DemandSeries], cache: Path | None = None, workers: int = 2) -> dict[str, list[Array]]:
    """Quantiles (buckets, H, Q) of every baseline for every series, in their order; slow fits are cached by content."""
    with ProcessPoolExecutor(workers) as pool:
        points = list(pool.map(_points, series, itertools.repeat(cache)))
    found = {name: [conformal(s, p[name]) for s, p in zip(series, points, strict=True)] for name in POINTS}
    return found | {"reactive x1.2": [reactive(one) for one in series]}


def _points(series: DemandSeries, cache: Path | None) -> dict[str, Array]:
    return {name: _cached(series, name, rule, cache) for name, rule in POINTS.items()}


def _cached(series: DemandSeries, name: str, rule: Points, cache: Path | None) -> Array:
    if cache is None or rule in (last_value, seasonal_naive):
        return rule(series)
    own = Path(__file__).read_bytes() + series.value.tobytes() + f"{series.step_s} {name}".encode()
    file = cache / f"{hashlib.sha256(own).hexdigest()[:24]}.npy"
    if file.exists():
        stored: Array = np.load(file, allow_pickle=False)
        return stored
    result = rule(series)
    cache.mkdir(parents=True, exist_ok=True)
    np.save(file, result, allow_pickle=False)
    return result


def _ahead(series: DemandSeries) -> tuple[int, ...]:
    return tuple(steps_ahead(horizon, series.step_s) for horizon in HORIZONS_S)
