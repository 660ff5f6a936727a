"""Who may push demand spoils the forecasts of services that it may push for at most; no caller fills the store."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from serving.conftest import URL, MemorySource, StandInModel, no_store

from kopt.cluster.client.auth_reviews import Caller
from kopt.core.settings import Settings
from kopt.features.live import LiveHistories, SqliteBackend
from kopt.serving.contract.common import MAX_BODY_BYTES
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.live import LiveDemand
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble

NEWEST = int(time.time()) // 300 * 300 - 300
BUCKET = {"t": [NEWEST], "value": [7.0]}


class Rights:
    """``reader`` asks, as every component of ours may; ``team`` also pushes under its namespace, ``ingester`` all."""

    async def caller(self, token: str) -> Caller | None:
        return Caller(token) if token in ("reader", "team", "other", "ingester") else None

    async def may(self, caller: Caller, verb: str, path: str) -> bool:
        # As RBAC reads nonResourceURLs: a star at the end stands for any text.
        prefixes = {"team": "/v1/demand/team/", "other": "/v1/demand/other/", "ingester": "/v1/demand/"}
        return verb in ("get", "post") or (verb == "put" and path.startswith(prefixes.get(caller.name, "\0")))

    async def may_on_jobs(self, caller: Caller, verb: str, namespace: str) -> bool:
        return False


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    source = MemorySource()
    source.add(StandInModel())
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600, reviewer=Rights())
    built = assemble(Settings(home=tmp_path), parts)
    # Room for few, so that filling it takes no time.
    histories = LiveHistories(SqliteBackend(tmp_path / "demand.db"), most=6)
    built.service(DemandService)._live = LiveDemand(lambda: histories)
    built.start()
    yield built
    built.stop()


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        yield client


async def push(http: httpx.AsyncClient, who: str, service: str, body: Any = BUCKET) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {who}", "content-type": "application/json"}
    return await http.put(f"/v1/demand/{service}", content=content, headers=headers)


async def known(http: httpx.AsyncClient, service: str) -> float | None:
    body = {"series": [{"name": service}]}
    answer = await http.post("/v1/demand", json=body, headers={"authorization": "Bearer reader"})
    value: float | None = answer.json()["series"][0]["horizons"][0]["demand"]["value"]
    return value


async def test_the_right_to_ask_is_no_right_to_push(http: httpx.AsyncClient) -> None:
    assert (await push(http, "reader", "team/chat")).status_code == 403
    assert (await push(http, "nobody", "team/chat")).status_code == 401
    assert await known(http, "team/chat") is None


@pytest.mark.parametrize("service", ["other/chat", "chat", "team", "TEAM/chat", "/team/chat", "%2Fteam%2Fchat"])
async def test_a_team_pushes_only_under_its_namespace(http: httpx.AsyncClient, service: str) -> None:
    assert (await push(http, "team", service)).status_code == 403


@pytest.mark.parametrize(
    "path", ["team/../other/chat", "team/%2e%2e/other/chat", "team/..%2Fother/chat", "team//../../other/chat"]
)
async def test_no_path_leads_out_of_a_namespace(endpoint: Endpoint, http: httpx.AsyncClient, path: str) -> None:
    status = await on_the_wire(create_app(endpoint, manage=False), f"/v1/demand/{path}")
    assert status in (200, 422), "the name is kept as it is, or refused"
    assert await known(http, "other/chat") is None


async def on_the_wire(app: Any, path: str) -> int:
    """The status of a push to a path as a server takes it from the wire: clients resolve dots, attackers do not."""
    content, statuses = json.dumps(BUCKET).encode(), list[int]()
    headers = {"host": "endpoint", "authorization": "Bearer team", "content-type": "application/json"}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "PUT",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("10.0.0.9", 1),
        "server": ("endpoint", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


async def test_one_team_fills_its_half_and_no_more(http: httpx.AsyncClient) -> None:
    codes = [(await push(http, "team", f"team/{i}")).status_code for i in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    assert (await push(http, "other", "other/chat")).status_code == 200
    assert (await push(http, "team", "team/0", {"t": [NEWEST], "value": [8.0]})).status_code == 200


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "x" * 254, "", " ", "\x1b[31m", "\u202e"])
async def test_names_that_no_log_should_show_are_refused(http: httpx.AsyncClient, name: str) -> None:
    answer = await push(http, "ingester", quote(name, safe=""))
    assert answer.status_code in (422, 404)
    assert "problem+json" in answer.headers["content-type"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 100_000,
        b'{"t": [1e999], "value": [1]}',
        b'{"t": [NaN], "value": [1]}',
        b'{"t": [1], "value": [Infinity]}',
        json.dumps({"t": [NEWEST] * 20_001, "value": [1.0] * 20_001}).encode(),
        json.dumps({"t": [NEWEST + 300 * i for i in range(9_000)], "value": [1.0] * 9_000}).encode(),
        json.dumps({"t": [NEWEST], "value": [True]}).encode(),
        b'\xff\xfe{"t"',
    ],
)
async def test_bodies_that_are_no_buckets_are_refused_in_words(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await push(http, "ingester", "ml/chat", body)
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 16_384
    assert await known(http, "ml/chat") is None


async def test_a_body_that_is_too_large_is_not_read(http: httpx.AsyncClient) -> None:
    assert (await push(http, "ingester", "ml/chat", b" " * (MAX_BODY_BYTES + 1))).status_code == 413


async def test_a_web_page_cannot_push_with_a_form(http: httpx.AsyncClient) -> None:
    headers = {"authorization": "Bearer ingester", "content-type": "text/plain"}
    answer = await http.put("/v1/demand/ml/chat", content=json.dumps(BUCKET), headers=headers)
    assert answer.status_code == 415
