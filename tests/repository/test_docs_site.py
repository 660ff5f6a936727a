"""The documentation builds as a site without a warning, and its pages load nothing from another host."""

import html
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from documents import ROOT

from kopt.core.reason_codes.catalogue import page_of, reason_codes

pytestmark = pytest.mark.slow
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LINKS_THAT_LOAD = {"stylesheet", "icon", "preconnect", "preload", "dns-prefetch", "manifest", "prefetch"}


class Loads(HTMLParser):
    """Collects the addresses that a browser fetches as it shows a page; links that a reader follows are none."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in LOADS:
            self.addresses.append(given.get(LOADS[tag], ""))
        if tag == "link" and set(given.get("rel", "").split()) & LINKS_THAT_LOAD:
            self.addresses.append(given.get("href", ""))


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert loads.addresses
        assert not [address for address in loads.addresses if "//" in address], page


def test_style_sheets_load_nothing_from_another_host(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text
        assert "url(//" not in text
        assert "@import" not in text


def test_records_of_decisions_are_listed(site: Path) -> None:
    text = (site / "adr" / "index.html").read_text(encoding="utf-8")
    for record in (ROOT / "docs" / "adr").glob("[0-9]*.md"):
        assert f"{record.stem}.html" in text


def test_every_reason_code_has_its_place(site: Path) -> None:
    for code, meanings in reason_codes().items():
        page, _, anchor = page_of(code).partition("#")
        text = html.unescape((site / page).read_text(encoding="utf-8"))
        section = text[text.index(f'id="{anchor}"') :].partition("<h2")[0]
        for meaning in meanings:
            # As far as the first piece of code, which is markup there.
            assert meaning.means.partition("`")[0] in section, code


def test_a_broken_anchor_ends_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Title\n\n[there](#nowhere)\n", encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    whole = settings[: settings.index("\nnav:")].replace("docs_dir: docs", f"docs_dir: {docs}")
    whole = whole.replace("scripts/docs_site.py", str(ROOT / "scripts" / "docs_site.py"))
    (tmp_path / "mkdocs.yml").write_text(whole, encoding="utf-8")
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert "nowhere" in done.stderr
