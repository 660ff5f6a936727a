"""Markdown as the tests of the documentation read it: headings, links, code spans and fenced blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)[^`]*$")
_MARK = re.compile(r"<!-- (?P<mark>run(?:: slow)?|output) -->$")
_HEADING = re.compile(r"#{1,6} +(?P<text>.*?) *#*$")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``mark`` is that of the comment above it: run, run: slow, run: long, output, or empty."""

    file: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """README and everything under docs."""
    return [README, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(file: Path) -> Iterator[Block]:
    """Its fenced blocks in their order; the comment that marks one is the last line that is not empty above it."""
    mark, opened, body = "", None, list[str]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if opened is not None:
            fence, start = opened
            if line.strip() == fence["ticks"]:
                yield Block(file, start, fence["language"], mark, "\n".join(body) + "\n")
                mark, opened = "", None
            else:
                body.append(line.removeprefix(fence["indent"]))
        elif fence := _FENCE.match(line):
            opened, body = (fence, number), []
        elif line.strip():
            found = _MARK.match(line.strip())
            mark = found["mark"] if found else ""
    assert opened is None, f"{file}: a fence does not end"


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced and indented blocks, with their numbers."""
    fenced, above = False, ""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not (line.startswith("    ") and not above.strip()):
            yield number, line
        above = line if not (line.startswith("    ") and not above.strip()) else ""


def links(file: Path) -> Iterator[tuple[int, str]]:
    """Targets of links and images."""
    for number, line in prose(file):
        for found in _LINK.finditer(_CODE_SPAN.sub("code", line)):
            yield number, found["target"]


def code_spans(file: Path) -> Iterator[tuple[int, str]]:
    """What stands between backticks."""
    for number, line in prose(file):
        for found in _CODE_SPAN.finditer(line):
            yield number, found[2].strip()


def anchors(file: Path) -> set[str]:
    """Anchors of its headings that both GitHub and the documentation site make."""
    headings = [found["text"] for _, line in prose(file) if (found := _HEADING.match(line))]
    return {_on_github(text) for text in headings} & {_on_the_site(text) for text in headings}


def _on_github(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _on_the_site(heading: str) -> str:
    from markdown.extensions.toc import slugify

    slug: str = slugify(heading.replace("`", ""), "-")
    return slug
