"""Temporary folders of long runs: private, and removed by the next run where their own was killed.

A folder belongs to a living process as long as that process keeps its lock, which the kernel drops however it ends.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "kopt-ray-"
_LOCK = "lock"
_UNLOCKED_FOR_S = 3600.0
"""A folder without a lock is being made, or was left by a version that made none."""
_KEPT: dict[Path, int] = {}


def make_scratch() -> Path:
    """A new folder, readable by its owner only, that stays until `remove_scratch` or the end of this process.

    Not below any home: the path of a Unix socket ends at 107 bytes, and Ray puts 70 of its own below the folder.
    """
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _KEPT[folder] = descriptor
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove the folder with everything in it; safe to call twice."""
    shutil.rmtree(folder, ignore_errors=True)
    if (descriptor := _KEPT.pop(folder, None)) is not None:
        os.close(descriptor)


def remove_abandoned() -> list[Path]:
    """Remove the folders of this user's runs that were killed; returns what was removed."""
    abandoned = [folder for folder in _folders() if _is_abandoned(folder)]
    for folder in abandoned:
        shutil.rmtree(folder, ignore_errors=True)
    return abandoned


def _folders() -> Iterator[Path]:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # A link, or a folder of somebody else, is not ours to look into.
            if not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.geteuid():
                yield folder


def _is_abandoned(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNLOCKED_FOR_S and not _in_use(folder)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return not _in_use(folder)


def _in_use(folder: Path) -> bool:
    """Does a process name the folder on its command line, as all of Ray's daemons and HAProxy do?"""
    import psutil

    return any(
        str(folder) in word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or ()
    )
