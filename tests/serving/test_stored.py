"""Services asked for by name are answered from the feature store's newest rows, or refused with the reason."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from kopt.core.settings import Settings
from kopt.features.demand import COLUMN, FEATURES
from kopt.features.rows import FeatureStoreError, OnlineRows
from kopt.serving.contract.demand_answers import parse_forecast
from kopt.serving.demand.feature_lookup import KEEP_S, StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import URL, MemorySource, StandInModel


class RowModel(StandInModel):
    """Quantile q of horizon i is the last value × (1 + i + q)."""

    def predict_rows(self, features: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
        last = features[:, COLUMN["last_value"]]
        return last[:, None, None] * (1 + np.arange(3)[None, :, None] + np.array(quantiles)[None, None, :])


class Store:
    """``chat`` is known, ``old`` is stale, nothing else is there."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, ...]] = []
        self.down = False

    def online(self, names: Sequence[str]) -> OnlineRows:
        if self.down:
            raise FeatureStoreError("Redis does not answer")
        self.reads.append(tuple(names))
        rows = np.full((len(names), len(FEATURES)), np.nan)
        at = np.full(len(names), np.nan)
        for i, name in enumerate(names):
            if name in ("chat", "old"):
                rows[i] = 0.0
                rows[i, [COLUMN["last_value"], COLUMN["step_s"], COLUMN["below_max_30m"]]] = 100.0, 300.0, np.log(2.0)
                at[i] = 1e9 if name == "chat" else 1e9 - 7200
        return OnlineRows(tuple(names), rows, at, np.full(len(names), True), 1e9 + 60)


@pytest.fixture
def store() -> Store:
    return Store()


async def asked(store: Store, tmp_path: Path, *names: str, times: int = 1, **more: object) -> object:
    source = MemorySource()
    source.add(RowModel())
    endpoint = assemble(Settings(home=tmp_path), Parts(source=source, features=StoredFeatures(lambda: store)))
    endpoint.start()
    body = {"series": [{"name": name} for name in names], "capacity_per_gpu": 50.0, **more}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(endpoint, manage=False)), base_url=URL
    ) as http:
        for _ in range(times):
            reply = await http.post("/v1/demand", json=body)
    endpoint.stop()
    return parse_forecast(reply.json())


async def test_a_known_service_is_answered_between_the_trained_horizons(store: Store, tmp_path: Path) -> None:
    forecast = await asked(store, tmp_path, "chat", horizons_s=[300, 1050, 3600], quantiles=[0.5, 0.9])
    demands = [h.demand for h in forecast.series[0].horizons]
    assert [d.quantiles[0.9] for d in demands] == pytest.approx([190.0, 240.0, 390.0])
    assert demands[0].value == pytest.approx(150.0)
    assert demands[0].features_at_s == 1e9
    assert demands[0].reasons[0].code == "STORED_FEATURES"
    assert not forecast.fallback
    gpus = forecast.series[0].horizons[0].gpus
    # The row knows the last half hour's largest value, 200: times 1.2 that is 5 GPUs, more than the forecast's 4.
    assert gpus.reasons[0].numbers == {"provision_gpus": 5, "reactive_gpus": 5, "capacity_per_gpu": 50.0}


async def test_absent_and_stale_services_are_refused_with_the_reason(store: Store, tmp_path: Path) -> None:
    forecast = await asked(store, tmp_path, "nobody", "chat", "old")
    codes = [series.horizons[0].demand.reasons[0].code for series in forecast.series]
    assert codes == ["NO_FEATURES", "STORED_FEATURES", "STALE_FEATURES"]
    assert [series.horizons[0].demand.refused for series in forecast.series] == [True, False, True]


async def test_beyond_the_trained_horizons_it_is_refused(store: Store, tmp_path: Path) -> None:
    forecast = await asked(store, tmp_path, "chat", horizons_s=[7200])
    assert forecast.series[0].horizons[0].demand.reasons[0].code == "HORIZON_TOO_FAR"


async def test_a_store_that_is_down_is_a_refusal_not_an_error(store: Store, tmp_path: Path) -> None:
    store.down = True
    forecast = await asked(store, tmp_path, "chat")
    assert forecast.series[0].horizons[0].demand.reasons[0].code == "STORE_DOWN"


async def test_rows_are_read_once_and_kept_for_a_while(store: Store, tmp_path: Path) -> None:
    await asked(store, tmp_path, "chat", times=5)
    assert store.reads == [("chat",)]


async def test_the_store_is_opened_before_the_first_request_by_name(store: Store, tmp_path: Path) -> None:
    opened = threading.Event()

    def open_store() -> Store:
        opened.set()
        return store

    source = MemorySource()
    source.add(RowModel())
    endpoint = assemble(Settings(home=tmp_path), Parts(source=source, features=StoredFeatures(open_store)))
    endpoint.start()
    assert await asyncio.to_thread(opened.wait, 10)
    endpoint.stop()


def test_rows_that_were_kept_too_long_are_read_again(store: Store) -> None:
    now = 0.0
    features = StoredFeatures(lambda: store, clock=lambda: now)
    for at in (0.0, KEEP_S, KEEP_S + 0.1):
        now = at
        (first,) = features.forecast(RowModel(), ["chat"], [300], [0.5], "requests")
        assert first.predictions[0].value == pytest.approx(150.0)
    assert len(store.reads) == 2
