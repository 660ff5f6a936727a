"""A person logs in, is led back when the session has ended, and logs out, in a real Chromium."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages_source import FixedSource
from playwright.async_api import Browser, expect

from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.jobs.data import JOBS
from tests.conformance.test_pages import full
from tests.dashboard.test_browser import CONTRAST, Watched, browser
from tests.dashboard.test_login import KEY, KnownUsers

__all__ = ["browser"]
pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_session_from_its_beginning_to_its_end(
    browser: Browser, serve_pages: Callable[[Any], str], tmp_path: Path, scheme: Any
) -> None:
    users = KnownUsers()
    login = Login(users, Sessions(KEY, secure=False), "kopt-pages")
    source = FixedSource({JOBS: full("team-a/secret-of-a")[JOBS]})
    address = serve_pages(create_app(Settings(home=tmp_path), source=source, refresh_s=1.0, login=login))
    page = await browser.new_page(color_scheme=scheme, viewport={"width": 400, "height": 800})
    watched = Watched(page)
    await page.goto(f"{address}/jobs?q=secret")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    await expect(page.get_by_label("Token")).to_be_focused()
    assert not await page.evaluate("() => document.documentElement.scrollWidth > innerWidth"), "it fits a phone"
    assert await page.evaluate(CONTRAST) == []
    await page.keyboard.type("token-of-a")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="team-a/secret-of-a")).to_be_visible()
    assert page.url == f"{address}/jobs?q=secret"
    # The open page asks again every second, and leads to the login once the token is no longer valid.
    held = dict(users.tokens)
    users.tokens.clear()
    await page.wait_for_url("**/login?next=**")
    users.tokens |= held
    await page.get_by_label("Token").fill("token-of-a")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="team-a/secret-of-a")).to_be_visible()
    await page.get_by_role("button", name="Menu").click()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    await page.goto(f"{address}/jobs")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}
