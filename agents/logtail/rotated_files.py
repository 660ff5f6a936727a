"""Which files make one log, oldest first: rotation gives a log new files and its old ones other names."""

import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CONTAINER = re.compile(r"(\d+)\.log(?:\.(\d{8}-\d{6}))?(\.gz)?")
_COPIES = re.compile(r"[.-]\d[\d-]*(?:T[\d:]+)?(?:\.gz)?|\.(?:old|bak)")
"""What logrotate and Python's handlers append to a name."""
_NEWEST = "~"


@dataclass(frozen=True)
class Generation:
    """One file of a log. ``order`` sorts; ``packed`` is gzip."""

    path: Path
    order: tuple[int, str]
    inode: int
    packed: bool = False


@dataclass(frozen=True)
class Series:
    """``files`` lists the generations there are; ``moved_on`` says cheaply whether there may be a newer one than the
    inode."""

    files: Callable[[], list[Generation]]
    moved_on: Callable[[int], bool]


def plain_series(path: Path) -> Series:
    """A file that a program writes, with what rotation made of it before: ``NAME.1``, ``NAME-20260301.gz``, …"""

    def files() -> list[Generation]:
        generations = []
        for entry in _entries(path.parent):
            if entry.name == path.name or (
                entry.name.startswith(path.name) and _COPIES.fullmatch(entry.name, len(path.name))
            ):
                generation = _plain(entry, entry.name == path.name)
                generations += [generation] if generation else []
        return sorted(generations, key=lambda item: item.order)

    return Series(files, lambda inode: _inode(path) not in (inode, None))


def container_series(folder: Path) -> Series:
    """The logs of a container in ``/var/log/pods/POD/CONTAINER``: ``N.log``, where N counts restarts."""

    def files() -> list[Generation]:
        generations: dict[tuple[int, str], Generation] = {}
        for entry in _entries(folder):
            name = _CONTAINER.fullmatch(entry.name)
            inode = _inode(entry)
            if not name or inode is None:
                continue
            order = (int(name[1]), name[2] or _NEWEST)
            # While the kubelet packs a file, both are there for a moment.
            if order not in generations or generations[order].packed:
                generations[order] = Generation(entry, order, inode, bool(name[3]))
        return [generations[order] for order in sorted(generations)]

    def moved_on(inode: int) -> bool:
        newest = files()[-1:]
        return bool(newest) and newest[0].inode != inode

    return Series(files, moved_on)


def _plain(path: Path, newest: bool) -> Generation | None:
    try:
        result = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(result.st_mode):
        # Opening a pipe would block until a writer opens it.
        return None
    order = (1, _NEWEST) if newest else (0, f"{result.st_mtime_ns:020d}")
    return Generation(path, order, result.st_ino, path.suffix == ".gz")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
