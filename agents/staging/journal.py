"""Which parts are on the disk, in a file that survives the process: a line per part, written as it is finished.

A line carries its own checksum; one that is torn or damaged counts for nothing, and its part is fetched again. What the
journal names is read again and compared when a run goes on, so that data need not be on the disk before its line is.
"""

import asyncio
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.agents.runtime.checked_lines import checked_line, fields_of
from kopt.core.staging.manifest import Staged


@dataclass(frozen=True, slots=True)
class PartLine:
    """A finished part; ``version`` and ``bytes`` are the object's, ``digest`` is the SHA-256 of the part."""

    path: str
    version: str
    bytes: int
    part_bytes: int
    index: int
    digest: str


@dataclass
class FinishedParts:
    """What an earlier run finished of an object, by the part's index."""

    version: str
    bytes: int
    part_bytes: int
    parts: dict[int, str]


class Journal:
    """Lines are in the system's hands when ``add`` returns, so that killing the process loses none; while
    ``keep_synced`` runs they are on the disk a second later."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._dirty = False
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            # Torn in its last line: the next one begins a new one.
            os.write(self._file, b"\n")

    def add(self, line: PartLine) -> None:
        """Raises OSError; a line that was written in part counts for nothing."""
        self._write([line.path, line.version, line.bytes, line.part_bytes, line.index, line.digest])

    def drop(self, path: str) -> None:
        """Invalidates what was recorded of an object so far."""
        self._write([path])

    async def keep_synced(self, every_s: float = 1.0) -> None:
        """Puts new lines on the disk, until cancelled. Raises OSError."""
        while True:
            await asyncio.sleep(every_s)
            if self._dirty:
                self._dirty = False
                await asyncio.to_thread(os.fdatasync, self._file)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, fields: list[str | int]) -> None:
        line = checked_line(fields)
        if os.write(self._file, line) != len(line):
            os.write(self._file, b"\n")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._dirty = True


def finished_parts(path: Path, staged: Iterator[Staged]) -> dict[str, FinishedParts]:
    """By the object's path: what ``staged`` (of a manifest) and the journal name, the journal's word being newer."""
    parts_by_path: dict[str, FinishedParts] = {
        item.entry.path: FinishedParts(
            item.entry.version, item.entry.bytes, item.part_bytes, dict(enumerate(item.parts))
        )
        for item in staged
    }
    try:
        with path.open("rb") as file:
            for line in file:
                _enter(parts_by_path, fields_of(line))
    except FileNotFoundError:
        pass
    return parts_by_path


def _enter(parts_by_path: dict[str, FinishedParts], fields: list[Any] | None) -> None:
    match fields:
        case [str(path)]:
            # Ours all the same: what an earlier version left under its name does not belong to another source.
            parts_by_path[path] = FinishedParts("", 0, 1, {})
        case [str(path), str(version), int(size), int(part_bytes), int(index), str(digest)]:
            own = parts_by_path.get(path)
            if own is None or (own.version, own.bytes, own.part_bytes) != (version, size, part_bytes):
                own = parts_by_path[path] = FinishedParts(version, size, part_bytes, {})
            own.parts[index] = digest
