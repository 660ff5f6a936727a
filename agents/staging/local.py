"""Files of a folder or of a mounted claim."""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

from kopt.agents.staging.buckets import piece_bytes
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import changed
from kopt.core.staging.manifest import MARKER, STATE_FOLDER, Entry, Source, SourceKind, StagingError, Trouble


class LocalFiles:
    """A folder, or one file. Links are followed as long as they stay inside it (of a claim: inside the claim)."""

    whole = False

    def __init__(self, source: Source, settings: StageSettings) -> None:
        self.revision, self.remarks = "", list[str]()
        self._source, self._piece = source, piece_bytes(settings)
        self._path = Path(source.address)
        self._inside = self._path
        if source.kind is SourceKind.CLAIM:
            claim, _, path = source.address.partition("/")
            self._inside = settings.claims / claim
            self._path = self._inside / path
            if not self._inside.is_dir():
                raise StagingError(f"{source}: the claim is not mounted at {self._inside}", Trouble.NOT_FOUND)

    async def entries(self) -> AsyncIterator[Entry]:
        try:
            entries = await asyncio.to_thread(lambda: list(self._walk()))
        except OSError as error:
            raise self._error(error) from error
        for entry in entries:
            yield entry

    async def read(self, entry: Entry, begin: int, end: int) -> AsyncGenerator[bytes]:
        path = self._path if self._path.is_file() else self._path / entry.path
        try:
            file = await asyncio.to_thread(os.open, path, os.O_RDONLY)
            try:
                while begin < end:
                    piece = await asyncio.to_thread(os.pread, file, min(self._piece, end - begin), begin)
                    if not piece or _version(os.fstat(file)) != entry.version:
                        raise changed(str(path))
                    yield piece
                    begin += len(piece)
            finally:
                os.close(file)
        except OSError as error:
            raise self._error(error) from error

    def _walk(self) -> Iterator[Entry]:
        if self._path.is_file():
            yield self._entry(self._path, self._path.name)
            return
        if not self._path.is_dir():
            raise StagingError(f"{self._source} is not there; check the path", Trouble.NOT_FOUND)
        self._refuse_incomplete()
        pending = [(self._path, "")]
        while pending:
            folder, prefix = pending.pop()
            for path in sorted(folder.iterdir()):
                # The state of a copy that is itself a source.
                if not prefix and path.name == STATE_FOLDER:
                    continue
                name = f"{prefix}{path.name}"
                if path.is_symlink():
                    self._stays_inside(path)
                if path.is_dir():
                    if path.is_symlink():
                        self.remarks.append(f"{name} is a link to a folder and is left out")
                    else:
                        pending.append((path, f"{name}/"))
                elif path.is_file():
                    yield self._entry(path, name)
                else:
                    self.remarks.append(f"{name} is no file and is left out")

    def _refuse_incomplete(self) -> None:
        """A copy of a copy that is not complete would be complete."""
        for parent in (self._path, *self._path.parents):
            if parent.is_relative_to(self._inside) and (parent / MARKER).exists():
                message = f"{self._source} is a copy that is not complete; wait until it is, or stage it first"
                raise StagingError(message, Trouble.BUSY)

    def _stays_inside(self, link: Path) -> None:
        # Path.resolve raises for links that lead in circles.
        if not Path(os.path.realpath(link)).is_relative_to(self._inside.resolve()):
            raise StagingError(
                f"{link} leads out of {self._inside}; stage the folder that holds what it names, or copy it in",
                Trouble.BAD_NAME,
            )

    def _entry(self, path: Path, name: str) -> Entry:
        if path.is_symlink():
            self._stays_inside(path)
        status = path.stat()
        return Entry(
            name,
            status.st_size,
            _version(status),
            modified_at=status.st_mtime,
            executable=bool(status.st_mode & stat.S_IXUSR),
        )

    def _error(self, error: OSError) -> StagingError:
        kind = Trouble.DENIED if isinstance(error, PermissionError) else Trouble.NOT_FOUND
        return StagingError(f"{error.filename or self._path} cannot be read: {error.strerror or error}", kind)


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
