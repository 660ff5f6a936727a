"""Forecasts of the pools' services, asked of the prediction endpoint in the background.

One question for each pool and interval. Answers of the endpoint's own fallback, refusals and figures that cannot be
count as none; an answer that has grown old, or rests on old metrics, counts as stale. No reconcile waits for them.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.prediction import ModelVersion
from kopt.core.scheduling.lending_pool import ForecastState, LendingPool, PoolService
from kopt.policies.lending import ServiceSnapshot
from kopt.serving.contract.common import DEFAULT_QUANTILES, GRID_S, MAX_HORIZONS
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, History, HorizonForecast, SeriesForecast

_LOG = logging.getLogger(__name__)
_UNIX_FROM_S = 1e9
_SETTLED_S = 3.0
"""From a bucket's end until it can be in the endpoint: the last scrape has to arrive (`kopt controller ingest`)."""
_AWAITED_S = 30.0
"""How long after a bucket's end forecasts that do not rest on it yet are requested again in short intervals."""
_AWAITING_S = 3.0
_KNOWN_HORIZONS_S = (300, 900, 1800, 3600, 7200)
Ask = Callable[[DemandQuery], Awaitable[DemandForecast]]
"""Sends a request to ``/v1/demand``; raises without an answer."""


@dataclass(frozen=True)
class Forecast:
    """Of one series: demand by horizon and probability, in five minutes. ``data_at_s``: the newest metric it knows."""

    quantiles: Mapping[float, Mapping[float, float]]
    model: ModelVersion
    data_at_s: float | None = None


@dataclass(frozen=True)
class Known:
    """A pool's forecasts by series, made at ``at_s``."""

    at_s: float | None = None
    by_series: Mapping[str, Forecast] = field(default_factory=dict)
    error: str = ""


class Forecasts:
    """``changed`` is called on new forecasts; without ``ask`` there are none."""

    def __init__(
        self, ask: Ask | None, changed: Callable[[], None], stale_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._ask, self._changed, self._stale_s, self._clock = ask, changed, stale_s, clock
        self._known: dict[str, Known] = {}
        self.failures = 0

    def of(self, pool: LendingPool) -> Known:
        return self._known.get(pool.name, Known())

    def state(self, pool: LendingPool) -> ForecastState:
        known, now_s = self.of(pool), self._clock()
        if known.at_s is None or any(service.series not in known.by_series for service in pool.services):
            return ForecastState.MISSING
        data = [forecast.data_at_s for forecast in known.by_series.values() if forecast.data_at_s is not None]
        oldest_s = min([known.at_s, *(at_s + GRID_S for at_s in data if at_s >= _UNIX_FROM_S)])
        # One from the future is from before the clock was set back: its age is unknown.
        return ForecastState.STALE if abs(now_s - oldest_s) > self._stale_s else ForecastState.FRESH

    def due_s(self, refresh_s: float) -> float:
        """Seconds until forecasts are requested again: after ``refresh_s``, and as soon as there may be a new bucket.

        A decision that waits for the interval would come a minute after the samples that call for it.
        """
        now_s = self._clock()
        since_end_s = now_s % GRID_S
        data = [
            forecast.data_at_s
            for known in self._known.values()
            for forecast in known.by_series.values()
            if forecast.data_at_s is not None and forecast.data_at_s >= _UNIX_FROM_S
        ]
        if not data:
            return refresh_s
        if since_end_s < _SETTLED_S:
            return min(refresh_s, _SETTLED_S - since_end_s)
        if since_end_s < _AWAITED_S and min(data) < now_s - since_end_s:
            return min(refresh_s, _AWAITING_S)
        return min(refresh_s, GRID_S - since_end_s + _SETTLED_S)

    def views(self, pool: LendingPool, gpus: Mapping[str, int]) -> list[ServiceSnapshot]:
        """The pool's services with what their pods ask for, and with forecasts where these are fresh."""
        known = self.of(pool).by_series if self.state(pool) is ForecastState.FRESH else {}
        return [_service_snapshot(service, gpus[service.name], known.get(service.series)) for service in pool.services]

    async def refresh(self, pools: Sequence[tuple[LendingPool, float]]) -> None:
        """Ask about each pool up to its lead time (seconds). Whatever the endpoint does, this does not raise."""
        await asyncio.gather(*(self._refresh(*pool) for pool in pools))
        self._known = {
            lending_pool.name: self._known[lending_pool.name]
            for lending_pool, _ in pools
            if lending_pool.name in self._known
        }

    async def _refresh(self, pool: LendingPool, lead_s: float) -> None:
        if self._ask is None:
            return
        names = dict.fromkeys(service.series for service in pool.services)
        query = DemandQuery(
            [History(name) for name in names], horizons_s=horizons_to(lead_s), quantiles=DEFAULT_QUANTILES
        )
        try:
            forecasts_by_name = read_forecasts(await self._ask(query))
            before = self.of(pool)
            if forecasts_by_name:
                self._known[pool.name] = Known(self._clock(), forecasts_by_name)
            else:
                self._known[pool.name] = Known(before.at_s, before.by_series, "the endpoint had no forecast of a model")
        except Exception as error:  # noqa: BLE001 - edge: whatever the endpoint does, pools are looked after
            _LOG.warning("LendingPool %s: no forecast: %s", pool.name, error)
            self.failures += 1
            before = self.of(pool)
            self._known[pool.name] = Known(before.at_s, before.by_series, str(error))
        self._changed()


def horizons_to(lead_s: float) -> list[int]:
    """Rising, in whole buckets; the last one is the first that covers the lead time."""
    last = max(1, math.ceil(lead_s / GRID_S)) * GRID_S
    return [*[number for number in _KNOWN_HORIZONS_S if number < last][: MAX_HORIZONS - 1], last]


def read_forecasts(answer: DemandForecast) -> dict[str, Forecast]:
    """By series, those made by a model. Raises ValueError for impossible figures."""
    forecasts_by_name = {}
    for series in answer.series:
        horizons = [
            horizon for horizon in series.horizons if not horizon.demand.refused and not horizon.demand.fallback
        ]
        if horizons and len(horizons) == len(series.horizons):
            forecasts_by_name[series.name] = Forecast(
                {float(horizon.horizon_s): _amounts(series, horizon) for horizon in horizons},
                horizons[-1].demand.model,
                min(
                    (horizon.demand.features_at_s for horizon in horizons if horizon.demand.features_at_s is not None),
                    default=None,
                ),
            )
    return forecasts_by_name


def _amounts(series: SeriesForecast, horizon_forecast: HorizonForecast) -> dict[float, float]:
    scale = GRID_S / series.bucket_s
    amounts = {float(q): float(amount) * scale for q, amount in horizon_forecast.demand.quantiles.items()}
    if not amounts or any(not math.isfinite(amount) or amount < 0 for amount in amounts.values()):
        raise ValueError(f"series {series.name}: demand must be finite and not negative")
    if any(not 0 < q < 1 for q in amounts):
        raise ValueError(f"series {series.name}: probabilities lie between 0 and 1")
    return amounts


def _service_snapshot(pool_service: PoolService, gpus: int, forecast: Forecast | None) -> ServiceSnapshot:
    if forecast is None:
        return ServiceSnapshot(pool_service.name, gpus, pool_service.capacity_per_gpu, pool_service.minimum_gpus)
    return ServiceSnapshot(
        pool_service.name,
        gpus,
        pool_service.capacity_per_gpu,
        pool_service.minimum_gpus,
        forecast.quantiles,
        forecast.model,
    )
