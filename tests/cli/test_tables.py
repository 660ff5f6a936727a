"""Tables on narrow terminals: names are whole, sentences wrap, unimportant columns go first, commands can be copied."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cli.cluster.queueing.queue import QueueRow
from kopt.cli.output import FORMATTERS, Answer, Format
from kopt.cli.tables import TextColumn, drawn, fitted, wrapped

PATCH = (
    """kubectl patch job x -n research --type=json -p '[{"op": "replace", "path": "/spec/suspend", "value": false}]'"""
)
ROWS = [
    QueueRow(
        "research-queue", n, f"research/finetune-llama-3-{n}", 8.0, 100, "held by preemption", 4e3, 3e4, "own",
        source="agent", kind="Job", system="kueue", local_queue="l", holder="", since_s=1.0, created_s=1.0, message="",
        overtakes="", workload_class="unattended",
    )
    for n in range(3)
]  # fmt: skip


def _table(monkeypatch: pytest.MonkeyPatch, width: int, answer: Answer) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", FORMATTERS[Format.TABLE](answer))


@pytest.mark.parametrize("width", [80, 60, 20])
def test_a_queue_shows_whole_names(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = _table(monkeypatch, width, Answer("workloads", ROWS))
    assert "…" not in text
    for n in range(3):
        assert f"research/finetune-llama-3-{n} " in text
    assert text.count("research-queue ") == 3
    assert "Left out for want of width: overtakes, at risk by" in " ".join(text.split())


def test_a_table_of_80_columns_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(map(len, _table(monkeypatch, 80, Answer("workloads", ROWS)).splitlines())) <= 80


def test_a_wide_terminal_shows_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _table(monkeypatch, 160, Answer("workloads", ROWS))
    assert "at risk by" in text
    assert "Left out" not in text


@pytest.mark.parametrize("words", [PATCH, "`kopt why research/a-job`", '[{"op": "add", "path": "/a"}]'])
def test_what_is_copied_is_never_broken(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    text = _table(monkeypatch, 40, Answer("workloads", ROWS, remarks=[f"You may accept this and go on: {words}"]))
    assert any(words in line for line in text.splitlines())


_NAMES = st.text(alphabet="abc-/.", min_size=1, max_size=30)
_SENTENCES = st.lists(_NAMES, min_size=1, max_size=12).map(" ".join)


@given(st.lists(st.tuples(_NAMES, _SENTENCES, _SENTENCES), min_size=1, max_size=5), st.integers(10, 120))
def test_no_word_is_ever_cut(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [
        TextColumn(title, cells, drop=drop)
        for title, cells, drop in zip("nst", zip(*rows, strict=True), (None, None, 1), strict=True)
    ]
    shown, widths, dropped = fitted(columns, width)
    assert {each.title for each in (*shown, *dropped)} == set("nst")
    heading, text = drawn(shown, widths)
    words = text.split()
    for each in shown:
        for cell in each.cells:
            assert set(cell.split()) <= set(words)
    if sum(each.least for each in shown) + 2 * (len(shown) - 1) <= width:
        assert max(map(len, (*heading.splitlines(), *text.splitlines()))) <= width


@given(_SENTENCES, st.integers(1, 60))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or " " not in line for line in lines)
