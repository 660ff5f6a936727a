"""Who takes all that it can of the prediction endpoint gets its share; a web page that is not ours gets nothing."""

import asyncio
import contextlib
import json
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from asgi_server import served
from controlplane.processes import PATIENCE_S, free_port, spawn, wait_for
from hypothesis import given
from hypothesis import strategies as st
from serving.conftest import MemorySource, StandInModel, history, no_store
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kopt.cluster.client.auth_reviews import Caller
from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app as create_pages
from kopt.dashboard.heads import ImpatientProtocol
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.checkpoint.table import JobTable
from kopt.serving.demand import monitoring
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.lending_advice import Adviser
from kopt.serving.demand.observer import TableObserver
from kopt.serving.demand.series_cache import Memories
from kopt.serving.endpoint.app import MOST_AT_ONCE, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.endpoint.deploy import _haproxy_on_loopback
from kopt.serving.http.auth import Identity
from kopt.serving.http.limits import CALLER, FairShare, Gate, read_json
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem
from kopt.serving.http.sharing import KeptByCaller, Shares, fair_level
from kopt.serving.pairwise import table as pairwise
from kopt.serving.sizing import table as sizes
from kopt.serving.sizing.table import SizeTable, StoredEvidence

KIB = 1 << 10


class KnownTokens:
    """Stands in for the API server that reviews tokens."""

    async def caller(self, token: str) -> Caller | None:
        return {"a": Caller("alice"), "b": Caller("bob")}.get(token)

    async def may(self, caller: Caller, verb: str, path: str) -> bool:
        return True

    async def may_on_jobs(self, caller: Caller, verb: str, namespace: str) -> bool:
        return False


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """The address of one whose callers authenticate."""
    source = MemorySource()
    source.add(StandInModel())
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600, reviewer=KnownTokens())
    built = assemble(Settings(home=tmp_path, hosts="kopt.example.com"), parts)
    built.start()
    with served(create_app(built, manage=False)) as url:
        yield url
    built.stop()


def begin(url: str, path: str, headers: dict[str, str], body: bytes, length: int) -> socket.socket:
    """A request that is not finished."""
    target = httpx.URL(url)
    lines = [f"POST {path} HTTP/1.1", f"Host: {target.host}:{target.port}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + [f"Content-Length: {length}", "", ""]
    connection = socket.create_connection((target.host, target.port or 80), timeout=PATIENCE_S)
    connection.sendall("\r\n".join(lines).encode() + body)
    return connection


def test_slow_uploads_of_one_caller_leave_room_for_others(endpoint: str) -> None:
    body = {"series": [history()]}
    with contextlib.ExitStack() as opened, httpx.Client(base_url=endpoint, trust_env=False, timeout=PATIENCE_S) as http:
        slow = [opened.enter_context(begin(endpoint, "/v1/demand", bearer("a"), b"{", 1000)) for _ in range(70)]
        refused = slow[-1].recv(64 * KIB)
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nretry-after: 1\r\n" in refused
        assert http.post("/v1/demand", json=body, headers=bearer("a")).status_code == 429
        for _ in range(10):
            assert http.post("/v1/demand", json=body, headers=bearer("b")).status_code == 200
    with httpx.Client(base_url=endpoint, trust_env=False, timeout=PATIENCE_S) as http:
        # Who hangs up, or is too slow, has its share again.
        wait_for(lambda: http.post("/v1/demand", json=body, headers=bearer("a")).status_code == 200)


def test_bodies_of_one_caller_leave_memory_for_others() -> None:
    async def read(request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(str(len(await read_json(request))))
        except Problem as problem:
            return problem.response()  # type: ignore[return-value]

    class Named:
        """Believes callers who they are."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope[CALLER] = dict(scope["headers"]).get(b"x-caller", b"").decode()
            await self._app(scope, receive, send)

    app = Starlette(routes=[Route("/", read, methods=["POST"])])
    with contextlib.ExitStack() as opened:
        url = opened.enter_context(served(Named(FairShare(app, most=64, most_bytes=1024 * KIB))))
        http = opened.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S))

        def send(caller: str, size: int) -> httpx.Response:
            headers = {"x-caller": caller, "content-type": "application/json"}
            return http.post("/", content=b"x" * size, headers=headers)

        begun = [begin(url, "/", {"x-caller": "alice"}, b"x" * 300 * KIB, 301 * KIB) for _ in range(3)]
        for connection in begun:
            opened.enter_context(connection)
        wait_for(lambda: send("alice", 300 * KIB).status_code == 429)
        assert send("alice", 300 * KIB).headers["retry-after"] == "1"
        assert send("bob", 200 * KIB).text == str(200 * KIB)


async def test_one_caller_behind_a_shared_address_leaves_room_for_others_behind_it() -> None:
    held = asyncio.Event()

    async def hold(request: Request) -> PlainTextResponse:
        if request.url.path == "/held":
            await held.wait()
        return PlainTextResponse("done")

    async def send(token: str, path: str) -> int:
        async with httpx.AsyncClient(transport=transport, base_url="http://kopt") as http:
            return (await http.get(path, headers=bearer(token))).status_code

    routes = Starlette(routes=[Route("/held", hold), Route("/quick", hold)])
    identified = Identity(FairShare(routes, most=MOST_AT_ONCE), KnownTokens())
    gate = Gate(identified, EndpointMetrics(), MOST_AT_ONCE)
    # A proxy or a node's address translation stands between.
    transport = httpx.ASGITransport(gate, client=("10.0.0.9", 1))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        pending = [group.create_task(send("a", "/held")) for _ in range(70)]
        while not any(task.done() for task in pending):
            await asyncio.sleep(0.01)
        assert await send("a", "/quick") == 429
        assert [await send("b", "/quick") for _ in range(10)] == [200] * 10
        held.set()
    assert {task.result() for task in pending} == {200, 429}
    # What was given back early is given back once: all of the gate is free again.
    assert gate._shares.total == 0
    assert await send("nobody", "/quick") == 401
    assert gate._shares.total == 0


@given(greedy=st.lists(st.sampled_from("abcde"), max_size=300))
def test_a_newcomer_is_never_kept_out_by_a_few(greedy: list[str]) -> None:
    shares = Shares(MOST_AT_ONCE)
    for caller in greedy:
        shares.acquire(caller)
    assert shares.acquire("newcomer")


@given(counts=st.lists(st.integers(1, 50), max_size=20), most=st.integers(0, 300))
def test_the_level_of_fair_shares_fills_what_there_is(counts: list[int], most: int) -> None:
    level = fair_level(counts, most)
    assert sum(min(count, level) for count in counts) <= max(most, 0)
    if sum(counts) > most:
        assert sum(min(count, level + 1) for count in counts) > most


def test_job_names_of_one_caller_erase_nobody_elses(tmp_path: Path) -> None:
    table = JobTable(tmp_path / "jobs.db", most=400)
    for number in range(20):
        table.store("bob", f"research/job-{number}", None, float(number), "{}")
    # One agent tells of every tenant's jobs.
    for number in range(20):
        table.store("agent", f"quiet/job-{number}", None, float(number), "{}")
    for number in range(1500):
        table.store("alice", f"namespace-{number}/job", None, 1000.0 + number, "{}")
        table.store("agent", f"loud/job-{number}", None, 1000.0 + number, "{}")
    jobs = {(row.owner, row.job) for row in table.rows(None, 0.0, 10_000)}
    table.close()
    assert sum(owner == "bob" for owner, _ in jobs) == 20
    assert sum(job.startswith("quiet/") for _, job in jobs) == 20
    assert ("alice", "namespace-1499/job") in jobs
    assert ("agent", "loud/job-1499") in jobs
    assert len(jobs) <= 400 + 200


def test_job_types_of_one_caller_erase_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MOST_ROWS", 50)
    table = SizeTable(tmp_path / "sizes.db")
    table.put(["bob"], "mine", 0.0, sent=StoredEvidence(profile={"gpus": 1}), advice={"name": "mine"})
    for number in range(1200):
        table.put(["alice"], f"type-{number}", 1.0 + number, sent=StoredEvidence(), advice={"name": str(number)})
    kept = table.evidence("bob", "mine")
    table.close()
    assert json.loads(kept.profile or "null") == {"gpus": 1}


def test_series_of_one_caller_erase_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MOST_ROWS", 50)
    table = monitoring.PredictionTable(tmp_path / "predictions.db")
    insert = "INSERT INTO prediction VALUES (?,?,'champion',300,?,?,'1',300,1,1,0.9,1,NULL)"
    with table._db.transaction() as db:
        db.execute_many(insert, [("bob", f"s{n}", 0.0, 1000.0 + n) for n in range(5)])
        db.execute_many(insert, [("alice", f"s{n}", 0.0, 2000.0 + n) for n in range(500)])
    assert table.prune(3000.0) == 455
    rows = dict(table._db.query("SELECT caller, count(*) FROM prediction GROUP BY 1"))
    table.close()
    assert rows == {"bob": 5, "alice": 45}


def test_states_and_advice_of_one_caller_erase_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MOST_STATES", 50, raising=False)
    table = monitoring.PredictionTable(tmp_path / "predictions.db")
    for caller, count, at_s in (("bob", 5, 1000.0), ("alice", 500, 2000.0)):
        for n in range(count):
            state = (caller, f"s{n}", "champion", 1, 0.9, 0.95, 0.1, 0.2, None, False, (), at_s + n)
            table.put_state(monitoring.SeriesState(*state))
            table.put_advice(caller, f"pool-{n}", at_s + n, "{}", "{}")
    table.prune(3000.0)
    assert [len(table.states(caller, 1000)) for caller in ("bob", "alice")] == [5, 45]
    assert [len(table.advice(caller, 0.0)) for caller in ("bob", "alice")] == [5, 45]
    table.close()


def test_services_of_one_caller_leave_anothers_pool_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    members: dict[str, int] = {}
    adviser = Adviser(cast(Any, None), most=50)
    monkeypatch.setattr(adviser, "_advise", lambda name, found, _: members.update({name: len(found)}))

    def seen(caller: str, service: str, pool: str) -> Any:
        entry = SimpleNamespace(name=service, pool=pool, gpus=8)
        return SimpleNamespace(caller=caller, entry=entry, at_s=0.0, capacity_per_bucket=1.0)

    for number in range(4):
        adviser.observe(seen("bob", f"service-{number}", "chat"))
    for number in range(500):
        adviser.observe(seen("alice", f"service-{number}", f"pool-{number}"))
    adviser.observe(seen("bob", "service-0", "chat"))
    assert members["chat"] == 4


def test_observations_of_one_caller_leave_others_room_in_the_queue() -> None:
    dropped: list[str] = []
    metrics: Any = SimpleNamespace(dropped=SimpleNamespace(inc=lambda: dropped.append("")))
    observer = TableObserver(cast(Any, None), metrics)
    for _ in range(2000):
        observer.observe(cast(Any, SimpleNamespace(caller="alice")))
    before = len(dropped)
    assert before
    observer.observe(cast(Any, SimpleNamespace(caller="bob")))
    assert len(dropped) == before


def test_series_in_memory_of_one_caller_erase_nobody_elses() -> None:
    memories, model = Memories(most=50), ModelVersion("demand", "1")

    def series(name: str) -> Any:
        return SimpleNamespace(name=name, start_s=0.0, step_s=300)

    own = memories.of("bob", model, series("s"))
    for number in range(500):
        memories.of("alice", model, series(f"s{number}"))
    assert memories.of("bob", model, series("s")) is own
    assert len(memories) == 50


def test_jobs_in_memory_of_one_caller_erase_nobody_elses() -> None:
    slot = cast(Any, SimpleNamespace(name="checkpoint"))
    service = CheckpointService(slot, EndpointMetrics(), cast(Any, None), most_held=50)
    held: Any = SimpleNamespace(stamp="1", job=SimpleNamespace(session=SimpleNamespace(lines=1)))
    service._hold(("bob", "research/job"), held)
    for number in range(500):
        service._hold(("alice", f"research/job-{number}"), held)
    kept: Any = service._held
    assert len(kept) == 50
    assert kept.get("bob", "research/job") if isinstance(kept, KeptByCaller) else kept.get(("bob", "research/job"))


def test_measured_pairs_of_many_clusters_have_a_limit_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "MAX_MEASUREMENTS_OF_ALL", 50, raising=False)
    monkeypatch.setattr(pairwise, "MOST_CLUSTERS_OF_ALL", 20, raising=False)
    table = pairwise.PairTable(tmp_path / "pairs.db")
    table.keep("bob", "own", [], {"a": "{}"}, {}, 0.0)
    for number in range(120):
        # A tenant makes itself many accounts.
        topologies = {f"n{k}": "{}" for k in range(10)}
        table.keep(f"alice-{number % 4}", f"cluster-{number}", [], topologies, {}, 1.0 + number)
    assert table.load("own", pairwise.Scope("bob", every=False)) is not None
    kept = table.load("own", pairwise.Scope("bob", every=False))
    assert kept is not None
    assert set(kept.nodes) == {"a"}
    assert len(table.clusters(None)) <= 20
    with contextlib.closing(sqlite3.connect(tmp_path / "pairs.db")) as database:
        assert database.execute("SELECT count(*) FROM node").fetchone()[0] <= 50
    table.close()


FOREIGN = [
    "evil.example",
    "evil.example:8700",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.svc.example",
    "evil.example@127.0.0.1",
    "127.0.0.1:80:80",
    "127.0.0.1:x",
    "",
    "evil.example.",
    "kopt.example.com.evil.example",
]
OURS = [
    "127.0.0.1",
    "127.0.0.1:8700",
    "localhost:8700",
    "LOCALHOST",
    "[::1]:8700",
    "10.0.3.7:8000",
    "[fd00::7]",
    "kopt-predictions:8000",
    "kopt-predictions.kopt-system.svc",
    "kopt-predictions.kopt-system.svc.cluster.local:8000",
    "kopt.example.com",
    "Kopt.Example.Com:443",
]


def test_the_endpoint_answers_under_no_foreign_name(endpoint: str) -> None:
    with httpx.Client(base_url=endpoint, trust_env=False, timeout=PATIENCE_S) as http:
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v2", "/none"):
            for name in FOREIGN:
                answer = http.get(path, headers={"host": name})
                assert answer.status_code in (400, 421), (path, name, answer.text)
                if answer.status_code == 421:
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["type"] == "urn:kopt:problem:foreign-host"
            for name in OURS:
                assert http.get(path, headers={"host": name}).status_code not in (400, 421), (path, name)
    with socket.create_connection((httpx.URL(endpoint).host, httpx.URL(endpoint).port or 80)) as twice:
        twice.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert twice.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 421")


def test_the_pages_answer_under_no_foreign_name(tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        # No page is asked for its content under a foreign name, so there is none.
        nothing: Any = object()
        url = opened.enter_context(served(create_pages(Settings(home=tmp_path), source=nothing)))
        http = opened.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S))
        for path in ("/", "/models", "/metrics", "/static/style.css", "/none"):
            for name in FOREIGN:
                assert http.get(path, headers={"host": name}).status_code in (400, 421), (path, name)
        assert http.get("/metrics").status_code == 200


HALF_A_HEAD = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD], ids=["nothing", "half-a-head"])
def test_the_pages_wait_for_no_head_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(ImpatientProtocol, "head_s", 0.5)
    nothing: Any = object()
    with served(create_pages(Settings(home=tmp_path), source=nothing), http=ImpatientProtocol) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port or 80), timeout=PATIENCE_S) as slow:
            slow.sendall(sent)
            assert slow.recv(64) == b""
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as http:
            assert [http.get("/metrics").status_code for _ in range(2)] == [200, 200]


CONFIGURATION = """
defaults
    mode http
    timeout connect 5s
    timeout client 75s
    timeout server 75s
frontend http
    bind *:{port}
    http-request return status 200
"""


def test_the_proxy_waits_for_no_head_for_ever(tmp_path: Path) -> None:
    template = find_spec("ray.serve._private.haproxy_templates")
    assert template is not None
    assert template.origin is not None
    assert "\ndefaults\n" in Path(template.origin).read_text(), "the script below changes what Ray writes"
    file, port = tmp_path / "haproxy.cfg", free_port()
    file.write_text(CONFIGURATION.format(port=port))
    proxy = spawn([_haproxy_on_loopback(tmp_path), "-f", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with wait_for(lambda: connected(port)) as slow:
            slow.sendall(HALF_A_HEAD)
            assert slow.recv(64).startswith(b"HTTP/1.1 408 ")
    finally:
        proxy.kill()
        proxy.wait()


def connected(port: int) -> socket.socket | None:
    # Less than the 75 seconds after which the proxy would end any silent connection.
    with contextlib.suppress(ConnectionRefusedError):
        return socket.create_connection(("127.0.0.1", port), timeout=60.0)
    return None
