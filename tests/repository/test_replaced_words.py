"""Words that the glossary replaces become fewer: each room has a number of names with them that may only fall.

After a renaming: ``python -P tests/repository/test_replaced_words.py`` writes the numbers again.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
RECORDED = Path(__file__).with_name("replaced_words.json")
ROOMS = sorted(path.name for path in (ROOT / "src" / "kopt").iterdir() if path.is_dir() and path.name != "__pycache__")
SLACK = 20
"""So many fewer than recorded need not be written down at once: branches would all change the same lines."""


def replaced() -> frozenset[str]:
    """The words of the glossary's last table."""
    rows = GLOSSARY.read_text(encoding="utf-8").partition("## Words that are replaced")[2].splitlines()
    return frozenset(word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else ""))


def bound(tree: ast.AST) -> Iterator[str]:
    """Every name that is defined, assigned or a parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def counted(room: str) -> Counter[str]:
    """How often each replaced word stands in names of a room."""
    words = replaced()
    result = Counter[str]()
    for path in (ROOT / room).rglob("*.py"):
        for name in bound(ast.parse(path.read_text(encoding="utf-8"))):
            parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
            result.update(part.lower() for part in parts if part.lower() in words)
    return result


def test_the_glossary_names_words() -> None:
    assert {"one", "found", "scene", "told"} <= replaced()


@pytest.mark.parametrize("room", ROOMS)
def test_names_with_replaced_words_become_fewer(room: str) -> None:
    recorded, counts = json.loads(RECORDED.read_text(encoding="utf-8"))[room], counted(room)
    assert counts.total() <= recorded, f"write what {GLOSSARY.name} says in place of these: {counts.most_common()}"
    assert counts.total() >= recorded - SLACK, f"well done: write the lower number into {RECORDED.name}"


if __name__ == "__main__":
    totals = {room: counted(room).total() for room in ROOMS}
    RECORDED.write_text(json.dumps(totals, indent=2) + "\n", encoding="utf-8")
