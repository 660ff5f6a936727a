"""Takes the README's pictures of a running platform: ``python tests/dashboard/screenshots.py http://127.0.0.1:8701``.

Writes ``docs/images/services.png`` and ``docs/images/forecast.png``; the second shows the service named as a further
argument, by default the busiest.
"""

import os
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
CHROMIUM = os.environ.get("KOPT_CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
LARGEST_BYTES = 300_000


def take(address: str, service: str = "") -> None:
    """Both pictures. Raises ValueError when one is larger than a README should carry."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        page.goto(f"{address}/?sort=now&dir=desc")
        page.wait_for_selector("table.services .badge.ok", timeout=120_000)
        save(page, "services.png")
        page.set_viewport_size({"width": 1280, "height": 1330})
        page.emulate_media(color_scheme="dark")
        page.get_by_role("link", name=service, exact=True).click() if service else page.locator(
            "tbody th a"
        ).first.click()
        page.wait_for_selector("#past.drawn", timeout=120_000)
        page.goto(f"{page.url.split('?')[0]}?hours=12")
        page.wait_for_selector("#past.drawn")
        save(page, "forecast.png")
        browser.close()


def save(page: Page, name: str) -> None:
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / name)
    size = (IMAGES / name).stat().st_size
    if size > LARGEST_BYTES:
        raise ValueError(f"{name} has {size} bytes; at most {LARGEST_BYTES}")


if __name__ == "__main__":
    take(*sys.argv[1:])
