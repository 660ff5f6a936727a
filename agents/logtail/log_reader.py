"""Reading one log through all its files, from a place that survives the process.

A rotated file is read to its end before the next one begins; it is known again by its inode, or by what stands in
front of the place (packed, or copied and then truncated). A file is left only once its successor holds something: one
program writes a log, and has moved on then.
"""

import gzip
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from kopt.agents.logtail.rotated_files import Generation, Series

_TAIL = 64
"""Bytes before an offset that are compared to find it again."""
_GZIP_ERRORS = (OSError, EOFError, zlib.error)


@dataclass(frozen=True)
class Offset:
    """Where to go on: ``check`` is the CRC-32 of the up to 64 bytes in front of ``offset``."""

    inode: int
    offset: int
    check: int

    def to_dict(self) -> dict[str, int]:
        return {"inode": self.inode, "offset": self.offset, "check": self.check}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Offset":
        """Raises KeyError, TypeError or ValueError for anything else."""
        return cls(int(document["inode"]), int(document["offset"]), int(document["check"]))


class LogReader:
    """``read`` gives what comes next, ``offset_before`` where a byte lies that was read last.

    ``lost`` says that the place to go on from was not found: reading began at the oldest file there is. ``cut`` says
    that the file was emptied under us, so that a line begun before it never ends. The caller resets them.
    """

    def __init__(self, series: Series, start: Offset | None = None) -> None:
        self._series = series
        self._file: IO[bytes] | None = None
        self._generation: Generation | None = None
        self._offset = 0
        self._buffer = b""
        """The end of what was read before the last piece, and that piece."""
        self._sought = start
        self.lost = self.cut = False

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes; nothing at the end of what there is. Raises OSError."""
        if self._file is None and not self._open_first():
            return b""
        piece = self._piece(limit)
        while not piece:
            following = self._following()
            if following is None:
                return b""
            # Once more: what came before the successor was begun is whole now.
            piece = self._piece(limit)
            if piece:
                break
            self._enter(following, 0)
            piece = self._piece(limit)
        return piece

    def offset_before(self, back: int) -> Offset | None:
        """The place ``back`` bytes before where reading stands; None if it lies further back than what is known."""
        if self._generation is None or back > self._offset:
            return None
        begin, end = len(self._buffer) - back - min(_TAIL, self._offset - back), len(self._buffer) - back
        if begin < 0:
            return None
        return Offset(self._generation.inode, self._offset - back, zlib.crc32(self._buffer[begin:end]))

    def behind(self) -> float:
        """Bytes that are there and not read yet."""
        if self._file is None or self._generation is None:
            return 0.0
        size = self._size()
        unread = 0 if self._generation.packed else max(0, size - self._offset)
        for generation in self._newer():
            unread += generation.path.stat().st_size if generation.path.exists() else 0
        return float(unread)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _piece(self, limit: int) -> bytes:
        assert self._file is not None
        assert self._generation is not None
        tail = self._buffer[-min(_TAIL, self._offset) :] if self._offset else b""
        if self._generation.packed:
            return self._unpacked(tail, limit)
        content = os.pread(self._file.fileno(), limit + len(tail), self._offset - len(tail))
        if content[: len(tail)] != tail:
            return self._emptied(limit)
        piece = content[len(tail) :]
        self._advance(tail, piece)
        return piece

    def _unpacked(self, tail: bytes, limit: int) -> bytes:
        assert self._file is not None
        try:
            piece = self._file.read(limit)
        except _GZIP_ERRORS:
            # Truncated while it was packed: everything readable has been read.
            return b""
        self._advance(tail, piece)
        return piece

    def _advance(self, tail: bytes, piece: bytes) -> None:
        if piece:
            self._buffer = tail + piece
            self._offset += len(piece)

    def _emptied(self, limit: int) -> bytes:
        """Copied and truncated: the copy, if it is there, holds what was not read yet."""
        assert self._generation is not None
        own = self._generation
        copy = self._search(own.inode)
        if copy is not None:
            self._enter(copy, self._offset)
        else:
            self.cut = True
            self._enter(own, 0, reopen=False)
        return self._piece(limit)

    def _open_first(self) -> bool:
        sought, self._sought = self._sought, None
        files = self._series.files()
        if not files:
            self._sought = sought
            return False
        if sought is None:
            self._enter(files[0], 0)
        elif (generation := self._find(files, sought)) is not None:
            self._enter(generation, sought.offset)
        else:
            self.lost = True
            self._enter(files[0], 0)
        if self._file is None:
            self._sought, self.lost = sought, False
        return self._file is not None

    def _find(self, files: list[Generation], sought: Offset) -> Generation | None:
        """The file that the place lies in."""
        for generation in sorted(files, key=lambda generation: generation.inode != sought.inode):
            if _check(generation, sought.offset) == sought.check:
                return generation
        return None

    def _search(self, other_than: int) -> Generation | None:
        """A file that goes on where we stand, under another name."""
        here = self.offset_before(0)
        others = [generation for generation in self._series.files() if generation.inode != other_than]
        return next(
            (generation for generation in others if here and _check(generation, self._offset) == here.check), None
        )

    def _following(self) -> Generation | None:
        """The file to go on with, if it holds something."""
        assert self._generation is not None
        if not self._series.moved_on(self._generation.inode):
            return None
        newer = self._newer()
        return next((generation for generation in newer if generation.packed or _holds_something(generation)), None)

    def _newer(self) -> list[Generation]:
        assert self._generation is not None
        files = self._series.files()
        at = next((n for n, generation in enumerate(files) if generation.inode == self._generation.inode), None)
        if at is None and self._offset:
            # Packed by now, or gone: then all there are came after it.
            twin = self._search(self._generation.inode)
            at = files.index(twin) if twin in files else None
        return files if at is None else files[at + 1 :]

    def _enter(self, generation: Generation, offset: int, *, reopen: bool = True) -> None:
        if reopen:
            try:
                file = _open(generation)
            except FileNotFoundError:
                # Rotated away between the listing and now: look again the next time.
                return
            self.close()
            self._file = file
            if not generation.packed:
                inode = os.fstat(file.fileno()).st_ino
                generation = Generation(generation.path, generation.order, inode)
        self._generation, self._offset, self._buffer = generation, offset, b""
        if offset and self._file is not None:
            self._buffer = _before(self._file, offset, generation.packed)

    def _size(self) -> int:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size


def _holds_something(generation: Generation) -> bool:
    try:
        return generation.path.stat().st_size > 0
    except OSError:
        return False


def _open(generation: Generation) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(generation.path)) if generation.packed else generation.path.open("rb", 0)


def _check(generation: Generation, offset: int) -> int | None:
    """What ``Offset.check`` would be for this file; None where it is shorter."""
    try:
        with _open(generation) as file:
            before = _before(file, offset, generation.packed)
    except _GZIP_ERRORS:
        return None
    return zlib.crc32(before) if len(before) == min(_TAIL, offset) else None


def _before(file: IO[bytes], offset: int, packed: bool) -> bytes:
    """The bytes in front of an offset; a packed file stands at the offset afterwards."""
    begin = max(0, offset - _TAIL)
    if not packed:
        return os.pread(file.fileno(), offset - begin, begin)
    file.seek(begin)
    return file.read(offset - begin)
