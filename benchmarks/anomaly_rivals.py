"""Simple rules that find anomalies in demand, for ``benchmarks.anomalies``: each gives every bucket a score (n,) from
what came before it; an alarm begins where the score passes a threshold."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S
from kopt.models.demand.anomalies import Watch

Array = NDArray[np.float64]
Rule = Callable[[DemandSeries], Array]
_LEAST = 0.01
"""Of the level, added to spreads: a service that does not move has none."""
_WEIGHT = 0.2
_FLOOR = 0.05


def z_score(series: DemandSeries) -> Array:
    """Distance from the mean of the last day in its standard deviations ("three sigma")."""
    day = _day(series)
    mean, spread = _before(day.mean()), _before(day.std())
    return _in_spreads(series.value - mean, spread, mean)


def hampel(series: DemandSeries) -> Array:
    """Distance from the median of the last day in its median absolute deviations (Hampel 1974)."""
    middle = _before(_day(series).median())
    distance = np.abs(series.value - middle)
    return _in_spreads(distance, 1.4826 * _before(_rolling(distance, len_of_day(series)).median()), middle)


def seasonal_z_score(series: DemandSeries) -> Array:
    """Distance from the mean of the same time of the last seven days, in standard deviations of three days of these."""
    mean = _same_time(series, np.nanmean)
    distance = series.value - mean
    return _in_spreads(distance, _before(_rolling(distance, 3 * len_of_day(series)).std()), mean)


def seasonal_hybrid(series: DemandSeries) -> Array:
    """Remainder after the daily season, in median absolute deviations (the statistic of S-H-ESD: Hochenbaum, Vallis and
    Kejariwal 2017, arXiv:1704.07706)."""
    middle = _same_time(series, np.nanmedian)
    remainder = series.value - middle
    distance = np.abs(remainder - _before(_rolling(remainder, len_of_day(series)).median()))
    return _in_spreads(distance, 1.4826 * _before(_rolling(distance, 3 * len_of_day(series)).median()), middle)


def ewma_chart(series: DemandSeries) -> Array:
    """Exponentially weighted mean against the last day's mean, in its own standard deviations (Roberts 1959)."""
    smooth = pd.Series(series.value).ewm(alpha=_WEIGHT).mean().to_numpy()
    day = _day(series)
    mean, spread = _before(day.mean()), _before(day.std())
    return _in_spreads(smooth - mean, spread * np.sqrt(_WEIGHT / (2 - _WEIGHT)), mean)


def fixed_ratio(series: DemandSeries) -> Array:
    """Demand over the median of the same time of the last seven days, or its inverse where that is larger."""
    floor = _FLOOR * _before(_day(series).mean()) + 1e-9
    ratio = (series.value + floor) / (_same_time(series, np.nanmedian) + floor)
    return np.maximum(ratio, 1 / ratio)


def watch(series: DemandSeries) -> Array:
    """What ``kopt.models.demand.anomalies`` adds up."""
    return np.array(Watch().catch_up(series))


RULES: Mapping[str, Rule] = {
    "kopt": watch,
    "z-score of a day": z_score,
    "Hampel, a day": hampel,
    "seasonal z-score": seasonal_z_score,
    "seasonal MAD (S-H-ESD)": seasonal_hybrid,
    "EWMA chart": ewma_chart,
    "fixed ratio": fixed_ratio,
}


def len_of_day(series: DemandSeries) -> int:
    return DAY_S // series.step_s


def _rolling(value: Array, buckets: int) -> "pd.api.typing.Rolling[pd.Series[float]]":
    return pd.Series(value).rolling(buckets, min_periods=max(3, buckets // 4))


def _day(series: DemandSeries) -> "pd.api.typing.Rolling[pd.Series[float]]":
    return _rolling(series.value, len_of_day(series))


def _before(result: "pd.Series[float]") -> Array:
    """As of the bucket before: none may count itself as usual."""
    return result.shift(1).to_numpy()


def _in_spreads(distance: Array, spread: Array, level: Array) -> Array:
    result: Array = np.abs(distance) / (spread + _LEAST * np.abs(level) + 1e-9)
    return result


def _same_time(series: DemandSeries, summary: Callable[..., Array], days: int = 7) -> Array:
    day, value = len_of_day(series), series.value
    past = [np.concatenate([np.full(k * day, np.nan), value[: -k * day]]) for k in range(1, days + 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the first day there is none
        return summary(np.stack([each[: len(value)] for each in past]), axis=0)
