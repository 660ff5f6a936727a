"""The page of costs of the example cluster in a real Chromium: sums, events behind a row, light, dark and phone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages_source import FixedSource
from playwright.async_api import expect

from kopt.cli.local.example.costs import ExampleCosts, costs_file
from kopt.cli.local.pages.costs import costs_of
from kopt.cluster.objects.custom.kaiwo_budget import standing_of
from kopt.core.scheduling.overview import Overview
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cost.data import COSTS, CostState
from tests.dashboard.conftest import serve_pages
from tests.dashboard.test_browser import CONTRAST, Watched, browser, open_page, overflow

__all__ = ["browser", "open_page", "serve_pages"]
pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path, serve_pages: Callable[[Any], str]) -> str:
    """The pages of ``kopt up`` over the example's file."""
    now_ms, settings = int(time.time() * 1000), Settings(home=tmp_path)
    costs_file(tmp_path).parent.mkdir()
    example = ExampleCosts(costs_file(tmp_path), now_ms)
    budgets = tuple(map(standing_of, example.budgets(now_ms)))
    example.close()
    costs = costs_of({"KOPT_PAGES_EXAMPLE": "true"}, settings)
    source = FixedSource(
        {
            SNAPSHOT: Snapshot({}, Endpoint("http://127.0.0.1:8700"), now_ms / 1000),
            COSTS: CostState(costs, costs.recorded()),
            OVERVIEW: Overview(cluster=True, now_s=now_ms / 1000, budgets=budgets),
        }
    )
    return serve_pages(create_app(settings, source=source, example=True))


async def test_a_reader_goes_from_the_sum_to_the_events_behind_a_row(
    address: str, open_page: Callable[..., Any]
) -> None:
    watched: Watched = await open_page()
    page = watched.page
    await page.goto(f"{address}/cost")
    await expect(page.locator("p.example")).to_contain_text("Example data")
    await expect(page.locator("#closing")).to_contain_text("They agree")
    assert await page.locator("rect.cost.unallocated, rect.cost.stranded, rect.cost.reserved").count() == 3
    assert await page.locator("article.budget").count() == 3
    await page.locator("#by").select_option("pod")
    await page.get_by_role("button", name="Show").click()
    row = page.locator("table.costs tbody tr").first
    amount = await row.locator("td[data-label=amount]").inner_text()
    await row.locator("a").click()
    await expect(page.locator("#events")).to_contain_text(f"{amount}.")
    await expect(page.locator("#events tbody tr").first).to_contain_text("3.99 USD")
    await page.get_by_role("link", name="Next").click()
    await expect(page.get_by_role("link", name="Previous")).to_be_visible()
    await page.locator("#prices summary").click()
    await expect(page.locator("#prices")).to_contain_text("catalogue")
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_it_is_legible_by_day_by_night_and_on_a_phone(
    address: str, open_page: Callable[..., Any], scheme: str, width: int
) -> None:
    page = (await open_page(color_scheme=scheme, viewport={"width": width, "height": 844})).page
    for query in ("", "?by=workload", "?by=pod&row=serving/llama-8b-chat-0"):
        await page.goto(f"{address}/cost{query}")
        assert await page.evaluate(CONTRAST) == [], query
        assert await overflow(page) <= 0, query
