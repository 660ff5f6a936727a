"""The page of alerts: what fires, who may see it, and who says that they look after it."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pages_source import FixedSource
from postgres_server import PostgresServer, postgres
from prometheus_server import RunningPrometheus

from kopt.cli.alerts.acknowledgements import Acknowledgements
from kopt.cli.local.example.alerts import ExampleAlerts
from kopt.cli.local.pages.alerts import RecordedAlerts, alerts_of
from kopt.core.alerts.acknowledgement import LONGEST_NOTE, Acknowledgement
from kopt.core.alerts.catalogue import alert_rules
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.access import ALL_NAMESPACES, Right, pods_in
from kopt.dashboard.data.alerts import AlertHistory, AlertsError
from kopt.dashboard.login.authority import User
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Session, Sessions
from kopt.dashboard.pages.alerts.data import ALERTS, DAY_S, WINDOWS_S, Alerts, rights_to
from kopt.dashboard.pages.alerts.view import WIDTH, alerts_page
from kopt.data.demand.prometheus import Server
from kopt.serving.base.database.interface import DatabaseError
from tests.alerts.made_alerts import episode
from tests.dashboard.test_login import ADDRESS, KEY, KnownUsers
from tests.gpu_history import Metric, history

__all__ = ["postgres"]
NOW_S = 1_900_000_000.0


class Kept:
    """Acknowledgements that the page wanted kept; ``problem`` is raised in place of it."""

    def __init__(self, problem: str = "") -> None:
        self.items: list[Acknowledgement] = []
        self.problem = problem

    async def __call__(self, item: Acknowledgement) -> None:
        if self.problem:
            raise AlertsError(self.problem)
        self.items.append(item)


OF_A = episode("KoptPodRestarts", "warning", time.time() - 600, namespace="team-a", pod="trainer-of-a")
OF_CLUSTER = episode("KoptGpuXidFatal", "critical", time.time() - 600, node="node-7")


def app_of(kept: Kept, *, with_login: bool = True) -> Any:
    listed = AlertHistory((OF_A, OF_CLUSTER))
    source = FixedSource({ALERTS: Alerts((("7d", listed),), kept)})
    login = Login(KnownUsers(), Sessions(KEY, secure=False)) if with_login else None
    return create_app(Settings(home=Path("/nowhere")), source=source, login=login)


def browser(app: Any, user: str = "") -> httpx.AsyncClient:
    sealed = Sessions(KEY, secure=False).sealed(Session(time.time() + 600, user=User(user))) if user else ""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=ADDRESS, cookies={"kopt": sealed} if user else {})


async def test_whoever_is_logged_in_acknowledges_under_their_own_name() -> None:
    kept = Kept()
    async with browser(app_of(kept), "ann") as client:
        assert OF_A.identity in (await client.get("/alerts")).text
        reply = await client.post("/alerts?since=1d", data={"alert": OF_A.identity, "note": " drained ", "who": "root"})
    assert (reply.status_code, reply.headers["location"]) == (303, "/alerts?since=1d")
    assert [(each.identity, each.who, each.note) for each in kept.items] == [(OF_A.identity, "ann", "drained")]


@pytest.mark.parametrize(
    "fields",
    [
        {"alert": OF_CLUSTER.identity},
        {"alert": "made-up"},
        {},
        {"alert": OF_A.identity, "note": "x" * (LONGEST_NOTE + 1)},
        {"alert": OF_A.identity, "note": "two\nlines"},
        {str(number): "x" for number in range(30)},
    ],
    ids=["not hers", "unknown", "empty", "long", "lines", "fields"],
)
async def test_what_cannot_be_acknowledged_is_said_and_not_kept(fields: dict[str, str]) -> None:
    kept = Kept()
    async with browser(app_of(kept), "ann") as client:
        reply = await client.post("/alerts", data=fields)
    assert reply.status_code == 200
    assert 'role="alert"' in reply.text
    assert kept.items == []


async def test_somebody_who_acknowledges_without_end_is_stopped() -> None:
    kept = Kept()
    said = tuple(Acknowledgement(OF_A.identity, time.time() - number, "ann") for number in range(60))
    history = AlertHistory((OF_A,), said, 60)
    source = FixedSource({ALERTS: Alerts((("1d", history),), kept)})
    login = Login(KnownUsers(), Sessions(KEY, secure=False), "kopt-pages")
    async with browser(create_app(Settings(home=Path("/nowhere")), source=source, login=login), "ann") as client:
        reply = await client.post("/alerts", data={"alert": OF_A.identity})
    assert "within an hour" in reply.text
    assert kept.items == []


def test_what_fires_now_is_known_by_the_closest_samples_and_since_when_by_the_longest() -> None:
    began, over = (episode("KoptGpuIdle", "info", NOW_S - 9 * DAY_S, namespace=name) for name in ("a", "b"))
    fresh = episode("KoptGpuXidFatal", "critical", NOW_S - 600, node="n")
    close = AlertHistory((fresh, replace(began, fired_s=NOW_S - DAY_S)), (), 60)
    coarse = AlertHistory((began, over), (), 1296)
    firing = Alerts((("1d", close), ("30d", coarse))).firing
    assert firing == (fresh, began)
    page = alerts_page(coarse, 30 * DAY_S, NOW_S, firing)
    assert [line.alert for line in page.firing] == ["KoptGpuXidFatal", "KoptGpuIdle"]


def test_thousands_of_bars_of_a_rule_are_not_drawn_on_one_another() -> None:
    flaps = [
        episode("KoptPodRestarts", "warning", NOW_S - number * 60, NOW_S - number * 60 + 30, pod=f"p{number}")
        for number in range(20_000)
    ]
    page = alerts_page(AlertHistory(tuple(flaps), (), 60), 30 * DAY_S, NOW_S)
    (lane,) = page.lanes
    assert len(lane.bars) <= WIDTH / 3 + 1
    assert lane.text.startswith("KoptPodRestarts fired 20000 times")


async def test_a_database_that_is_away_is_said() -> None:
    async with browser(app_of(Kept("Acknowledgements cannot be used: away")), "ann") as client:
        assert "cannot be used: away" in (await client.post("/alerts", data={"alert": OF_A.identity})).text


async def test_forms_of_other_sites_of_nobody_and_huge_ones_are_refused() -> None:
    kept, fields = Kept(), {"alert": OF_A.identity}
    async with browser(app_of(kept), "ann") as client:
        foreign = await client.post("/alerts", data=fields, headers={"origin": "https://evil.example"})
        huge = await client.post("/alerts", data={**fields, "note": "x" * 10_000})
    async with browser(app_of(kept)) as client:
        nobody = await client.post("/alerts", data=fields)
    async with browser(app_of(kept, with_login=False)) as client:
        open_page = await client.post("/alerts", data=fields)
    assert [each.status_code for each in (foreign, huge, nobody, open_page)] == [403, 413, 401, 403]
    assert kept.items == []


async def test_where_nobody_logs_in_the_page_shows_the_command() -> None:
    async with browser(app_of(Kept(), with_login=False)) as client:
        text = (await client.get("/alerts")).text
    assert f"kopt alerts acknowledge {OF_A.identity}" in text
    assert "<form class" not in text


async def test_each_sees_the_alerts_of_their_namespaces() -> None:
    texts = {}
    for user in ("ann", "bob", "root"):
        async with browser(app_of(Kept()), user) as client:
            texts[user] = (await client.get("/alerts")).text
    seen = {user: ("trainer-of-a" in text, "node-7" in text) for user, text in texts.items()}
    assert seen == {"ann": (True, False), "bob": (False, False), "root": (True, True)}
    assert texts["root"].index("KoptGpuXidFatal") < texts["root"].index("KoptPodRestarts")


@pytest.mark.parametrize(
    ("labels", "namespaces"),
    [
        ({"namespace": "team-a"}, {"team-a"}),
        ({"namespace": "kopt", "exported_namespace": "team-a"}, {"team-a"}),
        ({"service": "team-a/chat"}, {"team-a"}),
        ({"service": "team-a/chat", "namespace": "kopt"}, {"team-a", "kopt"}),
        ({"service": "kube-dns"}, {ALL_NAMESPACES}),
        ({"node": "n"}, {ALL_NAMESPACES}),
    ],
)
def test_the_rights_to_an_alert_are_those_of_what_it_names(labels: dict[str, str], namespaces: set[str]) -> None:
    wanted: set[Right] = {pods_in(name) for name in namespaces}
    assert set(rights_to(episode("KoptGpuIdle", "info", 0, **labels))) == wanted


def test_bars_lie_where_alerts_fired_and_words_count_for_their_own_episode() -> None:
    first = episode("KoptGpuIdle", "info", NOW_S - 18 * 3600, NOW_S - 12 * 3600, namespace="a")
    again = episode("KoptGpuIdle", "info", NOW_S - 3600, namespace="a")
    older = episode("KoptGpuXidFatal", "critical", NOW_S - 9 * DAY_S, NOW_S - 23.9 * 3600, node="n")
    said = Acknowledgement(first.identity, NOW_S - 15 * 3600, "ada", "looking")
    page = alerts_page(AlertHistory((again, first, older), (said,), 60), DAY_S, NOW_S)
    assert [lane.alert for lane in page.lanes] == ["KoptGpuXidFatal", "KoptGpuIdle"]
    assert [(bar.x, bar.width) for bar in page.lanes[1].bars] == [(250.0, 250.0), (958.3, 41.7)]
    assert page.lanes[1].text == "KoptGpuIdle fired 2 times, 1 of them still"
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH for lane in page.lanes for bar in lane.bars)
    assert [bool(line.acknowledged) for line in page.rows] == [False, True, False]
    assert (len(page.firing), page.unacknowledged) == (1, 1)
    assert page.firing[0].do
    unusual = episode("KoptDemandUnusual", "info", NOW_S - 60, service="research/chat", direction="lower")
    (line,) = alerts_page(AlertHistory((unusual,)), DAY_S, NOW_S).firing
    assert line.summary == "Demand of research/chat is lower than its past lets expect."
    assert not re.search(r"[{}]", page.firing[0].summary)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    labels = {"alertname": "KoptGpuIdle", "severity": "info", "namespace": "research", "alertstate": "firing"}
    server = RunningPrometheus(tmp_path_factory.mktemp("prometheus"), history(Metric("ALERTS", labels, 1.0, 3600)))
    yield server.url
    server.stop()


@pytest.mark.services
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def test_what_prometheus_keeps_and_somebody_said_is_read_together(
    prometheus: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where: Path | str = tmp_path / "alerts.db"
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        where = server.new_database()
    source = RecordedAlerts(lambda: Server(prometheus), where)
    (fires,) = source.history(DAY_S).episodes
    source.acknowledge(Acknowledgement(fires.identity, time.time(), "ada", "ünïcode ' note"))
    again = RecordedAlerts(lambda: Server(prometheus), where).history(DAY_S)
    assert [(each.who, each.note) for each in again.acknowledgements] == [("ada", "ünïcode ' note")]
    assert alerts_page(again, DAY_S, time.time()).unacknowledged == 0


@pytest.mark.long
def test_acknowledgements_are_the_same_in_postgresql(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    first, second = Acknowledgements(url), Acknowledgements(url)
    first.add(Acknowledgement("a", 100.25, "bob"))
    second.add(Acknowledgement("a", 100.25, "ada", "looking"))
    second.add(Acknowledgement("a", 100.25, "ada", "twice"))
    expected = [Acknowledgement("a", 100.25, "ada", "looking"), Acknowledgement("a", 100.25, "bob")]
    assert first.since(0) == second.since(100.25) == expected
    assert first.since(101) == []
    first.close()
    second.close()


@pytest.mark.long
def test_a_user_of_postgresql_who_may_only_read_shows_what_others_acknowledged(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    reader = Acknowledgements(url, read_only=True)
    assert reader.since(0) == []
    writer = Acknowledgements(url)
    writer.add(Acknowledgement("a", 100.0, "ada"))
    assert [each.who for each in reader.since(0)] == ["ada"]
    with pytest.raises(DatabaseError):
        reader.add(Acknowledgement("a", 101.0, "bob"))


@pytest.mark.services
def test_without_a_database_what_fires_is_still_shown(prometheus: str) -> None:
    source = RecordedAlerts(lambda: Server(prometheus), "postgresql://127.0.0.1:9/kopt")
    listed = source.history(DAY_S)
    assert len(listed.episodes) == 1
    assert "Acknowledgements cannot be used" in listed.problem
    with pytest.raises(AlertsError):
        source.acknowledge(Acknowledgement("a", 1.0, "ada"))


def test_a_prometheus_that_is_away_is_a_sentence(tmp_path: Path) -> None:
    source = RecordedAlerts(lambda: Server("http://127.0.0.1:9", retries=0), tmp_path / "alerts.db")
    with pytest.raises(AlertsError, match="Alerts cannot be read"):
        source.history(DAY_S)
    named = {"KOPT_PAGES_PROMETHEUS": "http://127.0.0.1:9"}
    assert alerts_of(named, Settings(home=tmp_path)) is not None
    assert isinstance(alerts_of({**named, "KOPT_PAGES_EXAMPLE": "true"}, Settings(home=tmp_path)), ExampleAlerts)
    assert alerts_of({}, Settings(home=tmp_path)) is None


@pytest.mark.parametrize("now_s", [NOW_S, NOW_S + 40_000.0, NOW_S + 200_000.0])
def test_the_example_has_alerts_of_its_rules_in_every_window(now_s: float) -> None:
    example = ExampleAlerts(lambda: now_s)
    needed = {rule.alert: set(rule.example.labels) for rule in alert_rules()}
    for window_s in WINDOWS_S.values():
        shown = example.history(window_s)
        assert any(each.resolved_s is None for each in shown.episodes)
        for each in shown.episodes:
            assert now_s - window_s < (each.resolved_s or now_s) <= now_s
            assert each.fired_s < now_s
            assert set(dict(each.labels)) == {"alertname", "severity", *needed[each.alert]}
        said = {each.identity for each in shown.acknowledgements}
        assert said <= {each.identity for each in shown.episodes}
    with pytest.raises(AlertsError, match="example"):
        example.acknowledge(Acknowledgement("a", now_s, "ada"))
