"""``/v1/demand`` over HTTP in process: answers, refusals, deadlines, fallbacks."""

import asyncio
import json
import time
from pathlib import Path

import httpx
import pytest

from kopt.core.settings import Settings
from kopt.serving.contract.common import MAX_BODY_BYTES
from kopt.serving.contract.demand_answers import parse_forecast
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import URL, MemorySource, StandInModel, history, wave


async def post(
    http: httpx.AsyncClient, *series: dict[str, object], headers: dict[str, str] | None = None, **more: object
) -> httpx.Response:
    return await http.post("/v1/demand", json={"series": list(series), **more}, headers=headers)


async def test_every_series_and_horizon_gets_quantiles_of_demand_and_gpus(http: httpx.AsyncClient) -> None:
    reply = await post(
        http,
        history(),
        history(name="search"),
        capacity_per_gpu=4.0,
        unit="images",
        horizons_s=[300, 900],
        quantiles=[0.5, 0.99],
    )
    assert reply.status_code == 200
    document = reply.json()
    assert document["schema"] == "kopt/v1"
    forecast = parse_forecast(document)
    assert [series.name for series in forecast.series] == ["chat", "search"]
    assert not forecast.fallback
    for series in forecast.series:
        assert [h.horizon_s for h in series.horizons] == [300, 900]
        for horizon in series.horizons:
            assert horizon.demand.quantiles == {0.5: 11.0, 0.99: pytest.approx(16.39)}
            assert horizon.demand.unit == "images"
            assert horizon.demand.model.version == "1"
            assert horizon.demand.features_at_s == 600.0
            assert horizon.demand.reasons
            assert horizon.gpus is not None
            assert horizon.gpus.quantiles == {0.5: 3.0, 0.99: 5.0}
            assert horizon.gpus.reasons[0].numbers["provision_gpus"] == 5
    assert forecast.to_dict() == document


async def test_without_a_capacity_there_are_no_gpus(http: httpx.AsyncClient) -> None:
    document = (await post(http, history())).json()
    assert document["series"][0]["horizons"][0]["gpus"] is None


async def test_minutes_are_answered_in_five_minute_sums_and_the_capacity_follows(http: httpx.AsyncClient) -> None:
    document = (await post(http, history([2.0] * 13, step_s=60), capacity_per_gpu=1.0)).json()
    (series,) = document["series"]
    assert series["bucket_s"] == 300
    assert series["horizons"][0]["demand"]["value"] == 10.0
    assert series["horizons"][0]["gpus"]["value"] == 2.0
    # The newest five minutes count, not the first: 13 minutes end at minute 12.
    assert series["horizons"][0]["demand"]["features_at_s"] == 8 * 60.0


async def test_missing_buckets_and_nulls_are_gaps(http: httpx.AsyncClient, model: StandInModel) -> None:
    seen = []
    model.before = seen.append
    body = {"name": "chat", "t": [0, 300, 900], "value": [1.0, None, 4.0]}
    assert (await post(http, body)).status_code == 200
    assert str(seen[0].value.tolist()) == "[1.0, nan, nan, 4.0]"
    assert not seen[0].start_known


async def test_unix_times_are_known_as_such(http: httpx.AsyncClient, model: StandInModel) -> None:
    seen = []
    model.before = seen.append
    await post(
        http, {"name": "chat", "t": [1.75e9, 1.75e9 + 300], "value": [1, 2], "in_tok": [5, 6], "tenants": {"a": [1, 1]}}
    )
    assert seen[0].start_known
    assert seen[0].in_tokens.tolist() == [5.0, 6.0]
    assert seen[0].tenants["a"].tolist() == [1.0, 1.0]


async def test_no_history_and_no_store_is_a_refusal_that_says_what_to_do(http: httpx.AsyncClient) -> None:
    prediction = (await post(http, {"name": "chat"})).json()["series"][0]["horizons"][0]["demand"]
    assert prediction["refused"]
    assert prediction["value"] is None
    assert [reason["code"] for reason in prediction["reasons"]] == ["STORE_DOWN", "NO_HISTORY"]
    assert "send t and value" in prediction["reasons"][0]["message"]


async def test_a_history_of_gaps_is_refused_by_the_model_not_by_an_error(http: httpx.AsyncClient) -> None:
    reply = await post(http, history([None, None]))
    assert reply.status_code == 200
    assert reply.json()["series"][0]["horizons"][0]["demand"]["reasons"][0]["code"] == "TOO_SHORT"


WRONG = {
    "unsorted times": ({"t": [300, 0], "value": [1, 2]}, "series.0.t.1", "earlier"),
    "a time twice": ({"t": [0, 0], "value": [1, 2]}, "series.0.t.1", "repeats"),
    "off the step": ({"t": [0, 300, 700], "value": [1, 2, 3]}, "series.0.t.2", "not on the step"),
    "a step below a second": ({"t": [0, 0.25], "value": [1, 2]}, "series.0.t", "step"),
    "a step that does not divide the grid": ({"t": [0, 7], "value": [1, 2]}, "series.0.t", "divide"),
    "a span of millennia": ({"t": [0, 1, 1e11], "value": [1, 2, 3]}, "series.0.t", "spans"),
    "negative demand": ({"t": [0, 300], "value": [1, -2]}, "series.0.value.1", "negative"),
    "infinite demand": ({"t": [0, 300], "value": [1, 1e300]}, "series.0.value.1", "1e15"),
    "text": ({"t": [0, 300], "value": [1, "2"]}, "series.0.value.1", "number"),
    "a boolean": ({"t": [0, 300], "value": [1, True]}, "series.0.value.1", "number"),
    "different lengths": ({"t": [0, 300], "value": [1]}, "series.0.value", "1 items"),
    "tokens of another length": ({"t": [0], "value": [1], "in_tok": [1, 2]}, "series.0.in_tok", "2 items"),
    "tenant of another length": ({"t": [0], "value": [1], "tenants": {"x": []}}, "series.0.tenants.x", "at least 1"),
    "times without values": ({"t": [0]}, "series.0", "together"),
    "tokens alone": ({"in_tok": [1]}, "series.0.in_tok", "beside"),
    "an unknown field": ({"t": [0], "value": [1], "vlaue": [1]}, "series.0.vlaue", "not permitted"),
    "an empty history": ({"t": [], "value": []}, "series.0.t", "at least 1"),
    "too many points": ({"t": list(range(20_001)), "value": [1] * 20_001}, "series.0.t", "at most 20000"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_histories_are_refused_with_the_field(http: httpx.AsyncClient, case: str) -> None:
    columns, place, words = WRONG[case]
    reply = await post(http, {"name": "chat", **columns})
    problem = reply.json()
    assert reply.status_code == 422, problem
    assert reply.headers["content-type"] == "application/problem+json"
    assert problem["status"] == 422
    assert problem["errors"][0]["field"] == place
    assert words in problem["errors"][0]["message"]


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"horizons_s": [30]}, "horizons_s.0"),
        ({"horizons_s": [300, 300]}, "horizons_s"),
        ({"horizons_s": [90_000]}, "horizons_s.0"),
        ({"horizons_s": []}, "horizons_s"),
        ({"quantiles": [0.9, 0.5]}, "quantiles"),
        ({"quantiles": [1.0]}, "quantiles.0"),
        ({"capacity_per_gpu": 0}, "capacity_per_gpu"),
        ({"unit": ""}, "unit"),
        ({"horizons_s": [300.5]}, "horizons_s.0"),
    ],
)
async def test_wrong_questions_are_refused_with_the_field(
    http: httpx.AsyncClient, more: dict[str, object], place: str
) -> None:
    reply = await post(http, history(), **more)
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == place


async def test_names_that_repeat_are_refused(http: httpx.AsyncClient) -> None:
    reply = await post(http, history(), history())
    assert reply.json()["errors"][0]["field"] == "series.1.name"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {"content-type": "application/json"}, 400),
        (b"{", {"content-type": "application/json"}, 400),
        (b"[" * 100_000, {"content-type": "application/json"}, 400),
        (b"\xff\xfe", {"content-type": "application/json"}, 400),
        (b"null", {"content-type": "application/json"}, 422),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 415),
        (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        (b" " * (MAX_BODY_BYTES + 1), {"content-type": "application/json"}, 413),
    ],
)
async def test_bodies_that_are_no_request(
    http: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int
) -> None:
    reply = await http.post("/v1/demand", content=content, headers=headers)
    assert reply.status_code == status
    assert reply.json()["status"] == status


async def test_a_large_body_is_cut_off_while_it_streams(http: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> object:
        nonlocal sent
        while True:
            sent += 1 << 20
            yield b" " * (1 << 20)

    reply = await http.post("/v1/demand", content=endless(), headers={"content-type": "application/json"})  # type: ignore[arg-type]
    assert reply.status_code == 413
    assert sent <= MAX_BODY_BYTES + (2 << 20)


async def test_past_its_deadline_a_caller_gets_the_fallback_and_the_reason(http: httpx.AsyncClient) -> None:
    reply = await post(http, history(), headers={"x-kopt-deadline-ms": "0"}, capacity_per_gpu=4.0)
    forecast = parse_forecast(reply.json())
    assert forecast.fallback
    assert forecast.series[0].horizons[0].demand.reasons[0].code == "DEADLINE"
    assert forecast.series[0].horizons[0].demand.model.name == "last-value"
    assert forecast.series[0].horizons[0].gpus is not None


async def test_a_slow_batch_ends_at_the_deadline(http: httpx.AsyncClient, model: StandInModel) -> None:
    model.before = lambda _: time.sleep(0.2)
    started = time.monotonic()
    reply = await post(http, *(history(name=f"s{i}") for i in range(10)), headers={"x-kopt-deadline-ms": "150"})
    assert time.monotonic() - started < 0.6
    assert parse_forecast(reply.json()).fallback


@pytest.mark.parametrize("wrong", ["soon", "-1", "nan", "1e9"])
async def test_a_deadline_that_is_none_is_refused(http: httpx.AsyncClient, wrong: str) -> None:
    assert (await post(http, history(), headers={"x-kopt-deadline-ms": wrong})).status_code == 422


async def test_a_model_that_breaks_costs_nobody_an_answer(http: httpx.AsyncClient, model: StandInModel) -> None:
    def explode(series: object) -> None:
        raise ZeroDivisionError("a bug")

    model.before = explode
    forecast = parse_forecast((await post(http, history())).json())
    assert forecast.fallback
    assert forecast.series[0].horizons[0].demand.reasons[0].code == "MODEL_ERROR"
    assert "a bug" not in json.dumps(forecast.to_dict())


async def test_an_answer_that_is_not_finite_is_not_given(http: httpx.AsyncClient, model: StandInModel) -> None:
    model.factor = float("inf")
    forecast = parse_forecast((await post(http, history())).json())
    assert forecast.series[0].horizons[0].demand.reasons[0].code == "MODEL_ERROR"


async def test_many_series_in_one_request(http: httpx.AsyncClient) -> None:
    reply = await post(http, *(history(wave(288, i), name=f"service-{i}") for i in range(100)))
    forecast = parse_forecast(reply.json())
    assert len(forecast.series) == 100
    assert not forecast.fallback


async def test_too_many_at_once_are_told_when_to_come_back(source: MemorySource, tmp_path: Path) -> None:
    endpoint = assemble(Settings(home=tmp_path), Parts(source=source, most_at_once=2))
    endpoint.start()
    release = asyncio.Event()

    async def slow_body() -> object:
        yield b'{"series":'
        await release.wait()
        yield json.dumps([history()]).encode() + b"}"

    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        json_type = {"content-type": "application/json"}
        waiting = [
            asyncio.create_task(http.post("/v1/demand", content=slow_body(), headers=json_type)) for _ in range(2)
        ]  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        refused = await post(http, history())
        probe = await http.get("/healthz")
        release.set()
        answered = await asyncio.gather(*waiting)
        after = await post(http, history())
    endpoint.stop()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["type"] == "urn:kopt:problem:overloaded"
    assert probe.status_code == 200
    assert [reply.status_code for reply in answered] == [200, 200]
    assert after.status_code == 200


async def test_paths_and_methods_that_do_not_exist_are_problems_too(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/nothing")).json()["status"] == 404
    assert (await http.get("/v1/demand")).json()["status"] == 405


async def test_lending_advice_follows_what_was_asked(http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    one = history(gpus=8, min_gpus=2, pool="llm")
    other = history([40.0, 40.0], name="search", gpus=20, pool="llm")
    await post(http, one, other, history(name="elsewhere"), capacity_per_gpu=4.0)
    assert endpoint.service(DemandService).observer is not None
    endpoint.service(DemandService).observer.stop()
    (advice,) = (await http.get("/v1/recommendations")).json()["recommendations"]
    assert advice["pool"] == "llm"
    assert advice["services"] == ["chat", "search"]
    # 16.39 + 59.6 at the 99 % quantile, 4 per GPU: 19 of 28.
    assert advice["actions"] == [{"verb": "lend", "target": "llm", "amount": 9000, "unit": "milli-gpu"}]
    assert advice["reasons"][0]["numbers"]["minimum_gpus"] == 3
    assert [point["lendable_milli_gpu"] for point in advice["curve"]] == [9000, 9000, 9000]
