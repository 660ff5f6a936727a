"""One log as a stream of readings, which wait only for changes: a slow consumer slows down reading."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kopt.agents.logtail.file_events import Notices
from kopt.agents.logtail.log_reader import LogReader, Offset
from kopt.agents.logtail.records import ContainerLog, Decoder, LogLine, PlainLog
from kopt.agents.logtail.rotated_files import container_series, plain_series

_LOG = logging.getLogger(__name__)
CHUNK_BYTES = 64 << 10
_JUST_NOW_S = 10.0
"""A program's own line came now if there was nothing to read shortly before; otherwise its time is unknown."""
Position = Mapping[str, Any]
"""What a source needs to go on where it was, as JSON."""


@dataclass(frozen=True)
class Reading:
    """Lines that follow each other, the first one's number, and where to go on once they are acknowledged.

    ``present``: there was nothing more to read. ``position`` None: from the position before.
    """

    first: int
    lines: list[LogLine] = field(default_factory=list)
    position: Position | None = None
    present: bool = False


class Source(Protocol):
    """``name`` is the endpoint's word for it, ``key`` the state file's. ``fresh``: where it was is not known."""

    name: str
    key: str
    fresh: bool

    def readings(self, room: Callable[[], Awaitable[None]]) -> AsyncGenerator[Reading]:
        """``room`` is waited for before anything is read."""
        ...

    def behind(self) -> float:
        """How much there is to read yet, in a unit of its own."""
        ...

    def continue_at(self, number: int) -> None:
        """The next line has at least this number."""
        ...

    def finish(self) -> None:
        """Nothing is written any more: end with what there is."""
        ...


class FileSource:
    """A log in files: a program's own (``plain``) or a container's folder."""

    def __init__(
        self, path: Path, name: str, notices: Notices, position: Position | None = None, *, plain: bool
    ) -> None:
        self.name, self.key = name, str(path)
        self._path, self._notices, self._plain = path, notices, plain
        offset, number = _read_position(position)
        self.fresh = number is None
        self._reader = LogReader(plain_series(path) if plain else container_series(path), offset)
        self._decoder: Decoder = PlainLog(number or 1) if plain else ContainerLog(number or 1)
        self._changed, self._finished, self._error = asyncio.Event(), False, ""
        self._present_at_s = float("-inf")

    async def readings(self, room: Callable[[], Awaitable[None]]) -> AsyncGenerator[Reading]:
        self._notices.subscribe(self._path, self._changed, whole=not self._plain)
        try:
            while True:
                await room()
                # Cleared first: what comes while it is read is seen the next time.
                self._changed.clear()
                finished = self._finished
                reading = self._read()
                if reading is not None:
                    yield reading
                    await asyncio.sleep(0)
                    continue
                self._present_at_s = time.time()
                yield Reading(self._decoder.number, present=True)
                if finished:
                    for last in self._last():
                        yield last
                    return
                await self._changed.wait()
        finally:
            self._notices.unsubscribe(self._path, self._changed, whole=not self._plain)
            self._reader.close()

    def behind(self) -> float:
        with contextlib.suppress(OSError):
            return self._reader.behind()
        return 0.0

    def continue_at(self, number: int) -> None:
        self._decoder.number = max(self._decoder.number, number)

    def finish(self) -> None:
        self._finished = True
        self._changed.set()

    def _read(self) -> Reading | None:
        try:
            piece = self._reader.read(CHUNK_BYTES)
        except OSError as error:
            if str(error) != self._error:
                _LOG.warning("%s cannot be read: %s", self._path, error)
                self._error = str(error)
            return None
        if not piece:
            return None
        self._error = ""
        if self._reader.lost:
            _LOG.warning("%s: the place to go on from is gone; reading what there is", self._path)
            self._reader.lost = False
        first = self._decoder.number
        lines = self._decoder.cut() if self._reader.cut else []
        self._reader.cut = False
        lines += self._decoder.feed(piece)
        now_s = time.time()
        if self._plain and now_s - self._present_at_s < _JUST_NOW_S:
            lines = [LogLine(line.text, now_s) for line in lines]
        return Reading(first, lines, self._position())

    def _last(self) -> list[Reading]:
        """A line that its writer did not end."""
        first = self._decoder.number
        lines = self._decoder.cut()
        return [Reading(first, lines)] if lines else []

    def _position(self) -> Position | None:
        origin = self._decoder.origin
        offset = self._reader.offset_before(self._decoder.fed - origin.position) if origin is not None else None
        return offset.to_dict() | {"number": origin.number} if offset is not None and origin is not None else None


def _read_position(position: Position | None) -> tuple[Offset | None, int | None]:
    if position is None:
        return None, None
    try:
        offset, number = Offset.from_dict(position), int(position["number"])
    except (KeyError, TypeError, ValueError):
        return None, None
    return (offset, number) if number >= 1 and offset.offset >= 0 else (None, None)
