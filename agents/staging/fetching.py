"""Parts on their way, a bounded number at a time, and files that become whole."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from kopt.agents.staging.digests import file_digest, hasher
from kopt.agents.staging.folder import Folder
from kopt.agents.staging.journal import Journal, PartLine
from kopt.agents.staging.origins import Origin
from kopt.agents.staging.pace import Pace
from kopt.agents.staging.reporting import Counts
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import changed
from kopt.core.staging.manifest import Checksum, Entry, Staged, StagingError, Trouble, part_count, part_ranges

_AT_ONCE = 1 << 20
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Object:
    """An entry and the digests of its parts that are on the disk; ``settled`` once it lies under its name."""

    entry: Entry
    part_bytes: int
    folder: Folder
    parts: dict[int, str] = field(default_factory=dict)
    settled: bool = False

    def missing(self) -> Iterator[tuple[int, int, int]]:
        """Index, begin and end of the parts that are still to come."""
        for index, (begin, end) in enumerate(part_ranges(self.entry.bytes, self.part_bytes)):
            if index not in self.parts:
                yield index, begin, end

    def missing_bytes(self) -> int:
        return sum(end - begin for _, begin, end in self.missing())

    def allocated_bytes(self) -> int:
        """Room that the file has taken beyond its finished parts: parts that were cut off are written over."""
        try:
            on_disk = self.folder.partial(self.entry.path).stat().st_blocks * 512
        except OSError:
            return 0
        return max(0, min(on_disk - (self.entry.bytes - self.missing_bytes()), self.missing_bytes()))

    @property
    def single(self) -> bool:
        return 0 < self.entry.bytes <= self.part_bytes

    @property
    def whole(self) -> bool:
        return len(self.parts) == part_count(self.entry.bytes, self.part_bytes)

    def agrees(self, path: Path) -> bool:
        """Whether the file has the checksum that the source or the user gives. Raises OSError."""
        checksum = self.entry.checksum
        if checksum is None:
            return True
        if not self.entry.bytes:
            return hasher(checksum.algorithm, 0).hexdigest() == checksum.value
        if checksum.algorithm == "sha256" and len(self.parts) == 1:
            return self.parts[0] == checksum.value
        return file_digest(path, checksum.algorithm) == checksum.value

    def staged(self) -> Staged:
        return Staged(self.entry, self.part_bytes, tuple(self.parts[index] for index in range(len(self.parts))))


class Fetcher:
    """Fetches what is missing; the first error stops all of it, and finished parts stay."""

    def __init__(
        self, origin: Origin, folder: Folder, journal: Journal, settings: StageSettings, counts: Counts
    ) -> None:
        self._origin, self._folder, self._journal, self._counts = origin, folder, journal, counts
        self._parallel = settings.parallel
        self._pace = Pace(settings.limit_bytes_s)
        self._folders: set[Path] = set()

    async def fetch(self, objects: list[Object]) -> set[Path]:
        """The folders in which files were put. Raises StagingError or OSError."""
        pending = _work(objects)

        async def work() -> None:
            for item, part in pending:
                if part is not None and len(item.parts) == 0 and item.entry.bytes <= _AT_ONCE and item.single:
                    await self._at_once(item)
                elif part is not None:
                    await self._part(item, *part)
                if item.whole and not item.settled:
                    await self._settle(item)

        await together(work, self._parallel)
        return self._folders

    async def _at_once(self, item: Object) -> None:
        """An object of one small part, with a single way to the disk: there may be millions of them."""
        entry, pieces, offset = item.entry, list[bytes](), 0
        async with contextlib.aclosing(self._origin.read(entry, 0, entry.bytes)) as coming:
            async for piece in coming:
                await self._pace.consume(len(piece))
                pieces.append(piece)
                offset += len(piece)
        if offset != entry.bytes:
            raise _short(entry, offset, entry.bytes)
        self._folders.add(await _in_thread(self._write_whole, item, pieces))
        self._counts.bytes_done += entry.bytes
        self._counts.objects_done += 1

    def _write_whole(self, item: Object, pieces: list[bytes]) -> Path:
        entry, result = item.entry, hashlib.sha256()
        checksum = entry.checksum
        checked = hasher(checksum.algorithm, entry.bytes) if checksum and checksum.algorithm != "sha256" else result
        offset, file = 0, _opened(self._folder.partial(entry.path))
        try:
            for piece in pieces:
                _write(file, piece, offset, result)
                offset += len(piece)
                if checked is not result:
                    checked.update(piece)
        finally:
            os.close(file)
        if checksum and checked.hexdigest() != checksum.value:
            self._drop(item)
            raise _wrong(entry, checksum)
        item.parts[0] = result.hexdigest()
        self._journal.add(PartLine(entry.path, entry.version, entry.bytes, item.part_bytes, 0, item.parts[0]))
        folder = self._folder.settle(entry.path, entry.bytes, executable=entry.executable)
        item.settled = True
        return folder

    async def _part(self, item: Object, index: int, begin: int, end: int) -> None:
        file = await _in_thread(_opened, self._folder.partial(item.entry.path))
        try:
            digest = await self._pieces(item.entry, file, begin, end)
        except StagingError as error:
            if error.reason is Trouble.CHANGED:
                self._drop(item)
            raise
        finally:
            os.close(file)
        line = PartLine(item.entry.path, item.entry.version, item.entry.bytes, item.part_bytes, index, digest)
        self._journal.add(line)
        item.parts[index] = digest

    async def _pieces(self, entry: Entry, file: int, begin: int, end: int) -> str:
        result, offset = hashlib.sha256(), begin
        try:
            async with contextlib.aclosing(self._origin.read(entry, begin, end)) as pieces:
                async for piece in pieces:
                    if offset + len(piece) > end:
                        raise changed(entry.path)
                    await self._pace.consume(len(piece))
                    await _in_thread(_write, file, piece, offset, result)
                    offset += len(piece)
                    self._counts.bytes_done += len(piece)
        except BaseException:
            self._counts.bytes_done -= offset - begin
            raise
        if offset != end:
            self._counts.bytes_done -= offset - begin
            raise _short(entry, offset - begin, end - begin)
        return result.hexdigest()

    async def _settle(self, item: Object) -> None:
        item.settled = True
        entry = item.entry
        if not await _in_thread(item.agrees, self._folder.partial(entry.path)):
            assert entry.checksum is not None
            self._drop(item)
            raise _wrong(entry, entry.checksum)
        settle = partial(self._folder.settle, entry.path, entry.bytes, executable=entry.executable)
        self._folders.add(await _in_thread(settle))
        self._counts.objects_done += 1

    def _drop(self, item: Object) -> None:
        self._journal.drop(item.entry.path)
        item.parts.clear()
        self._folder.partial(item.entry.path).unlink(missing_ok=True)


async def _in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """As ``asyncio.to_thread``; when it is cancelled it waits, as the thread goes on and its file must stay open."""
    task = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def together(work: Callable[[], Awaitable[None]], count: int) -> None:
    """``count`` of them at a time; the first error ends all, and is raised as it is."""

    async def worker() -> None:
        await work()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def _work(objects: list[Object]) -> Iterator[tuple[Object, tuple[int, int, int] | None]]:
    for item in objects:
        parts = list(item.missing())
        for part in parts:
            yield item, part
        if not parts:
            yield item, None


def _short(entry: Entry, received: int, wanted: int) -> StagingError:
    message = f"{entry.path}: {received:,} bytes came in place of {wanted:,}; run again to go on"
    return StagingError(message, Trouble.UNREACHABLE)


def _wrong(entry: Entry, checksum: Checksum) -> StagingError:
    hint = (
        "; a bucket that encrypts by KMS has etags that are no MD5: --no-source-checksums (of a StagedData "
        "sourceChecksums: false)"
    )
    kms = hint if checksum.algorithm == "md5" else ""
    return StagingError(
        f"{entry.path}: its {checksum.algorithm} is not {checksum.value}, as it should be; its parts are dropped, "
        f"run again, and if it stays so ask whoever gave the checksum{kms}",
        Trouble.CORRUPT,
    )


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _write(file: int, piece: bytes, offset: int, result: "hashlib._Hash") -> None:
    remaining = memoryview(piece)
    result.update(remaining)
    while remaining:
        written = os.pwrite(file, remaining, offset)
        remaining, offset = remaining[written:], offset + written
