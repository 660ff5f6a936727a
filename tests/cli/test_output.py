"""Every format says the same, and none of them can be abused by what a file holds."""

import csv
import io
import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kopt.cli.output import FORMATTERS, Answer, Format, column, format_number, plain, printable


@dataclass(frozen=True)
class Row:
    name: str = column("name")
    value: float | None = column("value")
    digest: str = column("digest", wide=True)
    share: float | None = column("share", show=lambda share: f"{share:.0%}")


def answer(*rows: Row, **more: object) -> Answer:
    return Answer("rows", rows, **more)  # type: ignore[arg-type]


def render(output: Format, given: Answer) -> str:
    return FORMATTERS[output](given)


def test_every_format_is_registered() -> None:
    assert set(FORMATTERS) == set(Format)


def test_json_carries_the_schema_facts_and_rows_on_one_line() -> None:
    text = render(Format.JSON, answer(Row("chat", 1.5, "d", 0.5), header={"version": 3}))
    assert "\n" not in text
    assert json.loads(text) == {
        "schema": "kopt/v1",
        "version": 3,
        "rows": [{"name": "chat", "value": 1.5, "digest": "d", "share": 0.5}],
    }


def test_yaml_and_json_hold_the_same_document() -> None:
    given = answer(Row("chat", math.nan, "d", None), header={"a": (1, 2)})
    assert yaml.safe_load(render(Format.YAML, given)) == json.loads(render(Format.JSON, given))


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf, np.float64("nan"), None])
def test_what_is_no_number_is_null_in_json_and_empty_in_csv(missing: float | None) -> None:
    given = answer(Row("chat", missing, "d", None))
    assert json.loads(render(Format.JSON, given))["rows"][0]["value"] is None
    assert render(Format.CSV, given).splitlines()[1] == "chat,,d,"


@pytest.mark.parametrize("formula", ["=1+1", "+cmd", "-2+3", "@SUM(A1)"])
def test_csv_text_that_a_spreadsheet_would_run_is_quoted(formula: str) -> None:
    (_, row) = csv.reader(io.StringIO(render(Format.CSV, answer(Row(formula, -1.0, "d", None)))))
    assert row[0] == "'" + formula
    assert row[1] == "-1.0"


@given(st.text())
def test_a_csv_row_is_one_line_whatever_the_text(text: str) -> None:
    lines = render(Format.CSV, answer(Row(text, 1.0, "d", None))).split("\n")
    assert len(lines) == 3
    assert lines[2] == ""
    ((name, *_),) = csv.reader([lines[1]])
    assert not name.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_tables_show_headings_hide_wide_columns_and_render_values() -> None:
    text = render(Format.TABLE, answer(Row("chat", None, "secret-digest", 0.25), remarks=["all is well"]))
    assert "value" in text
    assert "25%" in text
    assert "–" in text
    assert "all is well" in text
    assert "secret-digest" not in text


def test_an_empty_table_says_so() -> None:
    assert render(Format.TABLE, answer(empty="no model yet")).strip() == "no model yet"
    assert render(Format.CSV, answer()) == ""


def test_markup_and_escape_codes_in_names_stay_text() -> None:
    text = render(Format.TABLE, answer(Row("[red]x[/red]\x1b[31m", 1.0, "d", None)))
    assert "[red]x[/red]" in text
    assert "\x1b[31m" not in text


def test_a_document_of_its_own_replaces_rows_in_json_only() -> None:
    given = answer(Row("chat", 1.0, "d", None), document={"forecasts": []})
    assert json.loads(render(Format.JSON, given)) == {"schema": "kopt/v1", "forecasts": []}
    assert "chat" in render(Format.TABLE, given)


def test_numpy_becomes_plain() -> None:
    assert plain({"a": np.array([1.0, np.nan]), "b": np.int64(3), "c": np.bool_(True)}) == {
        "a": [1.0, None],
        "b": 3,
        "c": True,
    }


@given(st.text())
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    assert all(c.isprintable() for c in printable(text))


@given(st.floats())
def test_every_number_can_be_shown(value: float) -> None:
    assert format_number(value)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234567.0, "1,234,567"), (0.12345, "0.123"), (1234.5, "1,234")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text
