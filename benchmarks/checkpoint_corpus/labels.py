"""What the lines of each program say: the ordered patterns of ``labels.toml``, applied to what was recorded."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kopt.core.checkpoint import LineLabel
from kopt.formats.joblog import LineSplitter

LABELS = Path(__file__).resolve().parent / "labels.toml"
Rules = tuple[tuple[re.Pattern[str], LineLabel], ...]


@cache
def _all_rules() -> dict[str, Rules]:
    found = tomllib.loads(LABELS.read_text())
    return {
        program: tuple((re.compile(pattern), LineLabel(label)) for pattern, label in each["rules"])
        for program, each in found.items()
    }


def rules_of(program: str) -> Rules:
    """Those of a program, before those of every program. Raises KeyError for a program that has none."""
    known = _all_rules()
    return known[program] + known["everything"]


def label_of(text: str, rules: Rules) -> LineLabel | None:
    """What a line says; None for one that is empty or that no pattern is found in."""
    return next((label for pattern, label in rules if pattern.search(text)), None) if text.strip() else None


def labels_of(texts: Iterable[str], program: str) -> dict[int, str]:
    """By line number, from 1: the lines that have a label."""
    rules = rules_of(program)
    found = ((number, label_of(text, rules)) for number, text in enumerate(texts, 1))
    return {number: label.value for number, label in found if label}


def lines_in(log: bytes) -> list[str]:
    """The texts of a log's lines, as they were counted when it was recorded."""
    splitter = LineSplitter()
    return [line.text for line in [*splitter.feed(log), *splitter.close()]]
