"""Digests of files: each part's own, and those that sources give."""

import hashlib
import os
from pathlib import Path
from typing import Protocol

_PIECE = 1 << 20


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def part_digest(file: int, begin: int, end: int) -> str:
    """The SHA-256 of a range of an open file; of less where the file is shorter. Raises OSError."""
    result = hashlib.sha256()
    while begin < end and (piece := os.pread(file, min(_PIECE, end - begin), begin)):
        result.update(piece)
        begin += len(piece)
    return result.hexdigest()


def file_digest(path: Path, algorithm: str) -> str:
    """A digest of a whole file, of any algorithm that ``Checksum`` names. Raises OSError."""
    with path.open("rb") as file:
        result = hasher(algorithm, os.fstat(file.fileno()).st_size)
        while piece := file.read(_PIECE):
            result.update(piece)
    return result.hexdigest()


def hasher(algorithm: str, size: int) -> Hash:
    """``size`` is the length of what is to come: git digests it with the content."""
    if algorithm == "git-sha1":
        result = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        return result
    return hashlib.new(algorithm, usedforsecurity=False)
