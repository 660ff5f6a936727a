"""Pictures of the pages at a moment of a replayed day, to be looked at: light, dark, and on a phone."""

import os
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

CHROMIUM = os.environ.get("KOPT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
PAGES = ("gpus", "cost", "alerts", "efficiency")
_WIDE = {"width": 1280, "height": 900}
_LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": _WIDE},
    "dark": {"color_scheme": "dark", "viewport": _WIDE},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "is_mobile": True},
}
_DRAWN_MS, _TIMEOUT_MS = 1_500, 120_000


def photograph(address: str, folder: Path) -> list[Path]:
    """``PAGE-LOOK.png`` of each in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    result = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for look, options in _LOOKS.items():
            page = browser.new_context(**options).new_page()
            page.set_default_timeout(_TIMEOUT_MS)
            for name in PAGES:
                page.goto(f"{address}/{name}", wait_until="domcontentloaded")
                page.wait_for_timeout(_DRAWN_MS)
                page.screenshot(path=(path := folder / f"{name}-{look}.png"))
                result.append(path)
        browser.close()
    return result
