"""The client against endpoints that are slow, down, overloaded, wrong or lying."""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import pytest

from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.resilience import CircuitBreaker, RetryBudget
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.common import AnswerError
from kopt.serving.contract.demand_answers import DemandQuery, History
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.deploy import free_port
from tests.serving.conftest import URL, StandInModel

QUERY = DemandQuery([History("chat", t=[0, 300, 600], value=[10.0, None, 11.0])], capacity_per_gpu=4.0)
Answer = Callable[[httpx.Request], httpx.Response]


def client_of(answer: Answer, **options: object) -> AsyncPredictionClient:
    return AsyncPredictionClient(URL, transport=httpx.MockTransport(answer), **options)  # type: ignore[arg-type]


def reason(forecast: object) -> str:
    return str(forecast.series[0].horizons[0].demand.reasons[0].code)  # type: ignore[attr-defined]


@pytest.fixture
def served(endpoint: Endpoint) -> AsyncPredictionClient:
    return AsyncPredictionClient(URL, transport=httpx.ASGITransport(create_app(endpoint, manage=False)))


async def test_it_asks_and_understands_the_real_endpoint(served: AsyncPredictionClient, endpoint: Endpoint) -> None:
    forecast = await served.demand(QUERY)
    assert not forecast.fallback
    assert forecast.series[0].horizons[0].demand.value == 11.0
    assert forecast.series[0].horizons[0].gpus is not None
    assert await served.ready()
    assert [model.version for model in (await served.models()).models] == ["1"]
    health = await served.model_health()
    assert (health.model.version, health.challenger) == ("1", None)
    await served.demand(DemandQuery([History("chat", [0, 300], [1.0, 2.0], gpus=4)], capacity_per_gpu=1.0))
    assert endpoint.service(DemandService).observer is not None
    endpoint.service(DemandService).observer.stop()
    (advice,) = await served.recommendations()
    assert advice.curve[0].lendable_milli_gpu == 1000
    await served.close()


async def test_a_refused_request_raises_with_the_field(served: AsyncPredictionClient) -> None:
    with pytest.raises(RequestRefused, match=r"series\.0\.value\.0.*negative"):
        await served.demand(DemandQuery([History("chat", [0], [-1.0])]))


async def test_with_nobody_there_the_fallback_comes_in_time_and_says_why() -> None:
    async with AsyncPredictionClient(f"http://127.0.0.1:{free_port()}", deadline_s=0.3) as client:
        started = time.monotonic()
        forecast = await client.demand(QUERY)
        assert time.monotonic() - started < 0.45
        assert not await client.ready()
    assert forecast.fallback
    assert reason(forecast) == "ENDPOINT_UNREACHABLE"
    demand, gpus = forecast.series[0].horizons[0].demand, forecast.series[0].horizons[0].gpus
    assert demand.model.name == "last-value"
    assert demand.quantiles[0.95] >= 1.2 * 11.0
    assert gpus is not None
    assert gpus.quantiles[0.95] >= 4


@pytest.mark.parametrize("kind", ["silent", "dripping"])
async def test_an_endpoint_that_hangs_costs_no_more_than_the_deadline(kind: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" if kind == "dripping" else b"")
        for _ in range(200):
            if kind == "dripping":
                writer.write(b" ")
            await asyncio.sleep(0.02)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with AsyncPredictionClient(f"http://127.0.0.1:{port}") as client:
        started = time.monotonic()
        forecast = await client.demand(QUERY, deadline_s=0.25)
        assert time.monotonic() - started < 0.4
    assert reason(forecast) == "DEADLINE"
    server.close()


async def test_the_server_is_told_a_deadline_inside_the_callers() -> None:
    told = []

    def answer(request: httpx.Request) -> httpx.Response:
        told.append(float(request.headers["x-kopt-deadline-ms"]))
        return httpx.Response(500)

    async with client_of(answer) as client:
        await client.demand(QUERY, deadline_s=0.5)
    assert told[0] == pytest.approx(400, abs=20)
    assert all(later < first for first, later in itertools.pairwise(told))


async def test_a_failure_is_tried_again_and_can_succeed(endpoint: Endpoint) -> None:
    real = httpx.ASGITransport(create_app(endpoint, manage=False))
    calls = 0

    class Flaky(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise httpx.ConnectError("refused")
            return await real.handle_async_request(request)

    async with AsyncPredictionClient(URL, transport=Flaky()) as client:
        assert not (await client.demand(QUERY)).fallback
    assert calls == 3


async def test_retries_end_with_the_budget_and_the_circuit_opens() -> None:
    calls = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        return httpx.Response(500)

    async with client_of(answer, deadline_s=5.0) as client:
        for _ in range(20):
            last = await client.demand(QUERY)
    assert calls <= 7
    assert reason(last) == "CIRCUIT_OPEN"


async def test_an_overloaded_endpoint_is_left_alone_as_long_as_it_asks() -> None:
    calls = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        return httpx.Response(429, headers={"retry-after": "30"})

    async with client_of(answer) as client:
        started = time.monotonic()
        forecast = await client.demand(QUERY)
    assert (calls, reason(forecast)) == (1, "OVERLOADED")
    assert time.monotonic() - started < 0.3


async def test_waiting_for_readiness_does_not_open_the_circuit(endpoint: Endpoint) -> None:
    model, endpoint.service(DemandService).slot.current = endpoint.service(DemandService).slot.current, None
    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    async with AsyncPredictionClient(URL, transport=transport) as client:
        for _ in range(10):
            assert not await client.ready(deadline_s=0.05)
        endpoint.service(DemandService).slot.current = model
        assert await client.ready()


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"schema": "other"}),
        httpx.Response(200, json={"schema": "kopt/v1", "series": "x"}),
        httpx.Response(404, text="no route"),
        httpx.Response(302, headers={"location": "http://elsewhere/"}),
        httpx.Response(200, text="[" * 100_000),
    ],
)
async def test_answers_that_are_none_end_in_the_fallback(reply: httpx.Response) -> None:
    async with client_of(lambda _: reply, deadline_s=0.2) as client:
        assert reason(await client.demand(QUERY)) == "ENDPOINT_ERROR"
        with pytest.raises((AnswerError, EndpointFailure)):
            await client.models()


async def test_a_token_is_sent_where_there_is_one_and_never_shown() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(500, text="Bearer s3cret")

    async with client_of(answer, token=lambda: "s3cret", deadline_s=0.1) as client:
        forecast = await client.demand(QUERY)
    assert seen[0] == "Bearer s3cret"
    assert "s3cret" not in str(forecast.to_dict())


def test_the_synchronous_client_does_the_same(endpoint: Endpoint, model: StandInModel) -> None:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    with PredictionClient(URL, transport=transport) as client:
        assert client.demand(QUERY).series[0].horizons[0].demand.value == 11.0
        assert client.ready()
        assert client.models().models[0].serving
        assert client.model_health().model.version == "1"
        assert client.recommendations() == ()
    client.close()


def test_the_breaker_opens_probes_and_waits_longer_after_each_failed_probe() -> None:
    now = 0.0
    breaker = CircuitBreaker(lambda: now, failures=2, pause_s=1.0, longest_s=3.0)
    breaker.failed()
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()
    waits = []
    for _ in range(3):
        opened = now
        while not breaker.allows():
            now += 0.25
        waits.append(now - opened)
        assert not breaker.allows(), "one probe at a time"
        breaker.failed()
    assert waits == [1.0, 2.0, 3.0]
    now += 3.0
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
    assert not breaker.open


def test_the_retry_budget_is_a_share_of_successes() -> None:
    budget = RetryBudget(tokens=4, per_success=0.5)
    budget.failed()
    assert budget.allows
    budget.failed()
    assert not budget.allows
    budget.succeeded()
    assert budget.allows


def test_importing_the_client_brings_no_heavy_package() -> None:
    code = "import kopt.serving.client.client, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"ray", "torch", "numpy", "pandas", "mlflow", "feast", "lightgbm", "pydantic", "fastapi", "sqlalchemy"}
    assert not heavy & set(done.stdout.split())
