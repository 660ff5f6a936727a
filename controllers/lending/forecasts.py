"""Forecasts of the pools' services, asked of the prediction endpoint in the background.

One question for each pool and interval. Answers of the endpoint's own fallback, refusals and figures that cannot be
count as none; an answer that has grown old, or rests on old metrics, counts as stale. No reconcile waits for them.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
_AT_ONCE = 2
"""Requests under way. The first forecast of a series takes half a second of the endpoint: many would all be late."""
NEW_WITHIN_S = 5.0
"""How long pools without a forecast are asked about in one go: they must not keep others from their next bucket."""
_NOW_S = 1e-3
_USUAL_HORIZONS_S = (300, 900, 1800, 3600, 7200)
Ask = Callable[[DemandQuery], Awaitable[DemandForecast]]
"""Sends a request to ``/v1/demand``; raises without an answer."""


@dataclass(frozen=True)
class Forecast:
    """Of one series: demand by horizon and probability, in five minutes. ``data_at_s``: the newest metric it knows."""

    quantiles: Mapping[float, Mapping[float, float]]
    model: ModelVersion
    data_at_s: float | None = None


@dataclass(frozen=True)
class PoolForecasts:
    """A pool's forecasts by series, made at ``at_s``."""

    at_s: float | None = None
    by_series: Mapping[str, Forecast] = field(default_factory=dict)
    error: str = ""
    query: DemandQuery | None = None
    """The last one, sent at ``requested_at_s``."""
    requested_at_s: float = -math.inf
    missing: bool = True
    """Whether there are services without a forecast."""
    failures: int = 0
    """Requests since the last one that gave a forecast for every service."""

    def due_in_s(self, refresh_s: float, now_s: float) -> float:
        """Seconds until they are requested again: after ``refresh_s``, and as soon as there may be a new bucket.

        A decision that waits for the interval would come a minute after the samples that call for it. A pool without
        forecasts waits for a few seconds, then twice as long each time.
        """
        since_request_s = now_s - self.requested_at_s
        # The clock may have been set back.
        return max(0.0, min(refresh_s, self._pause_s()) - since_request_s) if since_request_s >= 0 else 0.0

    def _pause_s(self) -> float:
        if self.missing:
            return _AWAITING_S * 2.0 ** min(self.failures - 1, 10)
        data = [at_s for forecast in self.by_series.values() if (at_s := forecast.data_at_s) and at_s >= _UNIX_FROM_S]
        since_end_s = self.requested_at_s % GRID_S
        if not data:
            return math.inf
        if since_end_s < _SETTLED_S:
            return _SETTLED_S - since_end_s
        if since_end_s < _AWAITED_S and min(data) < self.requested_at_s - since_end_s:
            return _AWAITING_S
        return GRID_S - since_end_s + _SETTLED_S


class Forecasts:
    """``changed`` is called on new forecasts; without ``ask`` there are none."""

    def __init__(
        self, ask: Ask | None, changed: Callable[[], None], stale_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._ask, self._changed, self._stale_s, self._clock = ask, changed, stale_s, clock
        self._by_pool: dict[str, PoolForecasts] = {}
        self.failures = 0

    def of(self, pool: LendingPool) -> PoolForecasts:
        return self._by_pool.get(pool.name, PoolForecasts())

    def state(self, pool: LendingPool) -> ForecastState:
        forecasts, now_s = self.of(pool), self._clock()
        if forecasts.at_s is None or any(service.series not in forecasts.by_series for service in pool.services):
            return ForecastState.MISSING
        data = [forecast.data_at_s for forecast in forecasts.by_series.values() if forecast.data_at_s is not None]
        oldest_s = min([forecasts.at_s, *(at_s + GRID_S for at_s in data if at_s >= _UNIX_FROM_S)])
        # One from the future is from before the clock was set back: its age is unknown.
        return ForecastState.STALE if abs(now_s - oldest_s) > self._stale_s else ForecastState.FRESH

    def due_s(self, refresh_s: float) -> float:
        """Seconds until the next pool's forecasts are requested again, ``refresh_s`` at most."""
        if self._ask is None:
            return refresh_s
        now_s = self._clock()
        return min((forecasts.due_in_s(refresh_s, now_s) for forecasts in self._by_pool.values()), default=refresh_s)

    def views(self, pool: LendingPool, gpus: Mapping[str, int]) -> list[ServiceSnapshot]:
        """The pool's services with what their pods ask for, and with forecasts where these are fresh."""
        by_series = self.of(pool).by_series if self.state(pool) is ForecastState.FRESH else {}
        return [
            _service_snapshot(service, gpus[service.name], by_series.get(service.series)) for service in pool.services
        ]

    async def refresh(
        self, pools: Sequence[tuple[LendingPool, float]], refresh_s: float = 0.0, new_within_s: float = NEW_WITHIN_S
    ) -> None:
        """Ask about each pool that is due up to its lead time (seconds), few at a time, those with forecasts first.

        Those without are left for the next time after ``new_within_s``. Whatever the endpoint does, this does not
        raise.
        """
        self._by_pool = {pool.name: self.of(pool) for pool, _ in pools}
        now_s = self._clock()
        queries = {pool.name: _query(pool, lead_s) for pool, lead_s in pools}
        due = [
            (name, query)
            for name, query in queries.items()
            if query != self._by_pool[name].query or self._by_pool[name].due_in_s(refresh_s, now_s) < _NOW_S
        ]
        remaining = iter(sorted(due, key=lambda item: self._by_pool[item[0]].missing))
        await asyncio.gather(*(self._ask_in_turn(remaining, now_s + new_within_s) for _ in range(_AT_ONCE)))

    async def _ask_in_turn(self, remaining: Iterator[tuple[str, DemandQuery]], new_until_s: float) -> None:
        for pool, query in remaining:
            if not self._by_pool[pool].missing or self._clock() < new_until_s:
                await self._refresh(pool, query)

    async def _refresh(self, pool: str, query: DemandQuery) -> None:
        if self._ask is None:
            return
        forecasts_by_name: Mapping[str, Forecast] = {}
        before, requested_at_s, error = self._by_pool[pool], self._clock(), "the endpoint had no forecast of a model"
        try:
            forecasts_by_name = read_forecasts(await self._ask(query))
        except Exception as raised:  # noqa: BLE001 - edge: whatever the endpoint does, pools are looked after
            _LOG.warning("LendingPool %s: no forecast: %s", pool, raised)
            self.failures += 1
            error = str(raised)
        missing = any(series.name not in forecasts_by_name for series in query.series)
        failures = before.failures + 1 if missing else 0
        if forecasts_by_name:
            self._by_pool[pool] = PoolForecasts(
                self._clock(), forecasts_by_name, "", query, requested_at_s, missing, failures
            )
        else:
            self._by_pool[pool] = replace(
                before, error=error, query=query, requested_at_s=requested_at_s, failures=failures
            )
        self._changed()


def _query(pool: LendingPool, lead_s: float) -> DemandQuery:
    names = dict.fromkeys(service.series for service in pool.services)
    return DemandQuery([History(name) for name in names], horizons_s=horizons_to(lead_s), quantiles=DEFAULT_QUANTILES)


def horizons_to(lead_s: float) -> list[int]:
    """Rising, in whole buckets; the last one is the first that covers the lead time."""
    last = max(1, math.ceil(lead_s / GRID_S)) * GRID_S
    return [*[number for number in _USUAL_HORIZONS_S if number < last][: MAX_HORIZONS - 1], last]


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
