"""What the documentation names is there: linked files, headings, source files, symbols, commands and messages."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from documents import README, ROOT, anchors, blocks, code_spans, documents, links

from kopt.cli.main import app
from kopt.core.reason_codes.catalogue import reason_codes

DOCS = ROOT / "docs"
README_LINES = 250
GUIDES = [README, *sorted(path for path in DOCS.rglob("*.md") if "adr" not in path.parts)]
"""Without the records of decisions: these speak of the code as it was then."""
TAKES_OTHERS_OPTIONS = ("estimate", "profile")
"""What follows the script is its own."""
PLACEHOLDER = re.compile(r"NAME|X\b|…|\*|<|\{")


@pytest.fixture(params=documents(), ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(params=GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def guide(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_every_relative_link_leads_to_a_file_and_every_anchor_to_a_heading(document: Path) -> None:
    wrong = [f"{document.name}:{line}: {target}" for line, target in links(document) if _is_broken(document, target)]
    assert not wrong


def _is_broken(document: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return False
    path, _, anchor = target.partition("#")
    goal = (document.parent / path).resolve() if path else document
    if not goal.is_relative_to(ROOT) or not goal.exists():
        return True
    # The site holds docs alone.
    if document.is_relative_to(DOCS) and not goal.is_relative_to(DOCS):
        return True
    return bool(anchor) and anchor not in anchors(goal)


def test_the_check_sees_broken_links(tmp_path: Path) -> None:
    assert _is_broken(README, "docs/nothing.md")
    assert _is_broken(README, "docs/deployment.md#nothing")
    assert _is_broken(DOCS / "index.md", "../README.md")
    assert not _is_broken(README, "docs/deployment.md#install")


def test_the_readme_can_be_read_to_its_end() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_every_source_file_that_a_guide_names_exists(guide: Path) -> None:
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
    wrong = []
    for line, span in code_spans(guide):
        path, _, symbol = span.partition(":")
        # With an extension or a slash at its end: others may be names of labels, images or API groups.
        is_path = re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*(?:\.\w+|/)", path) and path.split("/")[0] in tops
        if not is_path or PLACEHOLDER.search(path):
            continue
        if not (ROOT / path).exists():
            wrong.append(f"{guide.name}:{line}: {path}")
        elif symbol and symbol.strip() not in (ROOT / path).read_text(encoding="utf-8"):
            wrong.append(f"{guide.name}:{line}: {span}")
    assert not wrong


def test_symbols_that_the_index_names_beside_a_file_are_in_it() -> None:
    """``file``: ``SYMBOL`` in the table of files to change."""
    named = []
    for text in [DOCS / "index.md", *(DOCS / "contributing").glob("*.md")]:
        for path, symbol in re.findall(r"`([\w/.]+\.py)`: `(\w+)`", text.read_text(encoding="utf-8")):
            named.append(path)
            assert re.search(rf"\b{symbol}\b", (ROOT / path).read_text(encoding="utf-8")), f"{path} has no {symbol}"
    assert len(named) > 8


def _commands(document: Path) -> Iterator[tuple[int, str]]:
    """Every ``kopt …`` of code spans, behind the prompt of a console, and of lines in blocks that begin with it."""
    for line, span in code_spans(document):
        if span.startswith("kopt "):
            yield line, span
    fenced = False
    for line, text in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= text.startswith("```")
        lead = r"\$ " if fenced else r"    (?:\$ )?"
        if found := re.match(rf"{lead}(?:\S.*\| )?(kopt .*)", text):
            yield line, found[1].rstrip("\\")


def test_every_command_that_is_named_exists_with_its_options(guide: Path) -> None:
    wrong = []
    for line, text in _commands(guide):
        problem = _unknown(text)
        if problem:
            wrong.append(f"{guide.name}:{line}: {text}: {problem}")
    assert not wrong


def _unknown(text: str) -> str:
    """What of a command line does not exist; empty when all of it does."""
    command: Any = typer.main.get_command(app)
    words = _words(text)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        inner = command.commands.get(words[0])
        if inner is None:
            return "" if PLACEHOLDER.search(words[0]) or not words[0].islower() else f"no command {words[0]}"
        command, words = inner, words[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    if command.name in TAKES_OTHERS_OPTIONS:
        return ""
    return next((f"no option {name}" for name in given if name not in {*options, "--help", "-h"}), "")


def _words(text: str) -> list[str]:
    """Of the command alone: up to ``--``, a pipe or a comment."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        words = list(lexer)[1:]
    except ValueError:
        words = text.split()[1:]
    ends = [number for number, word in enumerate(words) if word in ("--", "|", ";", ">")]
    return words[: ends[0]] if ends else words


def test_every_command_that_a_reason_code_names_exists_with_its_options() -> None:
    texts = [text for meanings in reason_codes().values() for each in meanings for text in (each.means, each.do)]
    commands = [command for text in texts for command in re.findall(r"`(kopt [^`]*)`", text)]
    assert len(commands) > 20
    assert not [f"{command}: {problem}" for command in commands if (problem := _unknown(command))]


def test_the_check_sees_a_wrong_command() -> None:
    assert _unknown("kopt demand forcast x") == "no command forcast"
    assert _unknown("kopt evictions --sinze 24h") == "no option --sinze"
    assert not _unknown("kopt demand forecast x --series y")


def test_yaml_that_is_shown_can_be_read(guide: Path) -> None:
    for block in blocks(guide):
        if block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), block.name


@cache
def _source() -> str:
    """All code of the product, with strings that are written in several pieces put together."""
    folders = [path for path in ROOT.iterdir() if (path / "__init__.py").exists() and path.name not in ("tests",)]
    text = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_every_message_that_troubleshooting_explains_is_one_of_the_code() -> None:
    rows = [
        line for line in (DOCS / "troubleshooting.md").read_text(encoding="utf-8").splitlines() if line[:3] == "| `"
    ]
    messages = [re.match(r"\| `([^`]*)`", row) for row in rows]
    pieces = [piece.strip() for found in messages if found for piece in found[1].split("…")]
    assert len(rows) > 25
    absent = [piece for piece in pieces if len(piece) > 3 and piece not in _source()]
    assert not absent


def test_the_glossary_has_each_term_once_and_its_sections_in_order() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = [row.split("|")[1].strip() for row in text.splitlines() if row.startswith("| ") and "| meaning" not in row]
    assert len(terms) > 120
    assert len(set(terms)) == len(terms)
    for section in text.split("\n## ")[1:-2]:
        rows = [row.split("|")[1].strip(" `").lower() for row in section.splitlines() if row.startswith("| ")][1:]
        assert all(before <= after for before, after in pairwise(rows)), section.splitlines()[0]


def test_every_page_has_its_place_on_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.parent.name != "adr"}
    assert not [page for page in pages if page not in navigation]


def test_every_make_target_that_a_guide_names_exists(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets
