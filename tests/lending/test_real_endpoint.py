"""The real prediction endpoint with the shipped model, over HTTP: what it says is lent on, and nothing that is old,
missing, cut short, slow or an error is. Then GPUs are taken back by what pods ask for."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_server import served
from shipped_models import ShippedDemand

from kopt.controllers.lending.forecasts import Forecasts
from kopt.core.scheduling.lending_pool import ForecastState, LendingPool, PoolService, Verb
from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import FEATURES, transform
from kopt.features.rows import FeatureStoreError, OnlineRows
from kopt.policies.lending import Plan, plan
from kopt.policies.lending.policy import LendingState
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.demand.feature_lookup import KEEP_S, StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

BUCKET_S, LEAD_S, STALE_S, PATIENCE_S = 300, 300.0, 600.0, 90.0
NAME = "team/chat"
POOL = LendingPool("p", 16, (PoolService("chat", "team", {"app": "chat"}, NAME, 100.0, 2),), hold_s=0.0)
App = Callable[[Any, Any, Callable[[Any], Awaitable[None]]], Awaitable[None]]


class Rows:
    """The feature store: a calm day of one service, which ended ``age_s`` ago."""

    def __init__(self) -> None:
        self.age_s, self.known, self.down = 0.0, True, False
        self.later_s = 0.0
        value = 300 + 20 * np.sin(np.arange(600) / 288 * 2 * np.pi)
        self._features = transform(DemandSeries(NAME, 0.0, BUCKET_S, value), np.array([599]))[0]

    def online(self, names: Sequence[str]) -> OnlineRows:
        if self.down:
            raise FeatureStoreError("the store does not answer")
        now_s = time.time()
        rows, at_s = np.full((len(names), len(FEATURES)), np.nan), np.full(len(names), np.nan)
        for place, name in enumerate(names):
            if self.known and name == NAME:
                rows[place], at_s[place] = self._features, now_s - self.age_s
        return OnlineRows(tuple(names), rows, at_s, np.full(len(names), True), now_s)


class Way:
    """What becomes of the answers on their way: ``as it is``, ``cut``, ``garbled``, ``error`` or ``slow``."""

    def __init__(self, app: App) -> None:
        self._app, self.says = app, "as it is"

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if self.says == "slow":
            await asyncio.sleep(4)
        await self._app(scope, receive, send if self.says in ("as it is", "slow") else self._hurt(send))

    def _hurt(self, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def hurt(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [one for one in message["headers"] if one[0].lower() != b"content-length"]
                message = message | {"headers": headers, "status": 500 if self.says == "error" else message["status"]}
            elif self.says == "cut":
                message = message | {"body": message["body"][:60]}
            elif self.says == "garbled":
                message = message | {"body": message["body"].replace(b'"quantiles":{', b'"quantiles":{"often":-1,')}
            await send(message)

        return hurt


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def way(rows: Rows, tmp_path: Path) -> Iterator[tuple[Way, str]]:
    stored = StoredFeatures(lambda: rows, lambda: time.monotonic() + rows.later_s)
    made = assemble(Settings(home=tmp_path), Parts(ShippedDemand(), stored, refresh_s=3600))
    made.start()
    one = Way(create_app(made, manage=False))
    with served(one) as url:
        yield one, url
    made.stop()


async def refreshed(forecasts: Forecasts, wanted: ForecastState) -> None:
    """Asked again and again until it is so: the first answers of a model that loads may be the fallback's."""
    ends = time.monotonic() + PATIENCE_S
    while forecasts.state(POOL) is not wanted:
        assert time.monotonic() < ends, f"{forecasts.state(POOL)}: {forecasts.of(POOL).error}"
        await forecasts.refresh([(POOL, LEAD_S)])


def decided(forecasts: Forecasts, asked: int, lent: int) -> Plan:
    return plan(POOL, forecasts.views(POOL, {"chat": asked}), lent, LEAD_S, LendingState(lent_gpus=lent), time.time())


async def test_what_the_shipped_model_says_is_lent_on(way: tuple[Way, str]) -> None:
    async with AsyncPredictionClient(way[1], deadline_s=2.0) as client:
        forecasts = Forecasts(client.demand, lambda: None, STALE_S)
        await refreshed(forecasts, ForecastState.FRESH)
        found = decided(forecasts, 3, 0)
    assert (found.verb, [one.name for one in found.models]) == (Verb.LEND, ["demand"])
    assert 0 < found.lent <= 13
    assert found.p50 == pytest.approx(3, abs=1)


FAULTS: dict[str, Callable[[Way, Rows], None]] = {
    "old metrics, which it refuses": lambda way, rows: setattr(rows, "age_s", 86_400.0),
    "old metrics, which it answers from": lambda way, rows: setattr(rows, "age_s", STALE_S + 2 * BUCKET_S),
    "no such series": lambda way, rows: setattr(rows, "known", False),
    "no feature store": lambda way, rows: setattr(rows, "down", True),
    "an answer that breaks off": lambda way, rows: setattr(way, "says", "cut"),
    "quantiles that cannot be": lambda way, rows: setattr(way, "says", "garbled"),
    "an error": lambda way, rows: setattr(way, "says", "error"),
    "no answer in time": lambda way, rows: setattr(way, "says", "slow"),
}


@pytest.mark.parametrize("known_before", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_on_anything_else_nothing_new_is_lent(
    way: tuple[Way, str], rows: Rows, fault: str, known_before: bool
) -> None:
    ahead_s = 0.0
    async with AsyncPredictionClient(way[1], deadline_s=2.0) as client:
        forecasts = Forecasts(client.demand, lambda: None, STALE_S, lambda: time.time() + ahead_s)
        if known_before:
            await refreshed(forecasts, ForecastState.FRESH)
            assert decided(forecasts, 2, 0).lent > 0
        FAULTS[fault](way[0], rows)
        # Rows that the endpoint has read before count no more.
        rows.later_s = KEEP_S + 1
        await forecasts.refresh([(POOL, LEAD_S)])
        if known_before and "answers from" not in fault:
            ahead_s = STALE_S + 1
        state = forecasts.state(POOL)
        calm, busy = decided(forecasts, 2, 8), decided(forecasts, 10, 8)
    assert state in (ForecastState.STALE, ForecastState.MISSING)
    assert (calm.verb, calm.lent, calm.reasons[0].code) == (Verb.KEEP, 8, "NO_FORECAST")
    assert (busy.verb, busy.lent) == (Verb.RECLAIM, 4), "1.2 times what the pods ask for is kept"
    assert busy.need_in_s == 0
