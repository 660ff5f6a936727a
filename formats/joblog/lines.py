"""Bytes in pieces of any size → lines, in constant memory."""

from collections.abc import Iterator
from dataclasses import dataclass

# What is kept of each end of a longer line: prefixes and bars stand in front, what was said last stands behind.
KEPT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Line:
    """``number`` counts from 1; ``size`` is the line's length in bytes, more than what ``text`` kept of a long one."""

    number: int
    text: str
    size: int


class LineSplitter:
    r"""Lines end at ``\r\n``, ``\n`` or a lone ``\r``, as terminals show them; what is no UTF-8 becomes ``\ufffd``.

    A line is handed out as soon as its end is there: progress bars end theirs with ``\r`` and may then be silent for
    long. Of a line of more than twice ``KEPT_BYTES`` both ends are kept.

    >>> splitter = LineSplitter()
    >>> [line.text for line in splitter.feed(b"10%\r20%\r\nsav")]
    ['10%', '20%']
    >>> [line.text for line in splitter.feed(b"ed\n")], splitter.pending
    (['saved'], 0)
    """

    def __init__(self) -> None:
        self._number = 0
        self._after_return = False
        self._start()

    def _start(self) -> None:
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    @property
    def pending(self) -> int:
        """Bytes of a line whose end has not come yet."""
        return self._size

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that end in this piece. The generator must be used up before the next piece is fed."""
        if self._after_return and piece:
            piece = piece.removeprefix(b"\n")
            self._after_return = False
        if piece.endswith(b"\r"):
            self._after_return = True
        *ended, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for part in ended:
            yield self._end(part)
        if rest:
            self._keep(rest)

    def close(self) -> Iterator[Line]:
        """What was never ended, if there is any: a line as well."""
        if self._size:
            yield self._end(b"")

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        room = KEPT_BYTES - len(self._head)
        self._head += part[:room]
        if len(part) > room:
            self._tail = (self._tail + part[room:])[-KEPT_BYTES:]

    def _end(self, part: bytes) -> Line:
        self._number += 1
        if not self._size and len(part) <= KEPT_BYTES:
            return Line(self._number, part.decode("utf-8", "replace"), len(part))
        self._keep(part)
        line = Line(self._number, (self._head + self._tail).decode("utf-8", "replace"), self._size)
        self._start()
        return line
