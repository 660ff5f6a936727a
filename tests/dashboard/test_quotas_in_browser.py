"""The page of quotas of the example cluster in a real Chromium: by day, by night, on a phone, and as things change."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages_source import FixedSource
from playwright.async_api import expect

from kopt.cli.local.example.cluster import objects_at
from kopt.cli.local.example.gpu_hours import ExampleGpuHours
from kopt.cluster.client.resources import KAIWO_RESERVATIONS
from kopt.cluster.objects.custom.reservation import standing_of
from kopt.controllers.overview.queue_standings import NEEDED, queue_standings
from kopt.core.scheduling.queue_standing import QueueHistory, QueueTreeState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.feed import Feed
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.pages.quotas.data import QUOTAS, STEP_S, STEPS, Quotas
from tests.dashboard.conftest import serve_pages
from tests.dashboard.test_browser import CONTRAST, Watched, browser, open_page, overflow

__all__ = ["browser", "open_page", "serve_pages"]
pytestmark = pytest.mark.browser


def example(now_s: float) -> Quotas:
    documents = objects_at(now_s)
    read = queue_standings({kind: documents[kind] for kind in NEEDED})
    reservations = tuple(standing_of(document) for document in documents[KAIWO_RESERVATIONS])
    used = tuple(None if step < 9 else 800.0 * (step % 50) for step in range(STEPS))
    start_s = now_s - STEPS * STEP_S
    waits = ExampleGpuHours(lambda: now_s).queue_waits(start_s, STEP_S, STEPS)
    history = QueueHistory(start_s, STEP_S, {"quality": used, "research": used}, waits)
    return Quotas(QueueTreeState(True, True, now_s, read.queues, reservations, read.local_queues), history)


class ChangingSource(FixedSource):
    """Its pages hear of each ``change``, which the test's own thread makes."""

    changes = 0

    def change(self, quotas: Quotas) -> None:
        self.values[QUOTAS] = quotas
        self.changes += 1

    async def next_change(self, feed: Feed[Any], seen: int) -> int:
        while self.changes == seen:
            await asyncio.sleep(0.02)
        return self.changes


@pytest.fixture
def source() -> ChangingSource:
    now_s = time.time()
    return ChangingSource({SNAPSHOT: Snapshot({}, Endpoint("http://127.0.0.1:8700"), now_s), QUOTAS: example(now_s)})


@pytest.fixture
def address(source: ChangingSource, serve_pages: Callable[[Any], str]) -> str:
    return serve_pages(create_app(Settings(home=Path("/nowhere")), source=source, example=True, refresh_s=600.0))


async def test_a_reader_sees_the_tree_a_week_of_use_and_reservations_without_an_error(
    address: str, open_page: Callable[..., Any]
) -> None:
    watched: Watched = await open_page()
    page = watched.page
    await page.goto(f"{address}/quotas")
    await expect(page.locator("p.example")).to_contain_text("Example data")
    tables = page.locator("table.quotas")
    await expect(tables.nth(0).locator("tbody tr")).to_have_count(3)
    await expect(tables.nth(0)).to_contain_text("GPUs on average")
    await expect(tables.nth(1)).to_contain_text("Backfilled")
    bars = page.locator("rect.slot")
    assert await bars.count() >= 7
    now = await page.locator(".slots .mark").first.evaluate("e => e.getBoundingClientRect().left")
    held = await page.locator("rect.slot.backfilled").first.evaluate("e => e.getBoundingClientRect().left")
    assert held > now
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_it_is_legible_by_day_by_night_and_on_a_phone(
    address: str, open_page: Callable[..., Any], scheme: str, width: int
) -> None:
    page = (await open_page(color_scheme=scheme, viewport={"width": width, "height": 844})).page
    await page.goto(f"{address}/quotas")
    assert await page.evaluate(CONTRAST) == []
    assert await overflow(page) <= 0


async def test_an_open_page_shows_a_change_when_it_is_told_of_it(
    address: str, source: ChangingSource, open_page: Callable[..., Any]
) -> None:
    page = (await open_page()).page
    await page.goto(f"{address}/quotas")
    assert await page.evaluate("document.documentElement.dataset.events") == "/quotas/events"
    before: Quotas = source.values[QUOTAS]
    queues = tuple(replace(queue, use=31_000) for queue in before.tree.queues)
    source.change(replace(before, tree=replace(before.tree, queues=queues)))
    await expect(page.locator("table.quotas").first).to_contain_text("31")
