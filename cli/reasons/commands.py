"""``kopt reasons``: every reason code by area, or what a code means and what to do about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from kopt.cli.errors import unknown_name
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.reason_codes.catalogue import NOTHING_TO_DO, areas, page_of, reason_codes


@dataclass(frozen=True)
class MeaningRow:
    """A code in an area."""

    area: str = column("area")
    code: str = column("code")
    means: str = column("meaning")
    do: str = column("what to do", wide=True)


def completed(incomplete: str) -> list[str]:
    """Codes that begin so, for the shell."""
    return [code for code in reason_codes() if code.startswith(incomplete)]


def reasons(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Such as NO_MODEL; all by default.", autocompletion=completed)
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """What the reason codes of answers mean, and what to do about them.

    Predictions, decisions and the findings of [bold]kopt why[/bold] carry codes that never change, beside sentences
    with the numbers. The same code can mean different things in different areas.

    Examples:

        kopt reasons

        kopt reasons NO_MODEL

        kopt reasons -o csv > reasons.csv
    """
    if code is None:
        rows = sorted((row for each in reason_codes() for row in _rows(each)), key=lambda row: row.area)
        hint = f"{len(reason_codes())} codes. What to do about one: kopt reasons CODE"
        show(Answer("reasons", rows, remarks=[hint]), output)
        return
    name = code.upper().replace("-", "_")
    if name not in reason_codes():
        unknown_name("code", name, tuple(reason_codes()), "CODE", "kopt reasons lists them all")
    if output is Format.TABLE:
        show(Answer("meanings", [], empty=name, remarks=list(_page(name))), output)
    else:
        show(Answer("meanings", list(_rows(name)), header={"code": name, "page": page_of(name)}), output)


def _rows(code: str) -> Iterator[MeaningRow]:
    for meaning in reason_codes()[code]:
        yield MeaningRow(meaning.area, code, meaning.means, meaning.do)


def _page(code: str) -> Iterator[str]:
    for meaning in reason_codes()[code]:
        yield ""
        yield areas()[meaning.area]
        yield meaning.means
        yield f"What to do: {meaning.do or NOTHING_TO_DO}"
    yield ""
    yield f"In the documentation: {page_of(code)}"
