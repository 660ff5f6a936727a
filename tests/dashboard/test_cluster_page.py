"""The page of the cluster: pools over a day, the ledger with its filters, data on its way; hostile text stays text."""

import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.async_api import Page, expect

from kopt.controllers.overview.documents import pool_of, staged_of
from kopt.core.scheduling.eviction import Phase
from kopt.core.scheduling.overview import Overview, PoolMoment, PoolState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.feed import AnyFeed
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cluster.figure import pool_chart, reclaims, segments
from kopt.dashboard.pages.cluster.view import MOST_LINES, MOST_MOMENTS, LedgerChoice, cluster_page
from kopt.dashboard.rendering import environment
from tests.dashboard import cluster_objects as objects
from tests.dashboard.conftest import HOSTILE, HOSTILE_NAME, PAGES
from tests.dashboard.test_browser import CONTRAST, Watched, browser, open_page, overflow

__all__ = ["browser", "open_page"]
NOW_S = 1_900_000_000.0


class ClusterSource:
    """A source that knows a cluster and nothing else."""

    def __init__(self, overview: Overview) -> None:
        self.answer = overview

    async def latest(self, feed: AnyFeed) -> Any:
        if feed is SNAPSHOT:
            return Snapshot({}, Endpoint("http://127.0.0.1:8700"), self.answer.now_s)
        return self.answer if feed is OVERVIEW else feed.empty()


@pytest.fixture
def told() -> ClusterSource:
    return ClusterSource(objects.overview(NOW_S))


@pytest.fixture
async def pages(told: ClusterSource) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(Settings(home=Path("/nowhere")), source=told))
    async with httpx.AsyncClient(transport=transport, base_url=PAGES) as client:
        yield client


async def page(pages: httpx.AsyncClient, **query: str) -> str:
    reply = await pages.get("/cluster", params=query)
    assert reply.status_code == 200
    return unescape(re.sub(r"\s+", " ", reply.text))


async def test_it_says_what_is_lent_who_was_evicted_and_what_is_on_its_way(pages: httpx.AsyncClient) -> None:
    html = await page(pages)
    assert "8 GPUs are being taken back from research/pretrain, team/sweep-3, in 15 min at the latest." in html
    assert "The quantile 0.993 of demand" in html
    assert "Forecasts are stale: nothing new is lent" in html
    assert "Mode observe: nothing is changed" in html
    assert html.index(">chat</h3>") < html.index(">vision</h3>"), "those that take back come first"
    rows = re.findall(r"<tr><td data-label=\"when\">.*?</tr>", html)
    assert len(rows) == 4
    assert "research/pretrain" in rows[0]
    assert 'loan taken back by <b dir="auto">kopt-reallocation</b>' in rows[0]
    assert "waits for 60 s" in rows[0]
    assert "4 GPU-min<small>step 4,200 saved" in rows[1]
    assert "after 65 min" in rows[1]
    assert "went on at step 4,200" in rows[1]
    assert "no: at another step" in rows[2]
    assert "not known" in rows[3]
    assert html.index("research/images") < html.index("research/cache") < html.index("research/weights")
    assert "Denied: 403 from the bucket" in html
    assert '<progress max="100" value="37.0"' in html
    assert "230.0 MiB/s, about 96 min left" in html
    assert "gpu-8: failed; the disk is full" in html


async def test_the_ledger_is_filtered_and_what_waits_is_always_there(
    told: ClusterSource, pages: httpx.AsyncClient
) -> None:
    def shown(html: str) -> list[str]:
        return re.findall(r'<th scope="row" dir="auto">research/([\w-]+)', html)

    assert shown(await page(pages)) == ["pretrain", "sweep-3", "ablation", "notebook"]
    assert shown(await page(pages, days="30"))[-1] == "old"
    assert shown(await page(pages, days="1")) == ["pretrain", "sweep-3", "ablation"]
    assert shown(await page(pages, cause="Preempted")) == ["ablation"]
    assert shown(await page(pages, state="Gone")) == ["notebook"]
    assert shown(await page(pages, q="URGENT")) == ["ablation"]
    assert shown(await page(pages, q="kopt-", state="Waiting")) == ["pretrain"]
    none = await page(pages, q="nobody")
    assert "No eviction matches" in none
    late = objects.entry_of(objects.eviction("late", NOW_S - 40 * 86_400, Phase.WAITING))
    told.answer = replace(told.answer, ledger=(late, *told.answer.ledger))
    assert "late" in shown(await page(pages, days="1"))
    many = tuple(objects.entry_of(objects.eviction(f"n{i:04}", NOW_S - i)) for i in range(MOST_LINES + 7))
    told.answer = replace(told.answer, ledger=many)
    html = await page(pages)
    assert shown(html) == [f"n{i:04}" for i in range(MOST_LINES)]
    assert f"{MOST_LINES} of {MOST_LINES + 7}" in html


async def test_what_is_not_there_says_what_to_apply(told: ClusterSource, pages: httpx.AsyncClient) -> None:
    told.answer = Overview(now_s=NOW_S)
    assert "KUBECONFIG=~/.kube/config kopt up" in await page(pages)
    told.answer = Overview(cluster=True, ready=False, now_s=NOW_S)
    assert "data-soon" in await page(pages)
    told.answer = Overview(cluster=True, now_s=NOW_S)
    html = await page(pages)
    assert "kind: LendingPool" in html
    assert 'kaiwo.ai/stage: "s3://bucket/corpus -> pvc://datasets/corpus"' in html
    assert "No GPU workload was evicted in the last 7 days." in html
    told.answer = replace(told.answer, missing=frozenset({"lendingpools", "evictions", "stageddata"}))
    html = await page(pages)
    for name in ("lending", "evictions", "staging"):
        assert f"--set {name}.enabled=true" in html
    assert "kind: LendingPool" not in html


async def test_what_is_old_or_cannot_be_read_is_said(told: ClusterSource, pages: httpx.AsyncClient) -> None:
    told.answer = replace(
        objects.overview(NOW_S),
        now_s=NOW_S + 3 * 3600,
        problems=("What is told of evictions.kaiwo.ai is 5 min old: it is away",),
    )
    html = await page(pages)
    assert "What is told of evictions.kaiwo.ai is 5 min old" in html
    assert "does `kopt controller lending` run?" in html
    assert "No progress has been reported for 3 h." in html
    assert "180 min late" in html or "3 h late" in html


def test_a_forecast_stands_where_it_is_about_and_loans_hang_from_the_pool() -> None:
    moments = tuple(
        PoolMoment(NOW_S - 300 * n, lent, lent, 10, 20, 12, 18)
        for n, lent in ((4, 8.0), (3, 12.0), (2, 12.0), (1, 4.0))
    )
    pool = PoolState("chat", gpus=32, lead_time_s=1800, history=moments)
    figure = pool_chart(pool, NOW_S)
    fan = next(one for one in figure.data if one.name == "forecast p50–p99")
    assert min(fan.x) == (moments[0].at_s + 1800) * 1000
    assert max(fan.x) == (moments[-1].at_s + 300 + 1800) * 1000 > NOW_S * 1000
    assert set(fan.y) == {12, 18}
    lent = next(one for one in figure.data if one.name == "lent")
    assert {min(lent.y), max(lent.y)} == {20, 32}
    back = next(one for one in figure.data if one.name == "taken back")
    assert (list(back.x), list(back.y)) == ([moments[-1].at_s * 1000], [28])
    assert "8 GPUs taken back" in back.text[0]
    assert figure.layout.shapes[0].x0 == NOW_S * 1000


def test_a_gap_is_not_drawn_over_and_is_no_reclaim() -> None:
    moments = [PoolMoment(at_s, lent, 0, 1, 1) for at_s, lent in ((0.0, 9), (300.0, 9), (3000.0, 2), (3300.0, 2))]
    parts = segments(moments)
    assert [len(one) for one in parts] == [2, 2]
    assert reclaims(parts) == []
    figure = pool_chart(PoolState("x", gpus=10, history=tuple(moments)), 3400.0)
    assert len([one for one in figure.data if one.name == "lent"]) == 2
    asked = next(one for one in figure.data if one.name == "services ask")
    assert list(asked.y).count(None) == 2
    assert segments([]) == []


def test_a_table_beside_the_chart_tells_when_the_loan_changed() -> None:
    pool = pool_of(objects.pool("chat", NOW_S))
    (card,) = cluster_page(Overview(cluster=True, now_s=NOW_S, pools=(pool,))).pools
    assert card.moments[0] == pool.history[-1]
    assert len(card.moments) <= MOST_MOMENTS
    changed = [one for before, one in zip(pool.history, pool.history[1:], strict=False) if before.lent != one.lent]
    assert set(changed) <= set(card.moments)
    assert "taken back over the day" in card.label


_KEYS = st.sampled_from(
    [
        "metadata",
        "name",
        "namespace",
        "spec",
        "status",
        "gpus",
        "mode",
        "services",
        "borrowers",
        "leadTime",
        "lentGpus",
        "forecast",
        "state",
        "at",
        "decision",
        "verb",
        "reasons",
        "code",
        "message",
        "reclaiming",
        "victims",
        "since",
        "by",
        "history",
        "lent",
        "p50",
        "p99",
        "service",
        "provision",
        "conditions",
        "type",
        "phase",
        "progress",
        "bytes",
        "bytesDone",
        "objects",
        "bytesPerSecond",
        "secondsLeft",
        "nodes",
        "users",
        "kind",
        "destination",
        "nodeCache",
        "copies",
        "claim",
        "path",
        "source",
        "readyAt",
        "retryAt",
        "attempts",
        "queue",
        "flavor",
        "system",
    ]
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from([*HOSTILE[:5]]),
    st.sampled_from(
        [
            "2026-05-04T10:00:00Z",
            "9999-12-31T23:59:59Z",
            "0001-01-01T00:00:00+14:00",
            "Staging",
            "Failed",
            "reclaim",
            "observe",
            "5m",
            "Stale",
            "False",
        ]
    ),
)
_DOCUMENTS = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=6), max_leaves=25
)


@given(
    pool=st.fixed_dictionaries({"metadata": _DOCUMENTS, "spec": _DOCUMENTS, "status": _DOCUMENTS}),
    data=st.fixed_dictionaries({"metadata": _DOCUMENTS, "spec": _DOCUMENTS, "status": _DOCUMENTS}),
)
@settings(max_examples=examples(150))
def test_nothing_in_an_object_breaks_the_page(pool: Any, data: Any) -> None:
    _draw(pool, data)


@given(
    history=st.lists(
        st.fixed_dictionaries({"at": _LEAVES, "lent": _LEAVES, "p50": _LEAVES, "p99": _LEAVES, "service": _LEAVES}),
        max_size=6,
    ),
    progress=st.fixed_dictionaries(
        {
            "bytes": _LEAVES,
            "bytesDone": _LEAVES,
            "secondsLeft": _LEAVES,
            "bytesPerSecond": _LEAVES,
            "at": _LEAVES,
            "objects": _LEAVES,
        }
    ),
    word=st.sampled_from(HOSTILE),
)
@settings(max_examples=examples(100))
def test_hostile_figures_and_words_stay_text(history: Any, progress: Any, word: str) -> None:
    pool = {
        "metadata": {"name": word},
        "spec": {
            "mode": word,
            "gpus": 4,
            "services": [{"name": word}],
            "borrowers": [{"system": word, "queue": word, "flavor": word}],
        },
        "status": {
            "history": history,
            "decision": {"verb": word, "reasons": [{"code": word, "message": word}]},
            "forecast": {"state": word, "model": word},
            "reclaiming": {"victims": [word]},
            "conditions": [{"type": word, "status": "False", "message": word}],
        },
    }
    data = {
        "metadata": {"name": word, "namespace": word},
        "spec": {"source": word, "destination": {"claim": word}},
        "status": {
            "phase": word,
            "reason": word,
            "message": word,
            "progress": progress,
            "nodes": [{"name": word, "phase": word, "message": word}],
            "users": [{"kind": word, "name": word}],
        },
    }
    html = _draw(pool, data)
    assert HOSTILE_NAME not in html
    assert "49" not in re.sub(r"<[^>]*>", "", html) or word != "{{ 7*7 }}"


def _draw(pool: Any, data: Any) -> str:
    now_s = NOW_S
    overview = Overview(cluster=True, now_s=now_s, pools=(pool_of(pool),), staged=(staged_of(data),))
    view = cluster_page(overview, LedgerChoice())
    charts = {card.chart: pool_chart(card.state, now_s) for card in view.pools if card.chart}
    return (
        environment()
        .get_template("cluster/template.html")
        .render(
            snapshot=Snapshot({}, Endpoint("x"), now_s),
            path="/cluster",
            page_models=[("demand", None)],
            refresh_s=15,
            query={},
            view=view,
            choice=LedgerChoice(),
            charts=charts,
            days=(1, 7),
            phases=(),
            causes=(),
        )
    )


async def test_hostile_names_in_the_ledger_stay_text(told: ClusterSource, pages: httpx.AsyncClient) -> None:
    line = objects.eviction(
        HOSTILE_NAME,
        NOW_S - 9,
        namespace=HOSTILE_NAME,
        by=HOSTILE_NAME,
        for_whom=HOSTILE_NAME,
        reason=HOSTILE_NAME,
        message=HOSTILE_NAME,
    )
    told.answer = replace(told.answer, ledger=(objects.entry_of(line),), problems=(HOSTILE_NAME,))
    html = (await pages.get("/cluster", params={"q": HOSTILE_NAME})).text
    assert HOSTILE_NAME not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 6


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
async def test_it_is_read_on_a_phone_and_in_the_dark(
    told: ClusterSource, serve_pages: Callable[[Any], str], open_page: Callable[..., Any], scheme: str, width: int
) -> None:
    told.answer = objects.overview(time.time())
    long = objects.staged("x" * 200, time.time(), "Failed", message="y" * 500)
    told.answer = replace(told.answer, staged=(*told.answer.staged, staged_of(long)))
    address = serve_pages(create_app(Settings(home=Path("/nowhere")), source=told))
    watched: Watched = await open_page(viewport={"width": width, "height": 740}, color_scheme=scheme)
    await watched.page.goto(address + "/cluster")
    await watched.charts(2)
    assert await overflow(watched.page) <= 0
    assert await watched.page.evaluate(CONTRAST) == []
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}
    assert await watched.page.locator("[data-figure]").first.get_attribute("aria-label")


@pytest.mark.browser
async def test_a_reclaim_appears_without_a_reload_and_the_filter_is_left_alone(
    told: ClusterSource, serve_pages: Callable[[Any], str], open_page: Callable[..., Any]
) -> None:
    calm = pool_of(objects.pool("chat", time.time()))
    told.answer = replace(objects.overview(time.time()), pools=(calm,), ledger=())
    address = serve_pages(create_app(Settings(home=Path("/nowhere")), source=told, refresh_s=1.0))
    watched: Watched = await open_page()
    page: Page = watched.page
    await page.goto(address + "/cluster")
    await watched.charts(1)
    await page.evaluate("window.same = true")
    await page.locator("#lending0-table summary").click()
    await expect(page.locator(".badge", has_text="taking back")).to_have_count(0)
    line = objects.entry_of(objects.eviction("pretrain", time.time() - 5, Phase.WAITING))
    told.answer = replace(
        told.answer, ledger=(line,), pools=(pool_of(objects.pool("chat", time.time(), reclaiming=True)),)
    )
    await expect(page.locator(".badge", has_text="taking back")).to_have_count(1)
    await expect(page.locator("table.ledger th[scope=row]").first).to_contain_text("research/pretrain")
    assert await page.evaluate("window.same")
    assert await page.locator("#lending0-table").get_attribute("open") is not None
    await page.select_option("#state-filter", "Gone")
    await expect(page.locator("#ledger")).to_contain_text("No eviction matches")
    assert watched.errors == []


def test_the_chart_is_plain_json() -> None:
    text = pool_chart(pool_of(objects.pool("chat", NOW_S)), NOW_S).to_json()
    assert len(text) < 200_000
    json.loads(text)
