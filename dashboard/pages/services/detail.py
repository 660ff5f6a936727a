"""The page of one service: its fan, the reasons, how earlier forecasts did, the documents behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.core.reason import Reason
from kopt.dashboard.data.sources import PastForecast, Service
from kopt.dashboard.pages.lending.view import PoolView, own_pool
from kopt.dashboard.pages.services.replay import Past
from kopt.dashboard.pages.services.view import Row, row_of
from kopt.serving.contract.model_answers import ModelHealthResponse, SeriesHealthOut

SPANS_H = (3, 6, 12, 24, 72, 168)
DEFAULT_SPAN_H = 6


@dataclass(frozen=True)
class HorizonReasons:
    """The reasons of one horizon; ``also`` are further horizons with the very same ones."""

    horizons_s: tuple[int, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Coverage:
    """How often demand stayed at or under a promised quantile, of ``count`` earlier forecasts."""

    nominal: float
    observed: float
    count: int


@dataclass(frozen=True)
class Track:
    """How earlier forecasts of one horizon did; errors are sums of absolute errors over the sum of demand."""

    horizon_s: int
    forecasts: tuple[PastForecast, ...]
    coverage: tuple[Coverage, ...]
    error: float | None


@dataclass(frozen=True)
class Detail:
    """All of the page."""

    row: Row
    pool: PoolView
    reasons: tuple[HorizonReasons, ...]
    track: Track
    past: Past
    health: SeriesHealthOut | None
    document: Mapping[str, Any]


def detail(service: Service, past: Past, health: ModelHealthResponse | None, horizon_s: int) -> Detail:
    """Puts the page together; ``horizon_s`` is the horizon whose record is shown."""
    return Detail(
        row=row_of(service),
        pool=own_pool(service),
        reasons=grouped_reasons(service),
        track=track(past.forecasts, horizon_s),
        past=past,
        health=next((series_health for series_health in health.series if series_health.name == service.name), None)
        if health
        else None,
        document=document(service),
    )


def grouped_reasons(service: Service) -> tuple[HorizonReasons, ...]:
    """Reasons by horizon, horizons that say the same together."""
    groups: list[HorizonReasons] = []
    for horizon in service.forecast.horizons if service.forecast else ():
        texts = [reason.message for reason in horizon.demand.reasons]
        same = next((i for i, g in enumerate(groups) if [r.message for r in g.reasons] == texts), None)
        if same is None:
            groups.append(HorizonReasons((horizon.horizon_s,), horizon.demand.reasons))
        else:
            groups[same] = HorizonReasons((*groups[same].horizons_s, horizon.horizon_s), groups[same].reasons)
    return tuple(groups)


def track(forecasts: Sequence[PastForecast], horizon_s: int) -> Track:
    """The record of one horizon."""
    of_horizon = tuple(f for f in forecasts if f.horizon_s == horizon_s)
    with_actual = [(f, f.actual) for f in of_horizon if f.actual is not None]
    shared = sorted(set.intersection(*(set(f.quantiles) for f, _ in with_actual))) if with_actual else []
    coverage = tuple(
        Coverage(q, sum(actual <= f.quantiles[q] for f, actual in with_actual) / len(with_actual), len(with_actual))
        for q in shared
    )
    total = sum(actual for _, actual in with_actual)
    missed = sum(abs(actual - f.quantiles[0.5]) for f, actual in with_actual) if 0.5 in shared else 0.0
    return Track(horizon_s, of_horizon, coverage, missed / total if total > 0 and 0.5 in shared else None)


def document(service: Service) -> Mapping[str, Any]:
    """The forecast as the endpoint gave it, with what the page adds about GPUs."""
    capacity = service.capacity
    return {
        "schema": "kopt/v1",
        "series": service.forecast.to_dict() if service.forecast else None,
        "capacity": {
            "gpus": capacity.gpus,
            "per_gpu": capacity.per_gpu,
            "minimum_gpus": capacity.minimum,
            "pool": capacity.pool or service.name,
            "assumed": capacity.assumed,
        },
    }
