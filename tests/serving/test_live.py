"""Buckets that are pushed to the endpoint are what it answers by name, as if the history stood in the request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from controlplane.processes import wait_for
from prometheus_client import CollectorRegistry, generate_latest

from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.features.rows import FeatureStoreError, OnlineRows
from kopt.models.registry.loading import shipped
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import RequestRefused
from kopt.serving.demand import materialiser
from kopt.serving.demand.anomalies import DemandAnomalies
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.live import LiveDemand
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import URL, MemorySource, StandInModel

GRID_S = 300
NOW = int(time.time()) // GRID_S * GRID_S
"""The end of the newest bucket."""


class Rows:
    """An online store that remembers what was materialised."""

    def __init__(self) -> None:
        self.put: list[DemandSeries] = []
        self.down = False

    def online(self, names: Sequence[str]) -> OnlineRows:
        from kopt.features.demand import FEATURES

        nothing = np.full((len(names), len(FEATURES)), np.nan)
        at_s = np.full(len(names), np.nan)
        return OnlineRows(tuple(names), nothing, at_s, np.full(len(names), False), float(NOW))

    def put_online(self, series: Any) -> int:
        if self.down:
            raise FeatureStoreError("Redis does not answer")
        self.put.extend(series)
        return len(self.put)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def build(tmp_path: Path, rows: Rows) -> Iterator[Callable[..., Endpoint]]:
    """Starts endpoints over one home, as the replicas of a machine."""
    endpoints: list[Endpoint] = []

    def start(model: Any = None) -> Endpoint:
        source = MemorySource()
        source.add(model or StandInModel())
        parts = Parts(source=source, features=StoredFeatures(lambda: rows), refresh_s=3600)
        endpoints.append(assemble(Settings(home=tmp_path), parts))
        endpoints[-1].start()
        return endpoints[-1]

    yield start
    for endpoint in endpoints:
        endpoint.stop()


def caller_of(endpoint: Endpoint) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=URL, headers={"x-kopt-deadline-ms": "30000"})


@pytest.fixture
async def http(build: Callable[..., Endpoint]) -> AsyncIterator[httpx.AsyncClient]:
    async with caller_of(build()) as client:
        yield client


def times(count: int, end_s: int = NOW) -> list[int]:
    return list(range(end_s - count * GRID_S, end_s, GRID_S))


async def ask(http: httpx.AsyncClient, **series: Any) -> dict[str, Any]:
    answer = await http.post("/v1/demand", json={"series": [series]})
    assert answer.status_code == 200, answer.text
    forecast: dict[str, Any] = answer.json()["series"][0]["horizons"][0]["demand"]
    return forecast


async def test_what_was_pushed_is_answered_by_name_with_its_freshness(http: httpx.AsyncClient, rows: Rows) -> None:
    body = {"t": times(3), "value": [10.0, None, 12.0]}
    answer = await http.put("/v1/demand/ml/chat", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "schema": "kopt/v1",
        "service": "ml/chat",
        "changed": 2,
        "buckets": 2,
        "newest_s": NOW,
    }
    await asyncio.to_thread(wait_for, lambda: rows.put, what="the bucket is materialised")
    np.testing.assert_array_equal(rows.put[0].value, [10.0, np.nan, 12.0])
    forecast = await ask(http, name="ml/chat")
    assert (forecast["value"], forecast["refused"], forecast["features_at_s"]) == (12.0, False, NOW - GRID_S)


async def test_pushed_again_nothing_changes_and_late_and_restated_buckets_do(http: httpx.AsyncClient) -> None:
    async def push(t: list[int], value: list[float | None]) -> int:
        answer = await http.put("/v1/demand/chat", json={"t": t, "value": value})
        return int(answer.json()["changed"])

    first, second, third = times(3)
    assert await push([first, third], [10.0, 12.0]) == 2
    assert await push([first, third], [10.0, 12.0]) == 0
    assert await push([second], [11.0]) == 1
    assert await push([first, second, third], [None, 11.0, 13.0]) == 1
    assert (await ask(http, name="chat"))["value"] == 13.0


async def test_another_replica_answers_what_was_pushed_to_the_first(build: Callable[..., Endpoint]) -> None:
    async with caller_of(build()) as first, caller_of(build()) as second:
        await first.put("/v1/demand/chat", json={"t": times(2), "value": [1.0, 2.0]})
        assert (await ask(second, name="chat"))["value"] == 2.0


async def test_by_name_the_calibration_is_that_of_the_history_itself(build: Callable[..., Endpoint]) -> None:
    async with caller_of(build(shipped("demand"))) as http:
        # NOW was when this file was imported, which a run of all tests may have done long ago.
        now = int(time.time()) // GRID_S * GRID_S
        noise = np.random.default_rng(7).gamma(4.0, 0.25, 2016)
        value = 50.0 * (1.2 + np.sin(np.arange(2016) / 288 * 2 * np.pi)) * noise
        value, newest = value[:-1], value[-1]
        history = {"t": times(2015, now - GRID_S), "value": value.tolist()}
        await http.put("/v1/demand/chat", json=history)
        by_name, sent = await ask(http, name="chat"), await ask(http, name="chat", **history)
        assert by_name == sent
        assert not sent["fallback"]
        assert sent["confidence"] not in (0.4, 0.0)
        # The next bucket continues what is remembered.
        answer = await http.put("/v1/demand/chat", json={"t": times(1, now), "value": [newest]})
        assert answer.json()["changed"] == 1
        history = {"t": times(2016, now), "value": [*value, newest]}
        by_name, sent = await ask(http, name="chat"), await ask(http, name="chat", **history)
        assert by_name["quantiles"] == sent["quantiles"]
        assert by_name["features_at_s"] == now


async def test_old_demand_is_no_forecast(http: httpx.AsyncClient, build: Callable[..., Endpoint]) -> None:
    async with caller_of(build(shipped("demand"))) as http:
        count = 600
        await http.put("/v1/demand/chat", json={"t": times(count, NOW - 7200), "value": [5.0] * count})
        forecast = await ask(http, name="chat")
        assert forecast["fallback"]
        assert forecast["reasons"][0]["code"] == "STALE"


async def test_a_service_without_buckets_is_refused_as_before(http: httpx.AsyncClient) -> None:
    answer = await http.put("/v1/demand/chat", json={"t": times(1), "value": [None]})
    assert answer.json()["newest_s"] is None
    assert (await ask(http, name="chat"))["reasons"][0]["code"] == "NO_FEATURES"


async def test_the_history_is_kept_where_the_online_store_is_down(http: httpx.AsyncClient, rows: Rows) -> None:
    rows.down = True
    answer = await http.put("/v1/demand/chat", json={"t": times(1), "value": [7.0]})
    assert answer.status_code == 200
    assert (await ask(http, name="chat"))["value"] == 7.0


async def test_a_store_that_is_down_is_not_ready_and_no_bug(build: Callable[..., Endpoint]) -> None:
    endpoint = build()

    def away() -> Any:
        raise FeatureStoreError("Redis does not answer")

    endpoint.service(DemandService)._live = LiveDemand(away)
    async with caller_of(endpoint) as http:
        answer = await http.put("/v1/demand/chat", json={"t": times(1), "value": [7.0]})
        assert answer.status_code == 503
        assert "Redis" not in answer.text
        assert (await ask(http, name="chat"))["refused"]


def test_many_series_are_materialised_at_once_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialiser, "_AGAIN_S", 0.05)
    written: list[list[str]] = []
    failures = [FeatureStoreError("down")]

    def write(series: Sequence[DemandSeries]) -> None:
        if failures:
            raise failures.pop()
        written.append([f"{one.name}={one.value[-1]:g}" for one in series])

    work = materialiser.Materialiser(write)
    for name, value in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        work.put(DemandSeries(name, NOW, GRID_S, np.array([value]), start_known=True))
    wait_for(lambda: written, what="they are written")
    assert [sorted(batch) for batch in written] == [["a=3", "b=2"]]
    work.put(DemandSeries("c", NOW, GRID_S, np.array([4.0]), start_known=True))
    work.stop()
    assert written[1:] == [["c=4"]], "what is left is written at the end"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"t": [NOW], "value": [1.0, 2.0]}, "value"),
        ({"t": [NOW - 299], "value": [1.0]}, "t.0"),
        ({"t": [NOW - 300, NOW - 600], "value": [1.0, 2.0]}, "t.1"),
        ({"t": [NOW - 300, NOW - 300], "value": [1.0, 2.0]}, "t.1"),
        ({"t": [NOW - 600, NOW + 3600], "value": [1.0, 2.0]}, "t.1"),
        ({"t": [NOW - 16 * 86_400], "value": [1.0]}, "t.0"),
        ({"t": [0], "value": [1.0]}, "t.0"),
        ({"t": [-300], "value": [1.0]}, "t.0"),
        ({"t": [NOW - 300], "value": [-1.0]}, "value.0"),
        ({"t": [NOW - 300], "value": [1e300]}, "value.0"),
        ({"t": [NOW - 300], "value": ["1"]}, "value.0"),
        ({"t": [], "value": []}, "t"),
        ({"t": [NOW - 300]}, "value"),
        ({"t": [NOW - 300], "value": [1.0], "owner": "me"}, "owner"),
    ],
)
async def test_garbage_is_refused_with_the_field_and_changes_nothing(
    http: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await http.put("/v1/demand/chat", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert (await ask(http, name="chat"))["reasons"][0]["code"] == "NO_FEATURES"


async def test_the_client_pushes_names_of_all_kinds(build: Callable[..., Endpoint]) -> None:
    app = create_app(build(), manage=False)
    async with AsyncPredictionClient(URL, transport=httpx.ASGITransport(app), deadline_s=30.0) as client:
        for service in ("chat", "ml/chat", "a b?c#d", "größe", "100%25"):
            pushed = await client.push_demand(service, times(2), [1.0, None])
            assert (pushed.service, pushed.changed, pushed.newest_s) == (service, 1, NOW - GRID_S)
        with pytest.raises(RequestRefused, match="422"):
            await client.push_demand("x" * 254, times(1), [1.0])


def steady(buckets: int) -> list[float]:
    return [float(each) for each in np.random.default_rng(0).poisson(400, buckets)]


def severities(metrics: str) -> dict[str, float]:
    """Of ml/chat, by direction."""
    ours = [line for line in metrics.splitlines() if line.startswith("kopt_demand_anomaly{") and "ml/chat" in line]
    return {"lower" if "lower" in line else "higher": float(line.rpartition(" ")[2]) for line in ours}


async def answer_of(http: httpx.AsyncClient, service: str) -> dict[str, Any]:
    reply = await http.post("/v1/demand", json={"series": [{"name": service}]})
    series: dict[str, Any] = reply.json()["series"][0]
    return series


async def shown(http: httpx.AsyncClient) -> dict[str, float]:
    for _ in range(100):
        if severity := severities((await http.get("/metrics")).text):
            return severity
        await asyncio.sleep(0.1)
    raise AssertionError("no anomaly was shown in ten seconds")


async def test_a_service_that_dies_is_a_metric_also_after_a_start(build: Callable[..., Endpoint]) -> None:
    history = steady(5 * 288) + [0.0] * 3
    body = {"t": times(len(history)), "value": history}
    async with caller_of(build()) as http:
        await http.put("/v1/demand/ml/calm", json={"t": times(5 * 288), "value": steady(5 * 288)})
        await http.put("/v1/demand/ml/chat", json=body)
        severity = await shown(http)
        assert severity["lower"] >= 1
        assert severity["higher"] == 0
        text = (await http.get("/metrics")).text
        assert "ml/calm" not in text
        assert 'kopt_demand_anomaly_observed{service="ml/chat"} 0.0' in text
        assert 300 < float(text.partition('kopt_demand_anomaly_expected{service="ml/chat"} ')[2].split()[0]) < 500
        anomaly = (await answer_of(http, "ml/chat"))["anomaly"]
        assert anomaly["direction"] == "lower"
        assert anomaly["value"] == 0
        assert 300 < anomaly["expected"] < 500
        assert anomaly["severity"] == severity["lower"]
        assert NOW - 4 * GRID_S <= anomaly["since_s"] < NOW
        assert (await answer_of(http, "ml/calm"))["anomaly"] is None
    async with caller_of(build()) as http:
        await http.put("/v1/demand/ml/chat", json={"t": times(1), "value": [0.0]})
        assert await shown(http) == severity


def test_an_anomaly_is_shown_until_it_is_over_or_the_service_silent() -> None:
    value = np.array(steady(5 * 288 + 60))
    value[-60:-54], value[-3:] = 0.0, 0.0
    end_s, registry = 0.0, CollectorRegistry()
    anomalies = DemandAnomalies(registry, lambda: end_s)
    shown = []
    for end in range(len(value) - 61, len(value) + 1):
        series, end_s = DemandSeries("ml/chat", 0.0, GRID_S, value[:end]), float(end * GRID_S)
        anomalies.observe([series])
        shown.append(severities(generate_latest(registry).decode()).get("lower", 0.0) >= 1)
    assert shown[:2] == [False, False]
    assert shown[3:7] == [True] * 4
    assert shown[-20:-3] == [False] * 17
    assert shown[-1]
    end_s += 1000.0
    anomalies.observe([])
    assert severities(generate_latest(registry).decode()) == {"lower": 0.0, "higher": 0.0}
