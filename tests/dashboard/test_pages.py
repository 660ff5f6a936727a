"""Every page over a running platform: what stands in it, and what it does with odd questions."""

import asyncio
import json
import re
import time
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import numpy as np
import pytest
from pages_source import FixedSource

from kopt.dashboard.app import create_app, pages_client, refreshing
from kopt.dashboard.data.feed import AnyFeed
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Service, Snapshot
from kopt.dashboard.live import UNWELL_REFRESH_S, LiveSource
from kopt.dashboard.pages.models.data import MODELS
from kopt.dashboard.pages.services.replay import Replays
from kopt.dashboard.pages.services.view import data_url, service_url
from kopt.data.demand.table import DemandSeries
from kopt.models.registry.registry import RegisteredModel
from kopt.serving.contract.demand_answers import AnomalyOut, DemandForecast, DemandQuery
from kopt.serving.demand.service import DemandService
from tests.dashboard.conftest import HOSTILE, MemoryRegistry, Platform, Wire


def figures_in(html: str) -> dict[str, dict[str, object]]:
    found = re.findall(r'<script type="application/json" id="([^"]+)-figure">(.*?)</script>', html, re.DOTALL)
    return {name: json.loads(text) for name, text in found}


async def page(client: httpx.AsyncClient, url: str, status: int = 200) -> str:
    reply = await client.get(url)
    assert reply.status_code == status, reply.text[:500]
    assert "Traceback" not in reply.text
    return reply.text


async def test_services_lists_every_service_with_demand_gpus_and_a_sparkline(
    pages: httpx.AsyncClient, services: list[DemandSeries]
) -> None:
    html = await page(pages, "/")
    rows = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", html, re.DOTALL)
    assert len(rows) == len(services)
    for row in rows:
        assert "ok</span>" in row
        assert ' d="M' in row
        assert "of 64 GPUs" in row
        assert len(re.findall(r">\s*\d+ GPUs", row)) == 7


async def test_the_list_sorts_filters_and_keeps_the_choice_in_its_links(pages: httpx.AsyncClient) -> None:
    def names(html: str) -> list[str]:
        return re.findall(r'<th scope="row"><a [^>]*>([^<]+)</a>', html)

    by_name = names(await page(pages, "/?sort=name"))
    assert by_name == sorted(by_name)
    assert len(by_name) == 4
    assert names(await page(pages, "/?sort=name&dir=desc")) == by_name[::-1]
    busiest = names(await page(pages, "/?sort=now&dir=desc"))
    assert set(busiest) == set(by_name)
    assert busiest != by_name
    one = await page(pages, f"/?q={by_name[0].upper()}&sort=p99_60")
    assert names(one) == [by_name[0]]
    assert f"q={by_name[0].upper()}" in one
    assert "Nothing matches" in await page(pages, "/?state=refused")


@pytest.mark.parametrize(
    "query",
    [
        "page=-1",
        "page=0",
        "page=99999999999999999999",
        "page=²",
        "sort=evil&dir=up",
        "state=%00",
        "q=%ff",
        "q=" + "x" * 5000,
        "page=1&page=2",
        "%",
        "=&&=",
    ],
)
async def test_odd_questions_to_the_list_give_a_list(pages: httpx.AsyncClient, query: str) -> None:
    await page(pages, f"/?{query}")


async def test_a_service_has_its_fan_reasons_record_and_document(
    pages: httpx.AsyncClient, services: list[DemandSeries]
) -> None:
    name = services[0].name
    html = await page(pages, service_url(name))
    figures = figures_in(html)
    assert set(figures) == {"fan", "past", "calibration"}
    traces = {trace["name"] for trace in figures["fan"]["data"] if "name" in trace}  # type: ignore[attr-defined]
    assert {"measured", "median (p50)", "p5–p50", "p50–p90", "p95–p99"} <= traces
    assert "over" in html
    assert "buckets demand moved by these ratios" in html
    assert "PROVISION" in html
    assert "Replayed" in html
    document = (await pages.get(data_url(name))).json()
    assert document["schema"] == "kopt/v1"
    assert document["series"]["name"] == name
    assert [h["horizon_s"] for h in document["series"]["horizons"]] == [300, 1800, 3600]


async def test_replayed_forecasts_know_nothing_of_what_came(platform: Platform, services: list[DemandSeries]) -> None:
    """The same origins give the same forecasts when everything after the last of them is changed."""
    await platform.refresh()
    service = next(iter((await platform.live.latest(SNAPSHOT)).services.values()))
    cut = len(service.series) - 20
    changed = replace(service.series, value=np.concatenate([service.series.value[: cut + 1], np.full(19, 1e6)]))
    seen = {}
    for key, series in (("real", service.series), ("changed", changed)):
        past = await Replays(platform.live.connections.client).of(series, None)
        origin_s = float(series.times_s[cut])
        seen[key] = {(f.made_s, f.horizon_s): dict(f.quantiles) for f in past.forecasts if f.made_s <= origin_s}
    assert seen["real"] == seen["changed"]
    assert len(seen["real"]) > 100


async def test_asking_about_the_past_leaves_no_trace_in_the_endpoints_record(
    pages: httpx.AsyncClient, platform: Platform, services: list[DemandSeries]
) -> None:
    await page(pages, service_url(services[0].name))
    observer, table = platform.endpoint.service(DemandService).observer, platform.endpoint.service(DemandService).table
    assert observer is not None
    assert table is not None
    observer.stop()
    names = {row[0] for row in table._db.query("SELECT DISTINCT series FROM prediction")}
    observer.start()
    assert names == {series.name for series in services}


async def test_horizon_and_span_are_chosen_by_links_and_odd_ones_ignored(
    pages: httpx.AsyncClient, services: list[DemandSeries]
) -> None:
    url = service_url(services[0].name)
    short, long = [figures_in(await page(pages, f"{url}?hours={hours}"))["fan"]["data"] for hours in (3, 168)]
    assert len(short[0]["x"]) == 36
    assert len(long[0]["x"]) == 2016
    assert 'aria-current="true" id="horizon-1"' in await page(pages, f"{url}?horizon=300")
    assert 'aria-current="true" id="hours-2"' in await page(pages, f"{url}?hours=1e400&horizon=nan")


async def test_lending_follows_the_accepted_risk_and_pools(pages: httpx.AsyncClient) -> None:
    def total(html: str) -> int:
        return int(re.search(r'<b class="lend">(\d+)</b> of', html)[1])  # type: ignore[index]

    careful, usual, bold = [total(await page(pages, f"/lending?risk={risk}")) for risk in (0.001, 0.01, 0.05)]
    assert careful < usual < bold
    html = await page(pages, "/lending?pools=one")
    assert "all services" in html
    assert len(figures_in(html)) == 1
    assert total(await page(pages, "/lending?risk=2")) == usual


async def test_models_shows_both_sides_the_gates_words_and_commands_but_no_button_that_acts(
    pages: httpx.AsyncClient,
) -> None:
    html = await page(pages, "/models")
    for text in (
        "Champion: version 1",
        "Challenger: version 2",
        "MASE 0.97 against 0.91",
        "feedbeef",
        "kopt models compare",
        "kopt models rollback",
        "odd",
        "llm",
    ):
        assert text in html
    found = dict(
        re.findall(r'<th scope="row">(MASE of the median|lent, of the oracle&#39;s)</th>(.*?)</tr>', html, re.DOTALL)[
            ::-1
        ]
    )
    assert re.search(r'class="better">0.830<.*→ 0.850', found["MASE of the median"])
    assert re.search(r'0.620 → <b class="better">0.660<', found["lent, of the oracle&#39;s"])
    assert 'method="post"' not in html.lower()
    assert "<form" not in html


async def test_models_lists_every_predictors_versions_and_which_of_them_answer(
    asked: Platform, pages: httpx.AsyncClient, registry: MemoryRegistry
) -> None:
    registry.models["sizing 3"] = RegisteredModel("sizing", "3", "3" * 64, "run", 1.75e9, ("champion",))
    await asked.live.refresh(SNAPSHOT)
    await asked.live.refresh(MODELS)
    rows = re.findall(r'<th scope="row">(demand|sizing)</th>(.*?)</tr>', await page(pages, "/models"), re.DOTALL)
    answers = {(name, re.search(r"<td>(.*?)</td>", row)[1]): ">answers<" in row for name, row in rows}  # type: ignore[index]
    assert answers == {
        ("demand", "2"): False,
        ("demand", "1"): True,
        ("sizing", "3"): False,
        ("sizing", "shipped"): True,
    }


async def test_live_coverage_and_alarms_appear_once_the_endpoint_has_matched_forecasts(
    platform: Platform, services: list[DemandSeries]
) -> None:
    """The days pass: each round reveals more of the histories."""
    for back in (14, 13, 7, 1, 0):
        platform.write([series.upto(len(series) - 1 - back) for series in services])
        await platform.refresh()
        assert platform.endpoint.service(DemandService).observer is not None
        platform.endpoint.service(DemandService).observer.stop()
        platform.endpoint.service(DemandService).observer.start()
    await platform.live.refresh(MODELS)
    app = create_app(platform.settings, source=platform.live)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        html = await page(client, "/models")
        assert set(figures_in(html)) == {"calibration"}
        assert "No alarm on 4 services" in html
        assert "endpoint's own record" in (await page(client, service_url(services[0].name))).replace("&#39;", "'")


async def test_a_platform_that_is_down_is_said_and_the_rest_still_works(
    pages: httpx.AsyncClient, platform: Platform, services: list[DemandSeries]
) -> None:
    platform.down[0] = True
    platform.registry.down = True
    platform.write([series.upto(len(series) - 3) for series in services])
    await platform.refresh()
    html = await page(pages, "/")
    assert "does not answer as it should" in html
    assert html.count("fallback</span>") >= 4
    assert "cannot be asked" in await page(pages, service_url(services[0].name))
    assert "registry does not answer" in await page(pages, "/models")
    await page(pages, "/lending")
    platform.down[0] = platform.registry.down = False
    platform.live.connections.client._transport._breaker.succeeded()  # type: ignore[attr-defined]
    await platform.refresh()
    assert "does not answer as it should" not in await page(pages, "/")


async def test_without_a_champion_the_shipped_model_answers_and_the_pages_say_what_to_do(
    platform: Platform, registry: MemoryRegistry
) -> None:
    registry.models.clear()
    platform.endpoint.service(DemandService).slot.current = None
    await platform.refresh()
    app = create_app(platform.settings, source=platform.live)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert "fallback</span>" not in await page(client, "/")
        html = await page(client, "/models")
        assert "There is no champion" in html
        assert "kopt train demand" in html


async def test_before_the_first_round_the_pages_wait_and_without_services_say_how_to_bring_some(
    platform: Platform,
) -> None:
    app = create_app(platform.settings, source=platform.live)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert "Looking for services" in await page(client, "/")
        for file in (platform.settings.home / "demand").iterdir():
            file.unlink()
        await platform.refresh()
        assert "No services yet" in await page(client, "/")
        assert "Nothing to lend from" in await page(client, "/lending")
        (platform.settings.home / "demand" / "demand.csv").write_text("series,t,value\nchat,0,-1\n")
        await platform.refresh()
        assert "cannot be read" in await page(client, "/")


async def test_a_silent_service_is_stale_and_a_short_one_refused(
    platform: Platform, services: list[DemandSeries]
) -> None:
    silent = services[0].value.copy()
    silent[-6:] = np.nan
    short = replace(services[1].tail(5), name="newborn", tenants={})
    platform.write([replace(services[0], value=silent), services[2], short])
    await platform.refresh()
    app = create_app(platform.settings, source=platform.live)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert "30 min old" in await page(client, service_url(services[0].name))
        html = await page(client, "/?sort=state")
        assert html.index("newborn") < html.index(services[0].name) < html.index(services[2].name)
        assert "5 values are too few" in await page(client, "/services/newborn")


async def test_an_endpoint_that_comes_up_late_reaches_the_pages_within_seconds(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s, said = 0.0, list[bool]()
    platform.down[0] = True
    wire = Wire(platform.endpoint, platform.down)
    async with pages_client("http://endpoint", transport=wire, clock=lambda: time.monotonic() + waited_s) as client:
        live = LiveSource(
            FolderHistories(platform.settings.home / "demand"),
            client,
            platform.registry,
            url="http://endpoint",
            home=platform.settings.home,
        )
        for _ in range(12):  # a first start: minutes of silence
            waited_s += 40
            await live.refresh(SNAPSHOT)
        assert (await live.latest(SNAPSHOT)).endpoint.problem
        ask = client.demand

        async def demand(query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast:
            now = await live.latest(SNAPSHOT)
            if not now.endpoint.problem:
                said.append(any(one.forecast is not None and one.forecast.fallback for one in now.services.values()))
            return await ask(query, deadline_s=deadline_s)

        monkeypatch.setattr(client, "demand", demand)
        async with refreshing(live, every_s=3600):
            platform.down[0] = False
            async with asyncio.timeout(20 * UNWELL_REFRESH_S + 60):
                while (await live.latest(SNAPSHOT)).endpoint.problem:
                    await asyncio.sleep(0.1)
        # While a fresh endpoint is asked service by service, none says any more that the endpoint is away.
        assert said
        assert not any(said)


async def test_hostile_names_are_escaped_and_reach_their_page(platform: Platform, services: list[DemandSeries]) -> None:
    platform.write([replace(services[0], name=name, tenants={}) for name in HOSTILE])
    await platform.refresh()
    app = create_app(platform.settings, source=platform.live)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        html = await page(client, "/")
        assert "<script>alert" not in html
        assert "49" not in re.findall(r'dir="auto">([^<]*)</a>', html)
        for name in HOSTILE:
            assert (await client.get(data_url(name))).json()["series"]["name"] == name
            html = await page(client, service_url(name))
            assert "<script>alert" not in html
            assert set(figures_in(html)) == {"fan", "past", "calibration"}
        await page(client, "/lending")


@pytest.mark.parametrize("name", [*HOSTILE, "a" * 5000, "‮evil", "/", "a//b"])
def test_the_address_of_a_service_survives_a_browser(name: str) -> None:
    """No raw character that ends a path, and no segment that a browser would resolve."""
    parts = urlsplit(service_url(name))
    if parts.query:
        assert parse_qs(parts.query)["name"] == [name]
    else:
        assert unquote(parts.path.removeprefix("/services/")) == name
        assert parts.path.count("/") == 2
        assert unquote(parts.path.rsplit("/", 1)[1]) not in (".", "..")


@pytest.mark.parametrize("name", ["nope", "%3Cscript%3E", "x" * 5000, "..%2f..%2fetc%2fpasswd", "%00", "a/b/c", "‮"])
async def test_a_service_that_is_not_there_is_a_plain_404(pages: httpx.AsyncClient, name: str) -> None:
    html = await page(pages, f"/services/{name}", 404)
    assert "There is no service" in html
    assert "<script>" not in html
    assert len(html) < 4000
    problem = await pages.get(f"/data/services/{name}")
    assert problem.status_code == 404
    assert problem.headers["content-type"] == "application/problem+json"


class Crowd:
    """A source of thousands of services, one of them with a name no file could bring."""

    def __init__(self, service: Service, snapshot: Snapshot) -> None:
        names = [f"service-{i:04d}" for i in range(2500)] + ["N" * 5000, "‮<b>rtl"]
        same = {name: replace(service, series=replace(service.series, name=name)) for name in names}
        self._snapshot = replace(snapshot, services=same)

    async def latest(self, feed: AnyFeed) -> Any:
        if feed is MODELS:
            raise RuntimeError("secret detail")
        return self._snapshot if feed is SNAPSHOT else feed.empty()


async def test_thousands_of_services_come_in_pages(platform: Platform) -> None:
    await platform.refresh()
    snapshot = await platform.live.latest(SNAPSHOT)
    crowd = Crowd(next(iter(snapshot.services.values())), snapshot)
    app = create_app(platform.settings, source=crowd)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        first = await page(client, "/?sort=name&state=ok")
        assert "Page 1 of 51" in first
        assert first.count('<th scope="row">') == 50
        assert len(first) < 400_000
        assert "state=ok" in re.search(r'rel="next" href="([^"]+)"', first)[1]  # type: ignore[index]
        last = await page(client, "/?sort=name&page=9999")
        assert "Page 51 of 51" in last
        assert last.count('<th scope="row">') == 2
        assert "the 24 with the most to lend of 2,502" in await page(client, "/lending")
        broken = await client.get("/models")
        assert broken.status_code == 500
        assert "secret" not in broken.text
        assert "Something broke" in broken.text
        assert broken.headers["x-frame-options"] == "DENY"
        assert "kopt_pages_errors_total 1.0" in (await client.get("/metrics")).text


async def test_the_model_page_says_why_a_promoted_version_is_not_served(
    platform: Platform, pages: httpx.AsyncClient, registry: MemoryRegistry
) -> None:
    registry.torn = "3"
    registry.add("3", "champion")
    await platform.refresh()
    html = await page(pages, "/models")
    assert "version 3 (champion) is refused: the text of the trees is not whole" in html
    registry.torn = ""
    registry.add("4", "champion")
    await platform.refresh()
    assert "is refused:" not in await page(pages, "/models")


async def test_a_registry_that_is_down_is_not_blamed_on_the_endpoint(
    platform: Platform, pages: httpx.AsyncClient, registry: MemoryRegistry
) -> None:
    registry.down = True
    await platform.refresh()
    assert "prediction endpoint does not answer" not in await page(pages, "/")
    assert "The model registry does not answer" in await page(pages, "/models")


async def test_unusual_demand_is_marked_in_the_list_and_on_the_services_chart(
    platform: Platform, pages: httpx.AsyncClient, services: list[DemandSeries]
) -> None:
    assert "than usual" not in await page(pages, "/") + await page(pages, service_url(services[0].name))
    snapshot = await platform.live.latest(SNAPSHOT)
    service = snapshot.services[services[0].name]
    assert service.forecast is not None
    anomaly = AnomalyOut("lower", service.clock_s - 3600, 3.0, 400.0, 1.5)
    service = replace(service, forecast=replace(service.forecast, anomaly=anomaly))
    snapshot = replace(snapshot, services={**snapshot.services, service.name: service})
    app = create_app(platform.settings, source=FixedSource({SNAPSHOT: snapshot}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=str(pages.base_url)) as client:
        listed, alone = await page(client, "/"), await page(client, service_url(service.name))
    text = "lower than usual for 60 min: 3 where 400 was expected"
    assert listed.count(text) == 1
    assert "Unusual demand</dt><dd><b>1</b>" in listed
    assert text in alone
    (_, band) = figures_in(alone)["fan"]["layout"]["shapes"]  # type: ignore[index]
    assert band["x1"] > band["x0"]
