"""The destination: the files under their names, and beside them what staging keeps.

``.kopt-staging/`` holds ``manifest.json`` (of a complete copy), ``journal``, ``partial/`` (files that are not whole
yet), ``progress.json`` and ``lock``. ``.kopt-incomplete`` stands in the destination from the first change until the
manifest is on the disk: a copy is complete if there is a manifest and no marker.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from kopt.core.staging.manifest import MARKER, STATE_FOLDER, Manifest, StagingError, Trouble, manifest_json, manifest_of
from kopt.core.units import format_bytes

_SPARE_BYTES = 1 << 20
_SETTLE_S = 1.0


class Folder:
    """One destination. Made by ``alone``, which locks it against other processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE_FOLDER
        self.journal = self.state / "journal"
        self.progress = self.state / "progress.json"
        self._partial = self.state / "partial"
        self._marker = root / MARKER
        self._made: set[str] = set()
        """Folders that this run made or found to be no links."""

    @classmethod
    @contextlib.contextmanager
    def alone(cls, root: Path) -> Iterator["Folder"]:
        """Raises StagingError where another process stages there; its lock ends with it, however it ends."""
        folder = cls(root)
        folder.state.mkdir(parents=True, exist_ok=True)
        with (folder.state / "lock").open("a+") as lock:
            if not _locked(lock.fileno()):
                lock.seek(0)
                holder = lock.read(200).strip() or "unknown"
                message = f"another process stages into {root} ({holder}); wait for it, or end it and run again"
                raise StagingError(message, Trouble.BUSY)
            with contextlib.suppress(OSError):
                lock.truncate(0)
                lock.write(f"process {os.getpid()} on {socket.gethostname()}")
                lock.flush()
            yield folder

    def manifest(self) -> Manifest | None:
        """The manifest of the complete copy, or of the one before the marker; None if none can be read."""
        try:
            return manifest_of((self.state / "manifest.json").read_text())
        except (FileNotFoundError, StagingError, ValueError, RecursionError):
            return None

    @property
    def begun(self) -> str | None:
        """The source of a copy that is not complete yet; None where there is no such."""
        try:
            return self._marker.read_text(errors="replace").strip()
        except FileNotFoundError:
            return None

    def begin(self, source: str) -> None:
        """From now on this is no copy, until ``finish``."""
        if self.begun != source:
            write_whole(self._marker, [f"{source}\n".encode()])
            sync_folder(self.root)
        self._partial.mkdir(exist_ok=True)

    def file(self, path: str) -> Path:
        """Where an object's file belongs. Raises StagingError where a link on the way leads elsewhere."""
        target, here = self.root / path, str(self.root)
        for part in path.split("/"):
            here = f"{here}/{part}"
            if here in self._made:
                continue
            if os.path.islink(here):  # noqa: PTH114 - there may be millions
                raise StagingError(
                    f"{here} is a link; take it away, files are not written through links", Trouble.DESTINATION
                )
        return target

    def partial(self, path: str) -> Path:
        """Where it is while it is not whole."""
        return self._partial / hashlib.sha256(path.encode()).hexdigest()[:40]

    def settle(self, path: str, size: int, *, executable: bool) -> Path:
        """Puts a whole file under its name, its content on the disk first; the folder that is to be synced.

        Raises StagingError or OSError where the file is shorter, or gone: its holes would read as zeros.
        """
        partial, target = self.partial(path), self.file(path)
        file = os.open(partial, os.O_RDWR | os.O_CLOEXEC | (0 if size else os.O_CREAT), 0o644)
        try:
            result = os.fstat(file)
            if result.st_size < size:
                message = f"{partial}, which is to be {path}, was cut off by somebody else; run again"
                raise StagingError(message, Trouble.CORRUPT)
            if result.st_size != size:
                os.ftruncate(file, size)
            if bool(result.st_mode & stat.S_IXUSR) != executable:
                mode = stat.S_IMODE(result.st_mode)
                os.fchmod(file, mode | 0o111 if executable else mode & ~0o111)
            os.fsync(file)
        finally:
            os.close(file)
        parent = str(target.parent)
        if parent not in self._made:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        os.rename(partial, target)  # noqa: PTH104 - there may be millions
        return target.parent

    @property
    def folds_case(self) -> bool:
        """Whether names that differ by case alone are one file here, as on shares of Windows."""
        return (self.state / "LOCK").exists()

    def remove(self, path: str) -> None:
        """A file that an earlier copy had."""
        target = self.file(path)
        self.partial(path).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            target.unlink()
        for parent in target.relative_to(self.root).parents[:-1]:
            with contextlib.suppress(OSError):
                (self.root / parent).rmdir()

    def room(self, wanted_bytes: int, wanted_files: int) -> None:
        """Raises StagingError where the file system has not so much free."""
        result = os.statvfs(self.root)
        free = result.f_bavail * result.f_frsize
        if wanted_bytes and wanted_bytes + _SPARE_BYTES > free:
            raise StagingError(
                f"{format_bytes(wanted_bytes)} are still to come and {self.root} has {format_bytes(free)} free; "
                "free some room or take a larger volume",
                Trouble.NO_ROOM,
            )
        if result.f_files and wanted_files > result.f_favail:
            message = f"{wanted_files:,} files are to come and {self.root} can take {result.f_favail:,} more"
            raise StagingError(message, Trouble.NO_ROOM)

    def finish(self, manifest: Manifest, folders: Iterable[Path]) -> None:
        """Writes the manifest, last: after it is on the disk the copy is complete."""
        for with_parent in sorted(self._with_parents(folders)):
            sync_folder(with_parent)
        write_whole(self.state / "manifest.json", manifest_json(manifest))
        sync_folder(self.state)
        self._marker.unlink(missing_ok=True)
        sync_folder(self.root)
        self.journal.unlink(missing_ok=True)
        for scratch in (self._partial, self.state / "git"):
            shutil.rmtree(scratch, ignore_errors=True)

    def _with_parents(self, folders: Iterable[Path]) -> set[Path]:
        with_parents = {self.root}
        for folder in folders:
            while folder not in with_parents:
                with_parents.add(folder)
                folder = folder.parent
        return with_parents


def _locked(file: int) -> bool:
    """Whether no other process holds it: a process that just ended may have left a child that is about to end."""
    until = time.monotonic() + _SETTLE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        else:
            return True


def write_whole(path: Path, content: Iterable[bytes], *, durable: bool = True) -> None:
    """A file that is the old or the new one, never half of it; ``durable``: on the disk as well. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("wb") as file:
        file.writelines(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    beside.replace(path)


def sync_folder(path: Path) -> None:
    """The names in it are on the disk; file systems that cannot sync folders are let be."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(file)
    finally:
        os.close(file)
