"""A demand forecast without the endpoint: the query's own histories, every prediction marked as fallback."""

from kopt.core.reason import Reason
from kopt.policies.lending.policy import LendingSettings
from kopt.serving.client.fallback_demand import FALLBACK_MODEL, fallback_forecast, recent
from kopt.serving.client.gpus import gpus_prediction
from kopt.serving.contract.common import GRID_S
from kopt.serving.contract.demand_answers import (
    DemandForecast,
    DemandQuery,
    History,
    HorizonForecast,
    SeriesForecast,
)


def fallback_answer(query: DemandQuery, why: Reason, lending: LendingSettings) -> DemandForecast:
    """The query answered from its own histories alone, every prediction marked as fallback."""
    return DemandForecast(
        tuple(_fallback_series(query, history, why, lending) for history in query.series), FALLBACK_MODEL
    )


def _fallback_series(query: DemandQuery, history: History, why: Reason, lending: LendingSettings) -> SeriesForecast:
    recent_demand = recent(history.t, history.value)
    bucket_s = GRID_S if recent_demand is None else recent_demand.bucket_s
    predictions = fallback_forecast(recent_demand, query.horizons_s, query.quantiles, query.unit, why)
    recent_max = None if recent_demand is None else recent_demand.half_hour_max
    capacity = query.capacity_per_gpu
    if capacity is not None and recent_demand is not None:
        capacity *= recent_demand.bucket_s / recent_demand.step_s
    horizons = tuple(
        HorizonForecast(
            horizon_s,
            demand,
            None if capacity is None else gpus_prediction(demand, capacity, recent_max, lending),
        )
        for horizon_s, demand in zip(query.horizons_s, predictions, strict=True)
    )
    return SeriesForecast(history.name, query.unit, bucket_s, horizons)
