"""Folders and files that a script writes outside its working folder, where nothing may be written: they go to a private
place that vanishes with it, and are found there again.

What a library writes by itself, without Python's own calls, is not brought there.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_FOLDER = "written-outside"


class Outside:
    """Where paths that cannot be written lie instead: below ``base``."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._mkdir, self._open, self._listdir = os.mkdir, builtins.open, os.listdir

    def instead(self, path: Any) -> Path | None:
        """The private place of a path, None for what is none (a descriptor) or lies there already."""
        if not isinstance(path, (str, os.PathLike)):
            return None
        resolved = Path(os.path.normpath(Path.cwd() / path))
        return None if resolved.is_relative_to(self._base) else self._base / resolved.relative_to("/")

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """As ``os.mkdir``."""
        try:
            self._mkdir(path, mode, dir_fd=dir_fd)
        except OSError as error:
            aside = self.instead(path) if dir_fd is None else None
            if aside is None or not self._belongs_there(error, aside):
                raise
            if aside.is_dir():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path)) from None
            aside.mkdir(parents=True)

    def open(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        """As ``open``."""
        try:
            return self._open(file, mode, *args, **options)
        except OSError as error:
            aside = self.instead(file)
            writes = any(letter in mode for letter in "wax+")
            if aside is None or not (aside.is_file() or (writes and self._belongs_there(error, aside))):
                raise
            aside.parent.mkdir(parents=True, exist_ok=True)
            return self._open(aside, mode, *args, **options)

    def listdir(self, path: Any = ".") -> Any:
        """As ``os.listdir``."""
        try:
            return self._listdir(path)
        except FileNotFoundError:
            aside = self.instead(path)
            if aside is None or not aside.is_dir():
                raise
            return self._listdir(aside)

    @staticmethod
    def _belongs_there(error: OSError, aside: Path) -> bool:
        """Whether writing was refused, or is to a folder that was made there before."""
        return error.errno in _REFUSED or (error.errno == errno.ENOENT and aside.parent.is_dir())


def install() -> None:
    """Patches what makes folders and opens files."""
    outside = Outside(Path(tempfile.gettempdir()) / _FOLDER)
    patched: Any = os
    patched.mkdir, patched.listdir = outside.mkdir, outside.listdir
    for module in (builtins, io):
        patched = module
        patched.open = outside.open
