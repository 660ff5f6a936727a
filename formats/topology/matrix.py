"""Square tables of devices, as AMD's tools print them: a header of names and a row for each of them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kopt.formats.topology.text import FormatError, Line, Word, unbroken

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """``cells[i][j]`` is what stands in the row of ``names[i]`` under ``names[j]``."""

    title: Line
    names: tuple[str, ...]
    cells: tuple[tuple[Word, ...], ...]
    after: int
    """Index of the first line behind the table."""

    def pairs(self, convert: "Callable[[Word], T]", diagonal: Sequence[str]) -> "dict[tuple[int, int], T]":
        """The upper half by (row, column). Raises FormatError when the lower half differs, or the diagonal is not one
        of the words that stand for a device itself."""
        pairs = {}
        for i, row in enumerate(self.cells):
            for j, cell in enumerate(row):
                if (i == j) and cell.text not in diagonal:
                    raise cell.error(f"{self.names[i]} to itself is {cell.text[:60]!r}, not {' or '.join(diagonal)}")
                if j < i and cell.text != self.cells[j][i].text:
                    opposite = self.cells[j][i]
                    message = f"{self.names[i]} to {self.names[j]} is {cell.text[:60]!r}, but {opposite.text[:60]!r}"
                    raise cell.error(f"{message} on line {opposite.line}")
                if j > i:
                    pairs[i, j] = convert(cell)
        return pairs


def table(lines: Sequence[Line], at: int, title: Line, name: "re.Pattern[str]") -> Table:
    """The table that begins at index ``at`` or behind blank lines. Raises FormatError."""
    at = _next(lines, at, title)
    header = lines[at]
    names = tuple([word.text for word in header.tokens()])
    for word in header.tokens():
        if not name.fullmatch(word.text):
            raise word.error(
                f"{word.text[:60]!r} is no name of a GPU; the header of {title.text.strip(' =:')!r} is expected"
            )
    if len(set(names)) != len(names):
        raise header.error("the header names a GPU twice")
    rows = []
    for expected in names:
        at = _next(lines, at + 1, title)
        tokens = lines[at].tokens()
        if tokens[0].text != expected:
            raise tokens[0].error(f"the row of {expected} is expected, not {tokens[0].text[:60]!r}")
        if len(tokens) != len(names) + 1:
            raise lines[at].error(f"the row of {expected} has {len(tokens) - 1} of {len(names)} cells")
        rows.append(tokens[1:])
    unbroken(lines[at], "the last row of the table")
    return Table(title, names, tuple(rows), at + 1)


def whole(word: Word, what: str, most: int = 1 << 31) -> int:
    """A number without sign. Raises FormatError."""
    if not word.text.isascii() or not word.text.isdigit() or len(word.text) > 12 or int(word.text) > most:
        raise word.error(f"{word.text[:60]!r} is no {what}")
    return int(word.text)


def _next(lines: Sequence[Line], at: int, title: Line) -> int:
    while at < len(lines) and not lines[at]:
        at += 1
    if at == len(lines):
        raise FormatError(f"the table {title.text.strip(' =:')!r} is cut: the output ends too early", title.number)
    return at
