"""Answers of Prometheus become buckets, or an error that says what is wrong; nothing else."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client import prometheus
from kopt.cluster.client.prometheus import Prometheus, PrometheusError
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.prometheus import DemandQueries, read_matrix

FIRST = 5_668_000
SOURCE = DemandSource("ml/chat", "sum(increase(x[$step]))")
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def matrix(*series: list[list[Any]]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": [{"values": values} for values in series]}}


def point(bucket: int, value: str) -> list[Any]:
    return [(bucket + 1) * 300, value]


def test_points_are_the_ends_of_their_buckets_and_nan_is_a_gap() -> None:
    document = matrix([point(FIRST, "3"), point(FIRST + 1, "NaN"), point(FIRST + 3, "0")])
    assert read_matrix(document, FIRST, FIRST + 3) == {FIRST: 3.0, FIRST + 3: 0.0}
    assert read_matrix(matrix(), FIRST, FIRST + 3) == {}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (matrix([point(FIRST, "1")], [point(FIRST, "2")]), "SeveralSeries"),
        (matrix([point(FIRST, "-1")]), "NoDemand"),
        (matrix([point(FIRST, "+Inf")]), "NoDemand"),
        (matrix([point(FIRST + 9, "1")]), "BadAnswer"),
        (matrix([[FIRST * 300 + 17, "1"]]), "BadAnswer"),
        (matrix([point(FIRST, "one")]), "BadAnswer"),
        ({"status": "error"}, "BadAnswer"),
        ([], "BadAnswer"),
        ({"data": {"result": {}}}, "BadAnswer"),
    ],
)
def test_what_is_no_demand_is_an_error_with_a_reason(document: Any, reason: str) -> None:
    if document == {"data": {"result": {}}}:
        assert read_matrix(document, FIRST, FIRST) == {}
        return
    with pytest.raises(PrometheusError) as raised:
        read_matrix(document, FIRST, FIRST)
    assert raised.value.reason == reason


@given(json_values)
def test_no_answer_breaks_the_reader(document: Any) -> None:
    for answer in (document, {"data": document}, {"data": {"result": document}}, matrix([document])):
        try:
            read_matrix(answer, FIRST, FIRST + 5)
        except PrometheusError:
            continue


async def ask(handler: Any) -> Any:
    async with Prometheus(
        "http://prometheus/prefix", token=lambda: "secret", transport=httpx.MockTransport(handler)
    ) as server:
        return await DemandQueries(server).buckets(SOURCE, FIRST, FIRST + 1)


async def test_the_query_asks_for_the_ends_of_the_buckets_with_the_step_filled_in() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=matrix([point(FIRST + 1, "4")]))

    assert await ask(answer) == {FIRST + 1: 4.0}
    form = dict(httpx.QueryParams(requests[0].content.decode()))
    assert requests[0].url.path == "/prefix/api/v1/query_range"
    assert requests[0].headers["authorization"] == "Bearer secret"
    assert (form["query"], form["step"]) == ("sum(increase(x[300s]))", "300")
    assert (form["start"], form["end"]) == (str((FIRST + 1) * 300), str((FIRST + 2) * 300))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (httpx.Response(400, json={"error": "parse\x1b[31m error"}), "Refused"),
        (httpx.Response(302, headers={"location": "http://elsewhere"}, json={}), "Refused"),
        (httpx.Response(200, text="<html>"), "BadAnswer"),
        (httpx.Response(200, content=b"[" * 100_000), "BadAnswer"),
        (httpx.ConnectError("refused"), "Unreachable"),
        (httpx.ReadTimeout("slow"), "Timeout"),
    ],
)
async def test_a_server_that_does_not_answer_is_an_error_with_a_reason(reply: Any, reason: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if isinstance(reply, Exception):
            raise reply
        return reply

    with pytest.raises(PrometheusError) as raised:
        await ask(answer)
    assert raised.value.reason == reason
    assert str(raised.value).isprintable()
    assert "secret" not in str(raised.value)


async def test_answers_are_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "LARGEST_ANSWER_BYTES", 1000)
    with pytest.raises(PrometheusError, match="larger"):
        await ask(lambda _: httpx.Response(200, content=json.dumps(matrix([point(FIRST, "1" * 2000)]))))


def test_the_token_is_read_for_each_query(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = prometheus.token_of(file)
    assert token is not None
    with pytest.raises(PrometheusError) as raised:
        token()
    assert raised.value.reason == "NoToken"
    for text in ("first", "second"):
        file.write_text(f"{text}\n")
        assert token() == text
    assert prometheus.token_of(None) is None
