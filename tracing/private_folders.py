"""Temporary folders of runs, taken away with the run, or by a later one where the run was killed."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MOST_LOOKED_AT = 10_000


@contextlib.contextmanager
def private_folder(prefix: str, parent: Path) -> Iterator[tuple[Path, int]]:
    """A new folder that no other user may enter, and a descriptor whose lock tells others that it is in use.

    A process that inherits the descriptor keeps the folder from being cleaned up as well. Folders of the same prefix
    whose runs were killed are removed first.
    """
    _remove_stale(prefix, parent)
    folder, lock = _locked(prefix, parent)
    try:
        yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def own_folder(name: str) -> Path:
    """A folder of this user's in the temporary folder, where others may have made one of that name before.

    Raises PermissionError where they have.
    """
    folder = Path(tempfile.gettempdir()) / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise PermissionError(f"{folder} is not this user's alone; remove it, or set TMPDIR to another place")
    return folder


def _locked(prefix: str, parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(OSError):
            lock = _open(folder)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, lock
            os.close(lock)  # between the two calls another run took it for a stale one


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_stale(prefix: str, parent: Path) -> None:
    """Removes what killed runs of this user left: real folders of its own that are not locked."""
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for _, entry in zip(range(_MOST_LOOKED_AT), entries, strict=False)]
    except OSError:
        return
    for name in names:
        if name.startswith(prefix):
            with contextlib.suppress(OSError):
                _remove_if_stale(parent / name)


def _remove_if_stale(folder: Path) -> None:
    lock = _open(folder)
    try:
        status = os.fstat(lock)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
