"""Tables and remarks for people, as wide as the terminal is; nothing that is copied or that names something is cut.

Too narrow, a table first wraps sentences between words, then leaves out columns (``column(drop=…)``, the lowest first),
and at last is wider than the terminal. A name is never shortened, a command or a JSON document never broken.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

_UNITS = re.compile(
    r"`[^`]+`\S*"  # what is quoted as code
    r"|(?:kubectl|helm|pip install|chmod|sudo) .*"  # a command, as far as the text goes
    r"|[\[{][\"{\[].*[\]}]\S*"  # JSON
    r"|\S+"
)
_GAP = 2


@dataclass(frozen=True)
class TextColumn:
    """Cells of a column, ready for people. ``drop``: whether, and how early, it may be left out."""

    title: str
    cells: Sequence[str]
    numeric: bool = False
    drop: int | None = None

    @property
    def natural(self) -> int:
        """Its width where nothing wraps."""
        return max(map(_length, (self.title, *self.cells)))

    @property
    def least(self) -> int:
        """Its width where everything wraps that may."""
        return max(_length(unit) for cell in (self.title, *self.cells) for unit in _UNITS.findall(cell) or [""])


def wrapped(text: str, width: int) -> str:
    """Lines of at most ``width``, except where something that may not be broken is longer."""
    lines: list[str] = []
    for unit in _UNITS.findall(text):
        if lines and _length(lines[-1]) + 1 + _length(unit) <= width:
            lines[-1] += f" {unit}"
        else:
            lines.append(unit)
    return "\n".join(lines)


def fitted(columns: Sequence[TextColumn], width: int) -> tuple[list[TextColumn], list[int], list[TextColumn]]:
    """The columns to show with their widths, and those that are left out."""
    fitting, dropped = list(columns), list[TextColumn]()
    while sum(each.least for each in fitting) + _GAP * (len(fitting) - 1) > width:
        droppable = [each for each in fitting if each.drop is not None]
        if not droppable:
            break
        least = min(droppable, key=lambda each: each.drop or 0)
        fitting.remove(least)
        dropped.append(least)
    widths = [each.natural for each in fitting]
    excess = sum(widths) + _GAP * (len(fitting) - 1) - width
    while excess > 0:
        # The widest that may still wrap, one by one: sentences give way before names with a blank in them.
        spare = [(widths[n], n) for n, each in enumerate(fitting) if widths[n] > each.least]
        if not spare:
            break
        widths[max(spare)[1]] -= 1
        excess -= 1
    return fitting, widths, dropped


def drawn(columns: Sequence[TextColumn], widths: Sequence[int]) -> tuple[str, str]:
    """The heading, with a rule below, and the rows."""
    heading = _row([each.title for each in columns], columns, widths)
    rule = "─" * (sum(widths) + _GAP * (len(widths) - 1))
    rows = zip(*(each.cells for each in columns), strict=True)
    return f"{heading}\n{rule}", "\n".join(_row(row, columns, widths) for row in rows)


def _row(cells: Sequence[str], columns: Sequence[TextColumn], widths: Sequence[int]) -> str:
    # A cell keeps its own spaces where it fits as it is.
    wraps = [
        cell if _length(cell) <= width else wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)
    ]
    lines = zip_longest(*(wrap.split("\n") for wrap in wraps), fillvalue="")
    return "\n".join((" " * _GAP).join(map(_padded, line, columns, widths)).rstrip() for line in lines)


def _padded(text: str, column: TextColumn, width: int) -> str:
    space = " " * (width - _length(text))
    return space + text if column.numeric else text + space


def _length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
