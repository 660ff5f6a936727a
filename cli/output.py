"""What a verb answers, and the registry of formats it can be printed in.

A verb builds an `Answer` out of typed rows and prints it once; it never formats anything itself. A row is a frozen
dataclass whose fields are the columns (`column` gives a field its heading). New formats register themselves with
`@formatter`, as robusta's KRR does it.
"""

import csv
import dataclasses
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from kopt.cli import tables

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

SCHEMA = "kopt/v1"
NOTHING = "–"
PIPE_WIDTH = 160
_SPREADSHEET_TRIGGERS = ("=", "+", "-", "@")


class Format(StrEnum):
    """Formats of ``-o``; the first is for people."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@dataclass(frozen=True)
class Answer:
    """Rows under the key ``name`` in documents, ``header`` beside them, ``remarks`` for people only.

    ``header`` is shown above the table as ``key: value``. ``document`` replaces header and rows in JSON and YAML where
    an object has a document of its own; ``hide_header`` keeps the header, where remarks say it better, off terminals.
    """

    name: str
    rows: Sequence["DataclassInstance"]
    header: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    remarks: Sequence[str] = ()
    empty: str = "nothing to show"
    document: Mapping[str, Any] | None = None
    hide_header: bool = False


def column(title: str, *, show: Callable[[Any], str] | None = None, wide: bool = False, drop: int | None = None) -> Any:
    """A dataclass field with a heading; ``show`` renders its value for people, ``wide`` keeps it out of tables, and
    ``drop`` lets narrow terminals leave it out, the lowest number first."""
    return field(metadata={"title": title, "show": show, "wide": wide, "drop": drop})


Formatter = Callable[[Answer], str]
FORMATTERS: dict[Format, Formatter] = {}


def formatter(name: Format) -> Callable[[Formatter], Formatter]:
    """Registers a function as the format ``name``."""

    def register(function: Formatter) -> Formatter:
        FORMATTERS[name] = function
        return function

    return register


def show(answer: Answer, output: Format) -> None:
    """Print an answer on standard output."""
    text = FORMATTERS[output](answer)
    typer.echo(text, nl=not text.endswith("\n"))


def printable(text: str) -> str:
    """Text without control characters, so that a name from a file cannot steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain(value: Any) -> Any:
    """Only what JSON knows: dataclasses and mappings to objects, NaN and infinities to null, numpy to Python."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def document(answer: Answer) -> dict[str, Any]:
    """The answer as one object with its schema, the same for JSON and YAML."""
    if answer.document is not None:
        return {"schema": SCHEMA, **plain(answer.document)}
    return {"schema": SCHEMA, **plain(answer.header), answer.name: plain(list(answer.rows))}


@formatter(Format.JSON)
def as_json(answer: Answer) -> str:
    return json.dumps(document(answer), ensure_ascii=False, allow_nan=False)


@formatter(Format.YAML)
def as_yaml(answer: Answer) -> str:
    import yaml

    return yaml.safe_dump(document(answer), sort_keys=False, allow_unicode=True)


@formatter(Format.CSV)
def as_csv(answer: Answer) -> str:
    """Rows only. Text that a spreadsheet would run as a formula gets a leading apostrophe (OWASP: CSV injection);
    control characters are escaped, so that a row is a line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if answer.rows:
        writer.writerow([f.name for f in dataclasses.fields(answer.rows[0])])
    for row in answer.rows:
        writer.writerow([_cell(getattr(row, f.name)) for f in dataclasses.fields(row)])
    return out.getvalue()


def _cell(value: Any) -> Any:
    simple = plain(value)
    if isinstance(simple, dict | list):
        simple = json.dumps(simple, ensure_ascii=False)
    if isinstance(simple, str):
        text = printable(simple)
        return "'" + text if text.startswith(_SPREADSHEET_TRIGGERS) else text
    return "" if simple is None else simple


@formatter(Format.TABLE)
def as_table(answer: Answer) -> str:
    from rich.console import Console
    from rich.text import Text

    # A pipe has no width: wide enough for every column, so that grep finds whole cells.
    width = Console().width if sys.stdout.isatty() else PIPE_WIDTH
    # What may not be broken may be wider than the terminal, which wraps it by itself and copies it whole.
    console = Console(highlight=False, width=width)
    dropped: list[str] = []
    with console.capture() as capture:
        for key, value in () if answer.hide_header else answer.header.items():
            text = tables.wrapped(f"{key.replace('_', ' ')}: {_for_people(value)}", width)
            console.print(Text(text, style="dim"), soft_wrap=True)
        if answer.rows:
            dropped = _print_rows(answer, console, width)
        else:
            console.print(Text(tables.wrapped(answer.empty, width)), soft_wrap=True)
        width_remarks = [f"Left out for want of width: {', '.join(dropped)} (-o json has them)."] if dropped else []
        for remark in (*answer.remarks, *width_remarks):
            console.print(Text(tables.wrapped(printable(remark), width)), soft_wrap=True)
    return capture.get()


def _print_rows(answer: Answer, console: "Console", width: int) -> list[str]:
    """Returns the headings of columns that had no room."""
    from rich.text import Text

    specs = [spec for spec in dataclasses.fields(answer.rows[0]) if not spec.metadata.get("wide")]
    columns = [
        tables.TextColumn(
            spec.metadata.get("title", spec.name),
            [_text_of(spec, getattr(row, spec.name)) for row in answer.rows],
            all(_is_number(getattr(row, spec.name)) for row in answer.rows),
            spec.metadata.get("drop"),
        )
        for spec in specs
    ]
    fitting, widths, dropped = tables.fitted(columns, width)
    heading, rows = tables.drawn(fitting, widths)
    console.print(*([Text(answer.title, "italic")] if answer.title else []), soft_wrap=True)
    console.print(Text(heading, "bold"), soft_wrap=True)
    console.print(Text(f"{rows}\n"), soft_wrap=True)
    return [each.title for each in dropped]


def _is_number(value: Any) -> bool:
    return value is None or (not isinstance(value, bool) and isinstance(plain(value), int | float | None))


def _text_of(spec: "dataclasses.Field[Any]", value: Any) -> str:
    render = spec.metadata.get("show")
    return printable(render(value)) if render and value is not None else _for_people(value)


def _for_people(value: Any) -> str:
    simple = plain(value)
    if simple is None or simple == "":
        return NOTHING
    if isinstance(simple, bool):
        return "yes" if simple else "no"
    if isinstance(simple, float):
        return format_number(simple)
    if isinstance(simple, list):
        return ", ".join(_for_people(item) for item in simple)
    if isinstance(simple, dict):
        return ", ".join(f"{key} {_for_people(item)}" for key, item in simple.items() if item not in ("", None))
    return printable(str(simple))


def format_time(at_s: float) -> str:
    """Unix seconds as a time of UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_number(value: float) -> str:
    """Three to four significant digits, thousands separated, no exponent for everyday sizes."""
    if not math.isfinite(value):
        return NOTHING
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.3g}"
