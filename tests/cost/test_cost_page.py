"""The page of costs, ``GET /v1/cost``, ``kopt.cost()`` and ``kopt cost``: the same sums, and each reader their own."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from pages_source import FixedSource
from postgres_server import PostgresServer, postgres

import kopt
from kopt.cli.cost.commands import answer
from kopt.cli.cost.reading import Source
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.budgets import Budget, BudgetStanding, BudgetState, Period
from kopt.core.cost.metering import GPU_HOUR
from kopt.core.scheduling.overview import Overview
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cost.data import COSTS, CostState
from kopt.dashboard.pages.cost.query import FIELDS, QueryError, read_request
from kopt.policies.cost.attribution import By, Grouping, Part, attributed
from kopt.policies.cost.documents import report_document, report_of
from kopt.policies.cost.invoice import invoice
from kopt.policies.cost.report import CostQuestion
from kopt.sdk.cost import CostError, cost, cost_events
from kopt.serving.base.database.interface import DatabaseError
from tests.cost.metered import HOUR_MS, FixedCosts, filled
from tests.dashboard.test_login import KnownUsers

__all__ = ["postgres"]
ADDRESS = "http://127.0.0.1:8701"
WINDOW = "since=2d"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def costs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FixedCosts]:
    if request.param == "sqlite":
        result = filled(tmp_path_factory.mktemp("costs") / "cost.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        result = filled(server.new_database())
    yield result
    result.store.close()


@pytest.fixture
def budgets() -> tuple[BudgetStanding, ...]:
    kinds = (
        Budget("of-a", Period.MONTH, 40_000, namespace="team-a", soft_percent=70),
        Budget("of-b", Period.DAY, 10_000, namespace="team-b"),
        Budget("of-all", Period.WEEK, 10_000, labels={"team": "vision"}),
    )
    return tuple(BudgetStanding(kind, BudgetState.SOFT, 30.0, 40.0, 50.0, f"Budget {kind.name}.") for kind in kinds)


@pytest.fixture
def ask(costs: FixedCosts, budgets: tuple[BudgetStanding, ...], tmp_path: Path) -> Callable[..., Any]:
    """The answer of an address, as somebody who shows a token; None where nobody logs in."""

    async def get(path: str, token: str | None = None, state: CostState | None = None) -> httpx.Response:
        source = FixedSource(
            {
                SNAPSHOT: Snapshot({}, Endpoint(ADDRESS), 1.9e9),
                COSTS: state or CostState(costs, costs.recorded()),
                OVERVIEW: Overview(cluster=True, now_s=1.9e9, budgets=budgets),
            }
        )
        login = None
        if token is not None:
            login = Login(KnownUsers(), Sessions(Fernet.generate_key().decode(), secure=False), "kopt")
        app = create_app(Settings(home=tmp_path), source=source, login=login)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers) as client:
            if token and not path.startswith("/v1/"):
                await client.post("/login", data={"token": token}, headers={"origin": ADDRESS})
            return await client.get(path)

    return get


@pytest.mark.parametrize("by", list(By))
async def test_page_endpoint_and_command_have_the_same_sums(ask: Callable[..., Any], costs: FixedCosts, by: By) -> None:
    now_ms = int(time.time() * 1000)
    window = costs.store.window(now_ms - 48 * HOUR_MS, now_ms)
    document = (await ask(f"/v1/cost?by={by}&{WINDOW}")).json()
    command = answer(Source(costs.store, window, costs.book), by)
    lines = invoice(costs.store.usages(window, costs.book))
    every = attributed(lines, Grouping(costs.store.attributes(), costs.store.nodes(), by))
    assert [(row["name"], int(row["milli_gpu_ms"]), row["micro"] or 0, row["pods"]) for row in document["costs"]] == [
        (row.name, row.used, 0 if row.unpriced else row.micro, row.pods) for row in every
    ]
    used = sum(int(row["milli_gpu_ms"]) for row in document["costs"])
    assert used == int(document["node_milli_gpu_ms"]) == sum(line.usage.used for line in lines)
    assert document["micro"] == document["node_micro"] == command.header["micro"]
    assert [row.gpu_hours for row in command.rows if row.gpu_hours] == [  # type: ignore[attr-defined]
        row["gpu_hours"] for row in document["costs"] if row["gpu_hours"]
    ]
    html = (await ask(f"/cost?by={by}&{WINDOW}")).text
    assert "They agree" in html
    for row in every:
        assert f"{row.used / GPU_HOUR:,.1f}" in html
    for micro in document["micro"].values():
        assert f"{micro / 1e6:,.2f}" in html


async def test_a_page_of_rows_and_its_rest_close_through_the_endpoint(ask: Callable[..., Any]) -> None:
    every = (await ask(f"/v1/cost?by=pod&{WINDOW}")).json()
    for offset in range(4):
        some = (await ask(f"/v1/cost?by=pod&limit=1&offset={offset}&{WINDOW}")).json()
        assert some["rows_in_all"] == len([row for row in every["costs"] if row["part"] == Part.PODS]) == 4
        assert sum(int(row["milli_gpu_ms"]) for row in some["costs"] + some["rest"]) == int(every["milli_gpu_ms"])
        assert some["micro"] == every["micro"]


async def test_a_tenant_sees_their_own_costs_and_nothing_of_others(ask: Callable[..., Any]) -> None:
    every = await ask(f"/v1/cost?{WINDOW}", "token-of-root")
    own = await ask(f"/v1/cost?{WINDOW}", "token-of-a")
    assert {row["name"] for row in own.json()["costs"]} == {"team-a"}
    assert own.json()["node_gpu_hours"] is None
    assert own.json()["namespaces"] == ["team-a"]
    (of_all,) = [row for row in every.json()["costs"] if row["name"] == "team-a" and row["currency"]]
    (of_own,) = [row for row in own.json()["costs"] if row["currency"]]
    assert (of_own["milli_gpu_ms"], of_own["pods"]) == (of_all["milli_gpu_ms"], of_all["pods"])
    assert abs(of_own["micro"] - of_all["micro"]) <= 1
    for by in By:
        for path in (f"/v1/cost?by={by}&{WINDOW}", f"/cost?by={by}&{WINDOW}"):
            text = (await ask(path, "token-of-a")).text
            assert "team-a" in text or by is not By.NAMESPACE
            for hidden in ("team-b", "team-c", "secret-of-b", "idle:", "language", "of-b", "of-all"):
                assert hidden not in text, (by, path, hidden)
    assert "language" in (await ask(f"/v1/cost?by=team&{WINDOW}", "token-of-root")).text


async def test_another_namespaces_cost_is_forbidden_whether_there_is_one_or_not(ask: Callable[..., Any]) -> None:
    refused = await ask(f"/v1/cost?namespace=team-b&{WINDOW}", "token-of-a")
    absent = await ask(f"/v1/cost?namespace=nowhere&{WINDOW}", "token-of-a")
    assert (refused.status_code, absent.status_code) == (403, 403)
    assert refused.json()["detail"] == absent.json()["detail"].replace("nowhere", "team-b")
    assert (await ask(f"/v1/cost?namespace=team-b&{WINDOW}", "token-of-b")).status_code == 200
    assert (await ask(f"/v1/cost?namespace=team-b&{WINDOW}", "token-of-root")).json()["costs"][0]["name"] == "team-b"
    # Of a row of others not even whether there is one; nor does a label or a second namespace lead to it.
    for row in ("team-b/secret-of-b", "(idle: reserved)", "nothing"):
        reply = await ask(f"/v1/cost/events?by=pod&{WINDOW}&row={row}", "token-of-a")
        assert reply.status_code == 404
        assert "secret" not in reply.text
    twice = await ask(f"/v1/cost?namespace=team-a&namespace=team-b&{WINDOW}", "token-of-a")
    assert twice.status_code == 403
    for path in (f"/v1/cost?{WINDOW}", "/v1/cost/events?row=team-a"):
        assert (await ask(path, "guessed")).status_code == 401
    html = (await ask(f"/cost?namespace=team-b&{WINDOW}", "token-of-a")).text
    assert "You may not list the pods of namespace team-b" in html
    assert "secret-of-b" not in html


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=99999999999999999999",
        "limit=-1",
        "limit=1e3",
        "limit=٣",
        "offset=-5",
        "by=everything",
        "since=forever",
        "since=0d",
        "since=999999w",
        "from=yesterday",
        "from=2026-01-01&until=2025-01-01",
        "from=2026-01-01&since=3d",
        "from=0001-01-01",
        "until=9999-12-31T23:59:59-23:59",
        "namespace=../kube-system",
        "namespace=a'%20OR%201=1",
        "label=a%27%20--",
        "namespaces=team-a",
    ],
)
async def test_what_cannot_be_asked_is_refused_in_words(ask: Callable[..., Any], query: str) -> None:
    reply = await ask(f"/v1/cost?{query}", "token-of-a")
    assert reply.status_code == 400, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert len(reply.json()["detail"]) > 20
    page = await ask(f"/cost?{query}", "token-of-a")
    assert page.status_code == 200
    assert "team-b" not in page.text


@given(st.dictionaries(st.sampled_from((*FIELDS, "more")), st.text(max_size=60), max_size=5))
def test_any_query_is_a_window_or_an_error(query: dict[str, str]) -> None:
    try:
        question = read_request(query, 1_900_000_000_000, limit=100).question
    except QueryError:
        return
    assert 0 <= question.start_ms < question.end_ms
    assert 1 <= question.limit <= 1000


async def test_a_line_is_explained_down_to_its_events(ask: Callable[..., Any]) -> None:
    rows = (await ask(f"/v1/cost?by=pod&{WINDOW}")).json()["costs"]
    for row in rows:
        name = row["name"]
        events = (await ask(f"/v1/cost/events?by=pod&{WINDOW}&row={name}")).json()
        of_name = [each for each in rows if each["name"] == name]
        assert sum(int(event["milli_gpu_ms"]) for event in events["events"]) == sum(
            int(each["milli_gpu_ms"]) for each in of_name
        )
        of_events, of_rows = (sum(each["micro"] or 0 for each in several) for several in (events["events"], of_name))
        assert abs(of_events - of_rows) <= 1
    html = (await ask(f"/cost?by=pod&{WINDOW}&row=team-a/train-0")).text
    assert "event by event" in html
    assert "node-1" in html
    assert "catalog" in html


async def test_budgets_have_their_marks_and_their_readers(ask: Callable[..., Any]) -> None:
    html = (await ask(f"/cost?{WINDOW}")).text
    for name in ("of-a", "of-b", "of-all"):
        assert f"Budget {name}." in html
    assert html.count('class="cost soft"') == html.count('class="cost hard"') == 3


def test_pages_need_no_right_but_to_read(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    own = filled(url)
    with own.store.database.transaction() as transaction:
        transaction.execute("CREATE ROLE cost_reader LOGIN PASSWORD 'reads'")
        transaction.execute("GRANT USAGE ON SCHEMA kopt TO cost_reader")
        transaction.execute("GRANT SELECT ON ALL TABLES IN SCHEMA kopt TO cost_reader")
    reader = CostStore(re.sub(r"//[^@/]*@", "//cost_reader:reads@", url), read_only=True)
    assert reader.metered_ms() == own.store.metered_ms()
    with pytest.raises(DatabaseError), reader.database.transaction() as transaction:
        transaction.execute("DELETE FROM cost_segments")
    # Whoever may write does not either.
    careful = CostStore(url, read_only=True)
    with pytest.raises(DatabaseError, match="25006"), careful.database.transaction() as transaction:
        transaction.execute("DELETE FROM cost_segments")
    for store in (reader, careful, own.store):
        store.close()


async def test_without_a_meter_it_says_what_is_missing(ask: Callable[..., Any], costs: FixedCosts) -> None:
    reply = await ask("/v1/cost", state=CostState())
    assert (reply.status_code, reply.json()["title"]) == (503, "No costs")
    reply = await ask("/v1/cost", state=CostState(costs, problem="the database does not answer"))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
    assert "No costs are metered yet" in (await ask("/cost", state=CostState())).text


async def test_a_report_is_read_back_as_it_was(costs: FixedCosts) -> None:
    now_ms = int(time.time() * 1000)
    for by in By:
        report = costs.report(CostQuestion(now_ms - 48 * HOUR_MS, now_ms, by, limit=2))
        assert report_of(json.loads(json.dumps(report_document(report)))) == report


def answering(status: int, body: bytes) -> httpx.MockTransport:
    return httpx.MockTransport(lambda request: httpx.Response(status, content=body))


def test_python_says_why_there_is_no_report() -> None:
    for status, body, word in (
        (403, b'{"detail": "You may not list the pods of namespace x."}', "You may not"),
        (200, b"<html>", "not as pages do"),
        (200, b'{"costs": 7}', "no report"),
        (200, b"[" * 100_000, "not as pages do"),
        (302, b"", "302"),
    ):
        with pytest.raises(CostError, match=word):
            cost(ADDRESS, token="secret", transport=answering(status, body))
    with pytest.raises(CostError, match="no bearer token"):
        cost(ADDRESS, token="a\r\nx-user: root")
    with pytest.raises(CostError, match="gives no answer") as failure:
        cost("http://127.0.0.1:9", token="a-secret")
    assert "a-secret" not in str(failure.value)


def test_a_notebook_shows_a_table_with_every_name_escaped(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    costs = filled(tmp_path / "cost.db", [("a", hostile, hostile, hostile, "n1", 4, {"team": hostile})])
    now_ms = int(time.time() * 1000)
    body = json.dumps(report_document(costs.report(CostQuestion(now_ms - 48 * HOUR_MS, now_ms)))).encode()
    report = kopt.cost(ADDRESS, transport=answering(200, body))
    assert isinstance(report, kopt.CostReport)
    html = report._repr_html_()
    assert hostile not in html
    assert "&lt;script&gt;" in html
    assert f"{report.used / GPU_HOUR:,.2f} of nodes" in html
    costs.store.close()


async def test_events_are_explained_by_the_pages_as_by_the_database(ask: Callable[..., Any], costs: FixedCosts) -> None:
    now_ms = int(time.time() * 1000)
    document = (await ask(f"/v1/cost/events?row=team-a&{WINDOW}")).content
    events, total = cost_events("team-a", ADDRESS, transport=answering(200, document))
    expected = costs.events(CostQuestion(now_ms - 48 * HOUR_MS, now_ms, limit=0), "team-a")
    assert total == len(events) == len(expected) > 1
    for event, other in zip(events, expected, strict=True):
        assert (event.who, event.node, event.milli, event.used) == (other.who, other.node, other.milli, other.used)
        assert (event.micro, event.price and event.price.source) == (other.micro, other.price and other.price.source)


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (404, b'{"detail": "No row that you may see has this name."}', "No row that you may see"),
        (200, b'{"events": 7, "events_in_all": 1}', "no events"),
        (200, b'{"events": [{"who": "x"}], "events_in_all": 1}', "no events"),
    ],
)
def test_python_says_why_there_are_no_events(status: int, body: bytes, word: str) -> None:
    with pytest.raises(CostError, match=word):
        cost_events("team-a", ADDRESS, transport=answering(status, body))
