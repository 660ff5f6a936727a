"""Matrices that a terminal or ``fold`` broke at its width, put together again.

A row begins with the name of a device and a way to another one; what stands under it until the next row is the rest of
it. Every piece but a row's last is as wide as the terminal was, but for blanks at its end that copying drops. Which
width that was is not stated: the widest piece has it, or one more where only blanks stood at the edge.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kopt.formats.topology.text import Line, Source

_NARROWEST = 40
_END = re.compile(r"\s*(?:NIC )?Legend:\s*$")


def unwrapped(
    source: Source, is_header: "Callable[[Line], bool]", is_row: "Callable[[Line], bool]"
) -> Iterator[tuple[Source, int]]:
    """The output as it may have been before it was broken, and the width in columns at which it was; nothing for one
    that shows no break. Whether a candidate is right is for the reader of matrices to say, which checks every cell."""
    lines = [replace(line, text=line.text.expandtabs(8)) for line in source.lines]
    first = next((at for at, line in enumerate(lines) if is_header(line)), None)
    if first is None:
        return
    end = next((at for at in range(first, len(lines)) if _ends(lines, at)), len(lines))
    block = lines[first:end]
    rows = [at for at, line in enumerate(block) if is_row(line)]
    widest = max(len(line.text) for line in block)
    if not rows or rows[0] == 0 or widest < _NARROWEST:
        return
    pieces = _grouped(block, [0, *rows])
    if all(len(group) == 1 for group in pieces):
        return
    for width in (widest, widest + 1):
        joined = [_joined(group, width) for group in pieces]
        result = (*lines[:first], *joined, *lines[end:])
        yield Source(result, "\n".join(line.text for line in result)), width


def _ends(lines: Sequence[Line], at: int) -> bool:
    return not lines[at] or bool(_END.match(lines[at].text))


def _grouped(block: Sequence[Line], starts: Sequence[int]) -> list[Sequence[Line]]:
    return [block[a:b] for a, b in zip(starts, [*starts[1:], len(block)], strict=True)]


def _joined(group: Sequence[Line], width: int) -> Line:
    text = "".join(line.text.ljust(width) for line in group[:-1]) + group[-1].text
    return replace(group[0], text=text, ended=group[-1].ended, underlined=any(line.underlined for line in group))
