"""A forecast becomes the value of a metric, or is none: a stale or guessed value would scale as a measured one does."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kopt.controllers.autoscaling.metric_query import MetricQuery
from kopt.policies.lending.policy import gpus_for
from kopt.serving.contract.common import GRID_S
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, History

Ask = Callable[[DemandQuery], Awaitable[DemandForecast]]
"""Sends a request to ``/v1/demand``. Raises RequestRefused or ValueError."""


class NoForecastError(Exception):
    """There is no value; ``code`` is the reason's, as the endpoint names it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class MetricValue:
    """``thousandths`` of requests per second or of GPUs, rounded up; ``at_s``: the newest demand that it rests on."""

    thousandths: int
    at_s: float | None


def demand_query(query: MetricQuery) -> DemandQuery:
    """What the endpoint is asked."""
    return DemandQuery([History(query.series)], horizons_s=query.horizons_s, quantiles=[query.quantile])


def value_of(query: MetricQuery, answer: DemandForecast) -> MetricValue:
    """The largest demand within the lead time. Raises NoForecastError where any of it is not a model's forecast."""
    (series,) = answer.series
    largest, times_s = 0.0, []
    for horizon in series.horizons:
        demand = horizon.demand
        amount = demand.quantiles.get(query.quantile)
        if demand.refused or demand.fallback or amount is None or not math.isfinite(amount):
            reason = demand.reasons[0] if demand.reasons else None
            code, text = (reason.code, reason.message) if reason else ("NO_FORECAST", "The endpoint gave no forecast.")
            raise NoForecastError(code, f"{query.series} has no forecast ({code}): {text}")
        largest = max(largest, amount)
        if demand.features_at_s is not None:
            times_s.append(demand.features_at_s)
    if query.capacity_per_gpu is not None:
        thousandths = 1000 * gpus_for(largest, query.capacity_per_gpu)
    else:
        thousandths = math.ceil(1000 * largest / (series.bucket_s or GRID_S))
    return MetricValue(thousandths, min(times_s, default=None))
