"""Bytes of a log → numbered lines, and the place from which reading again gives the same numbers.

Three forms: what a program wrote itself (``PlainLog``), what a container runtime wrote on a node (``ContainerLog``:
CRI, or Docker's JSON), and what the API server sends with ``timestamps=true`` (``streams.Records``).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

import orjson

from kopt.formats.joblog import Line, LineSplitter

_LONGEST_RECORD = 1 << 18
"""Bytes without an end that are no record of a container runtime, which cuts at 16 KiB."""


class LogLine(NamedTuple):
    """One line; ``at_s`` is when the container runtime got it (Unix seconds), None if unknown."""

    text: str
    at_s: float | None = None


class Origin(NamedTuple):
    """Reading again from byte ``position`` on, with ``number`` for the first line that ends behind it."""

    position: int
    number: int


class Decoder(Protocol):
    """``number`` is that of the next line, from 1; ``origin`` is None while the last one is still the nearest."""

    number: int
    origin: Origin | None

    @property
    def fed(self) -> int:
        """Bytes so far, as ``origin.position`` counts them."""
        ...

    def feed(self, piece: bytes) -> list[LogLine]:
        """The lines that end in this piece."""
        ...

    def cut(self) -> list[LogLine]:
        """What was begun and will not be ended, as a line."""
        ...


class PlainLog:
    """Lines as a program wrote them into a file."""

    def __init__(self, number: int = 1) -> None:
        self.number, self._position = number, 0
        self.origin: Origin | None = Origin(0, number)
        self._splitter = LineSplitter()

    @property
    def fed(self) -> int:
        return self._position

    def feed(self, piece: bytes) -> list[LogLine]:
        result = [LogLine(line.text) for line in self._splitter.feed(piece)]
        self._position += len(piece)
        self.number += len(result)
        # Reading cannot start between \r and \n: the \n alone would be a line.
        between = piece.endswith(b"\r")
        self.origin = None if between else Origin(self._position - self._splitter.pending, self.number)
        return result

    def cut(self) -> list[LogLine]:
        return self.feed(b"\n")[:1] if self._splitter.pending else []


class ContainerLog:
    """Lines out of a container runtime's records; parts of a line (``P``) are joined, for each stream by itself."""

    def __init__(self, number: int = 1) -> None:
        self.number, self._position = number, 0
        self.origin: Origin | None = Origin(0, number)
        self._rest = b""
        self._splitters: dict[bytes, LineSplitter] = {}
        self._begun: dict[bytes, Origin] = {}

    @property
    def fed(self) -> int:
        return self._position + len(self._rest)

    def feed(self, piece: bytes) -> list[LogLine]:
        *records, self._rest = (self._rest + piece).split(b"\n")
        result: list[LogLine] = []
        for record in records:
            self._consume(_opened(record), len(record) + 1, result)
        if len(self._rest) > _LONGEST_RECORD:
            record, self._rest = self._rest, b""
            self._consume((b"", None, record), len(record), result)
        self.origin = min([*self._begun.values(), Origin(self._position, self.number)])
        return result

    def cut(self) -> list[LogLine]:
        result: list[LogLine] = []
        for stream, splitter in self._splitters.items():
            if splitter.pending:
                self._append(stream, b"\n", None, result)
        if self._rest:
            result += self.feed(b"\n")
        return result

    def _consume(self, opened: "_Opened", size: int, result: list[LogLine]) -> None:
        begins = Origin(self._position, self.number)
        self._position += size
        stream, at_s, content = opened
        if not content:
            return  # what the stream had begun is begun still
        before = self._splitters[stream].pending if stream in self._splitters else 0
        self._append(stream, content, at_s, result)
        if not before and stream in self._begun and content.startswith(b"\n"):
            # The \n belongs to a \r before it: reading cannot start between the two, whatever others have begun.
            earliest = self._begun[stream]
            self._begun = {name: min(origin, earliest) for name, origin in self._begun.items()}
        pending = self._splitters[stream].pending
        if not pending and not content.endswith(b"\r"):
            self._begun.pop(stream, None)
        elif not before or pending <= len(content):
            self._begun[stream] = begins

    def _append(self, stream: bytes, content: bytes, at_s: float | None, result: list[LogLine]) -> None:
        splitter = self._splitters.setdefault(stream, LineSplitter())
        lines: Iterable[Line] = splitter.feed(content)
        before = len(result)
        result += [LogLine(line.text, at_s) for line in lines]
        self.number += len(result) - before


_Opened = tuple[bytes, float | None, bytes]
"""Stream, time and content of a record."""


def _opened(record: bytes) -> _Opened:
    """A malformed record counts as content, so that nothing is lost."""
    parts = record.split(b" ", 3)
    if len(parts) >= 3 and parts[1] in (b"stdout", b"stderr") and parts[2][:1] in (b"P", b"F"):
        content = parts[3] if len(parts) == 4 else b""
        return parts[1], read_time(parts[0]), content if parts[2][:1] == b"P" else content + b"\n"
    if record.startswith(b'{"log":'):
        result = _docker(record)
        if result is not None:
            return result
    return b"", None, record + b"\n"


def _docker(record: bytes) -> _Opened | None:
    try:
        result = orjson.loads(record)
        return str(result["stream"]).encode(), read_time(str(result["time"]).encode()), str(result["log"]).encode()
    except (orjson.JSONDecodeError, KeyError, UnicodeEncodeError):
        return None


def read_time(text: bytes) -> float | None:
    """Unix seconds of a container runtime's time (RFC 3339, nanoseconds); None for anything else."""
    try:
        return datetime.fromisoformat(text.decode("ascii")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
