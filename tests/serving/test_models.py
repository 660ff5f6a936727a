"""Which model answers: aliases, hot reload, refused versions, no model at all."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from kopt.core.settings import Settings
from kopt.models.registry.aliases import SHIPPED
from kopt.models.registry.artifact import ArtefactError
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.contract.demand_answers import parse_forecast
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import URL, MemorySource, StandInModel, history, no_store, wave


async def asked(http: httpx.AsyncClient, series: dict[str, Any] | None = None) -> object:
    return parse_forecast((await http.post("/v1/demand", json={"series": [series or history()]})).json())


async def test_a_promoted_version_answers_without_a_dropped_request(
    http: httpx.AsyncClient, endpoint: Endpoint, source: MemorySource
) -> None:
    versions: list[str] = []
    stop = asyncio.Event()

    async def keep_asking() -> None:
        while not stop.is_set():
            forecast = await asked(http)
            assert not forecast.fallback
            versions.append(forecast.model.version)

    asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
    await asyncio.sleep(0.05)
    source.add(StandInModel("2", factor=2.0))
    await asyncio.to_thread(endpoint.refresh)
    swapped_at = len(versions)
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*asking)
    assert versions[0] == "1"
    assert set(versions[swapped_at + 4 :]) == {"2"}


async def test_a_rolled_back_alias_brings_the_old_version_back(
    http: httpx.AsyncClient, endpoint: Endpoint, source: MemorySource
) -> None:
    source.add(StandInModel("2", factor=2.0))
    endpoint.refresh()
    source.aliases["champion"] = "1"
    endpoint.refresh()
    assert (await asked(http)).model.version == "1"


async def test_a_refused_version_leaves_the_old_one_serving_and_says_so(
    http: httpx.AsyncClient, endpoint: Endpoint, source: MemorySource
) -> None:
    source.add(StandInModel("2"))
    source.broken.add("2")
    endpoint.refresh()
    endpoint.refresh()
    assert source.loads.count("2") == 1, "a refused version is not tried again at every look"
    assert (await asked(http)).model.version == "1"
    ready = await http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["reasons"][0]["code"] == "MODEL_REFUSED"
    assert "no trusted signature" in ready.json()["reasons"][0]["message"]
    metrics = (await http.get("/metrics")).text
    assert 'kopt_model_refused{alias="champion"} 1.0' in metrics
    assert (await http.get("/v1/models")).json()["refused"][0]["numbers"]["version"] == "2"


class BrokenModel(StandInModel):
    def forecast(self, *args: object, **more: object) -> tuple[object, ...]:
        raise RuntimeError("torn weights")


async def test_a_version_that_loads_but_cannot_answer_never_serves(
    http: httpx.AsyncClient, endpoint: Endpoint, source: MemorySource
) -> None:
    source.add(BrokenModel("2"))
    endpoint.refresh()
    assert not (await asked(http)).fallback
    assert "torn weights" in (await http.get("/readyz")).json()["reasons"][0]["message"]


async def test_a_registry_that_is_down_changes_nothing_but_says_so(
    http: httpx.AsyncClient, endpoint: Endpoint, source: MemorySource
) -> None:
    source.down = True
    endpoint.refresh()
    assert (await asked(http)).model.version == "1"
    assert (await http.get("/readyz")).json()["reasons"][0]["code"] == "REGISTRY_DOWN"
    known = (await http.get("/v1/models")).json()
    assert [(one["version"], one["serving"]) for one in known["models"]] == [("1", True)]
    assert [reason["code"] for reason in known["refused"]] == ["REGISTRY_DOWN"]
    source.down = False
    endpoint.refresh()
    assert (await http.get("/readyz")).json()["reasons"] == []


async def test_without_a_champion_the_shipped_model_answers(tmp_path: Path) -> None:
    """As in the chart's endpoint with one worker and no MLflow."""
    source = MemorySource()
    endpoint = assemble(Settings(home=tmp_path), Parts(source, StoredFeatures(no_store), refresh_s=3600))
    endpoint.refresh()
    application = create_app(endpoint, manage=False)
    # On a busy machine the default deadline passes.
    patient = {DEADLINE_HEADER: "30000"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=URL, headers=patient) as http:
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["reasons"]) == (200, [])
        forecast = await asked(http, history(wave(700)))
        assert (forecast.fallback, forecast.model.version) == (False, SHIPPED)
        source.add(StandInModel())
        endpoint.refresh()
        assert (await asked(http)).model.version == "1"


def altered() -> None:
    raise ArtefactError("the default model was altered")


async def test_without_any_model_it_is_not_ready_and_serves_fallbacks(tmp_path: Path) -> None:
    source = MemorySource()
    endpoint = assemble(Settings(home=tmp_path), Parts(source=source, refresh_s=3600, shipped={"demand": altered}))
    endpoint.refresh()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(endpoint, manage=False)), base_url=URL
    ) as http:
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/v2/health/ready")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/v1/health/models")).status_code == 503
        forecast = await asked(http)
        assert forecast.fallback
        assert forecast.series[0].horizons[0].demand.reasons[0].code == "MODEL_REFUSED"
        source.add(StandInModel())
        endpoint.refresh()
        assert (await http.get("/readyz")).status_code == 200
        assert not (await asked(http)).fallback


async def test_the_application_starts_and_stops_its_endpoint(source: MemorySource, tmp_path: Path) -> None:
    endpoint = assemble(Settings(home=tmp_path), Parts(source=source))
    app = create_app(endpoint)
    async with app.router.lifespan_context(app):
        assert endpoint.alive
        assert endpoint.service(DemandService).slot.current is not None
    assert not endpoint.alive


async def test_metrics_count_routes_answers_and_fallbacks(http: httpx.AsyncClient) -> None:
    await http.post("/v1/demand", json={"series": [history()]})
    await http.post("/v1/demand", json={"series": [history()]}, headers={"x-kopt-deadline-ms": "0"})
    await http.post("/v1/demand", json={})
    for path in ("/scan/1", "/scan/2"):
        await http.get(path)
    text = (await http.get("/metrics")).text
    assert 'kopt_requests_total{route="/v1/demand",status="200"} 2.0' in text
    assert 'kopt_requests_total{route="/v1/demand",status="422"} 1.0' in text
    assert 'kopt_requests_total{route="other",status="404"} 2.0' in text
    assert "kopt_demand_answers_total 1.0" in text
    assert 'kopt_demand_fallbacks_total{reason="DEADLINE"} 1.0' in text
    assert 'kopt_model_serving{alias="champion",version="1"} 1.0' in text
    assert "/scan" not in text


@pytest.mark.parametrize("alias", ["challenger"])
async def test_a_withdrawn_challenger_stops_shadowing(endpoint: Endpoint, source: MemorySource, alias: str) -> None:
    source.add(StandInModel("7"), alias)
    endpoint.refresh()
    assert endpoint.service(DemandService).challenger is not None
    assert endpoint.service(DemandService).challenger.version is not None
    del source.aliases[alias]
    endpoint.refresh()
    assert endpoint.service(DemandService).challenger.version is None
