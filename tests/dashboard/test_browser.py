"""The pages in a real Chromium: charts, console, network, keyboard, phone, dark, live refresh."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from kopt.dashboard.app import create_app
from kopt.dashboard.pages.pages import PAGES
from kopt.dashboard.pages.services.view import service_url
from kopt.data.demand.table import DemandSeries
from tests.dashboard.conftest import HOSTILE, Platform

CHROMIUM = os.environ.get("KOPT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

CHARTS = {"/services/{name:path}": 3, "/lending": 4}
"""How many charts the pages have with the data of these tests; others have none."""
PATIENCE_MS = 90_000
"""Beside other tests a picture of 64 nodes once took longer than the usual half a minute."""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")

pytestmark = pytest.mark.browser


def every_page(service: str) -> list[tuple[str, int]]:
    """Address and number of charts of every page of the list; of one for each service that of ``service``."""
    return [(service_url(service) if "{" in page.path else page.path, CHARTS.get(page.path, 0)) for page in PAGES]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"{CHROMIUM} is not there (Debian package chromium; KOPT_CHROMIUM names another)")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        await started.close()


@pytest.fixture
async def address(platform: Platform, serve_pages: Callable[[Any], str]) -> str:
    """The pages of the platform on a free port, refreshing every second."""
    await platform.refresh()
    return serve_pages(create_app(platform.settings, source=platform.live, refresh_s=1.0))


class Watched:
    """A page whose console and requests are kept."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.hosts: set[str | None] = set()
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname))

    async def charts(self, count: int) -> None:
        """Wait until so many charts are drawn."""
        drawn = "n => document.querySelectorAll('.chart.drawn').length === n"
        await self.page.wait_for_function(drawn, arg=count, timeout=PATIENCE_MS)


@pytest.fixture
def open_page(browser: Browser) -> Callable[..., Any]:
    async def start(**context: Any) -> Watched:
        page = await (await browser.new_context(**context)).new_page()
        page.set_default_navigation_timeout(PATIENCE_MS)
        return Watched(page)

    return start


async def overflow(page: Page) -> float:
    """How far the page is wider than the window, in CSS pixels."""
    width: float = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


async def test_pages_draw_their_charts_with_contrast_without_an_error_and_without_leaving_loopback(
    address: str, open_page: Callable[..., Any], services: list[DemandSeries], asked: Platform
) -> None:
    """WCAG 2.2 AA: 4.5 to 1 for every visible text on the list, computed from what the browser paints."""
    watched: Watched = await open_page()
    for path, charts in every_page(services[0].name):
        await watched.page.emulate_media(color_scheme="dark")
        await watched.page.goto(address + path)
        await watched.charts(charts)
        lines = await watched.page.evaluate("document.querySelectorAll('.chart .js-line, .chart .point path').length")
        assert lines >= charts
        grounds = set()
        for scheme in ("dark", "light"):
            await watched.page.emulate_media(color_scheme=scheme)
            grounds.add(await watched.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            weak = await watched.page.evaluate(CONTRAST)
            assert weak == [], f"{path}, {scheme}"
        assert len(grounds) == 2, path
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}
    assert await watched.page.context.cookies() == []


async def test_axes_have_units_and_times_are_in_the_readers_zone(
    address: str, open_page: Callable[..., Any], services: list[DemandSeries]
) -> None:
    ticks = {}
    for zone in ("Asia/Kolkata", "America/New_York"):
        watched: Watched = await open_page(timezone_id=zone, locale="en-GB")
        await watched.page.goto(address + service_url(services[0].name))
        await watched.charts(3)
        text = await watched.page.locator("#fan").inner_text()
        assert zone in text.replace("Calcutta", "Kolkata")
        assert "requests per 5 min" in text
        assert "GPUs" in text
        ticks[zone] = await watched.page.evaluate("document.getElementById('fan').data[0].x.at(-1)")
        assert "UTC" not in await watched.page.locator("footer time").inner_text()
    assert ticks["Asia/Kolkata"] - ticks["America/New_York"] == 10.5 * 3_600_000


async def test_a_keyboard_alone_reaches_everything_with_its_focus_in_sight(
    address: str, open_page: Callable[..., Any], services: list[DemandSeries]
) -> None:
    page: Page = (await open_page()).page
    await page.goto(address)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    seen = []
    for _ in range(60):
        await page.keyboard.press("Tab")
        here = await page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();"
            " return {name: e.id || e.textContent.trim(), seen: parseFloat(s.outlineWidth) >= 2 && r.width > 0,"
            " body: e === document.body}; })()"
        )
        if here["body"]:
            break
        assert here["seen"], here
        seen.append(here["name"])
    assert {"live-toggle", "theme-toggle", "q", "state-filter", "sort-lend", services[0].name} <= set(seen)
    await page.locator("#sort-name").focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**sort=name**")
    await page.goto(address)
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("width", [1280, 1024, 390])
async def test_every_page_is_a_key_press_away_and_no_navigation_wraps(
    address: str, open_page: Callable[..., Any], width: int
) -> None:
    """Beside the content where there is room, else in a menu that closes with Escape."""
    page: Page = (await open_page(viewport={"width": width, "height": 740})).page
    await page.goto(address + "/queue")
    links, menu = page.locator("nav a"), page.locator(".opens")
    head = await page.locator("header.top").bounding_box()
    assert head is not None
    assert head["height"] < 70 if width < 960 else head["width"] < 200
    if width < 960:
        assert await links.first.is_hidden()
        await menu.focus()
        await page.keyboard.press("Enter")
    else:
        assert await menu.is_hidden()
    boxes = [await link.bounding_box() for link in await links.all()]
    assert len(boxes) == len([page for page in PAGES if page.title])
    assert all(box is not None and box["height"] >= 24 and box["x"] >= 0 for box in boxes)
    assert await page.locator("nav a[aria-current]").inner_text() == "Queue"
    if width < 960:
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == await links.first.inner_text()
        await page.keyboard.press("Escape")
        assert await links.first.is_hidden()
        assert await page.evaluate("document.activeElement.className") == "opens"


@pytest.mark.long
async def test_a_menu_that_is_open_while_the_window_is_widened_covers_nothing(
    address: str, open_page: Callable[..., Any]
) -> None:
    page: Page = (await open_page(viewport={"width": 390, "height": 740})).page
    await page.goto(address + "/queue")
    await page.locator(".opens").click()
    await page.set_viewport_size({"width": 1280, "height": 740})
    covered = "document.elementFromPoint({}, 300).closest('.side') !== null"
    assert await page.evaluate("document.getElementById('pages').matches(':popover-open')")
    assert [await page.evaluate(covered.format(x)) for x in (80, 240, 640, 1200)] == [True, False, False, False]
    opened = [await link.bounding_box() for link in await page.locator("nav a").all()]
    await page.keyboard.press("Escape")
    closed = [await link.bounding_box() for link in await page.locator("nav a").all()]
    for one, other in zip(opened, closed, strict=True):
        assert one is not None
        assert other is not None
        assert (one["x"], one["y"]) == (pytest.approx(other["x"], abs=3), pytest.approx(other["y"], abs=6))


async def test_no_page_scrolls_sideways_on_a_phone_or_a_tablet(
    address: str, open_page: Callable[..., Any], services: list[DemandSeries], asked: Platform
) -> None:
    watched: Watched = await open_page(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    for path, charts in (*every_page(services[0].name), ("/no", 0)):
        await watched.page.set_viewport_size({"width": 360, "height": 740})
        await watched.page.goto(address + path)
        await watched.charts(charts)
        assert await overflow(watched.page) <= 0, path
        await watched.page.set_viewport_size({"width": 768, "height": 740})
        await watched.page.wait_for_function("document.documentElement.clientWidth === 768")
        assert await overflow(watched.page) <= 0, f"{path}, 768 pixels"


async def test_dark_follows_the_system_and_the_toggle_charts_included(
    address: str, open_page: Callable[..., Any], services: list[DemandSeries]
) -> None:
    watched: Watched = await open_page(color_scheme="dark")
    page = watched.page
    await page.goto(address + service_url(services[0].name))
    await watched.charts(3)

    async def look() -> tuple[str, str]:
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return ground, await page.evaluate("document.getElementById('fan').data[0].line.color")

    dark = await look()
    await page.locator("#theme-toggle").click()
    await page.wait_for_function("c => document.getElementById('fan').data[0].line.color !== c", arg=dark[1])
    light = await look()
    assert light[0] == "rgb(247, 245, 239)"
    assert dark[0] == "rgb(16, 23, 29)"
    await page.reload()
    await watched.charts(3)
    assert await look() == light
    assert watched.errors == []


async def test_new_data_comes_in_without_a_reload_and_leaves_focus_and_open_parts_alone(
    address: str, open_page: Callable[..., Any], platform: Platform, services: list[DemandSeries]
) -> None:
    watched: Watched = await open_page()
    page = watched.page
    platform.write([series.upto(len(series) - 9) for series in services])
    await platform.refresh()
    await page.goto(address + service_url(services[0].name))
    await watched.charts(3)
    await page.evaluate("window.same = true")
    await page.locator("summary").click()
    await page.locator("#hours-3").focus()
    before = await page.evaluate("document.getElementById('fan').data[0].x.at(-1)")
    platform.write(services)
    await platform.refresh()
    await page.wait_for_function("b => document.getElementById('fan').data[0].x.at(-1) > b", arg=before)
    assert await page.evaluate("window.same")
    assert await page.locator("#json").get_attribute("open") is not None
    assert await page.evaluate("document.activeElement.id") == "hours-3"
    assert watched.errors == []


async def test_live_refresh_can_be_paused_and_a_lost_server_is_said(
    address: str, open_page: Callable[..., Any]
) -> None:
    page: Page = (await open_page()).page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(address)
    await page.locator("#live-toggle").click()
    await asyncio.sleep(0.3)
    asked.clear()
    await asyncio.sleep(2.5)
    assert asked == []
    await page.route("**/*", lambda route: route.abort())
    await page.locator("#live-toggle").click()
    await page.wait_for_selector("#lost:not([hidden])")
    assert await page.locator("table.services").count() == 1
    await page.unroute("**/*")
    await page.wait_for_selector("#lost", state="hidden")


async def test_hostile_names_run_nothing_and_can_be_clicked(
    platform: Platform, open_page: Callable[..., Any], serve_pages: Callable[[Any], str], services: list[DemandSeries]
) -> None:
    platform.write([services[0].__class__(name, 0.0, 300, services[0].value[-600:]) for name in HOSTILE])
    await platform.refresh()
    address = serve_pages(create_app(platform.settings, source=platform.live))
    watched: Watched = await open_page(viewport={"width": 360, "height": 740})
    watched.page.on("dialog", lambda dialog: watched.errors.append(dialog.message))
    for name in HOSTILE:
        await watched.page.goto(address)
        link = watched.page.locator("table.services th a").and_(watched.page.get_by_title(name, exact=True))
        await link.click()
        await watched.charts(3)
        assert await watched.page.locator("h1").get_attribute("title") == name
        assert await overflow(watched.page) <= 0, name
    assert watched.errors == []


async def test_the_document_is_copied(
    address: str, open_page: Callable[..., Any], services: list[DemandSeries]
) -> None:
    page: Page = (await open_page(permissions=["clipboard-read", "clipboard-write"])).page
    await page.goto(address + service_url(services[0].name))
    await page.locator("summary").click()
    for last in (False, False, True):
        # The page renews itself, and its button with it, at any moment.
        await page.locator("button.copy").click()
        with contextlib.nullcontext() if last else contextlib.suppress(AssertionError):
            await expect(page.locator("button.copy")).to_have_text("Copied", timeout=3000)
            break
    assert '"schema": "kopt/v1"' in await page.evaluate("navigator.clipboard.readText()")
