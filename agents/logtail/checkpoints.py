"""What lies in a checkpoint folder, as the endpoint takes it: names, sizes and times tell a whole checkpoint from a
torn one. No file is opened, and no link below the folder is followed, whoever puts one there meanwhile."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MOST_SENT = 2000
_LEVELS = 3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_BYTES, _LATEST_S = 1 << 62, 1e11
"""What the endpoint takes; a file system may say anything."""

Item = dict[str, Any]
"""An entry as it is sent."""
Parts = tuple[str, ...]
"""The names that lead from one folder to one below it."""


class Allowance:
    """How many entries may be looked at yet, of one folder and of all."""

    def __init__(self, entries: int = 1 << 20, of_folder: int = 1 << 20) -> None:
        self.entries, self.of_folder = entries, of_folder


def listing(folder: Path) -> list[Item]:
    """Entries up to three levels deep, newest first where there are too many; nothing for a folder that is not there.

    ``path`` is relative to the folder.
    """
    items = sorted(below(folder, (), _LEVELS, Allowance()), key=lambda item: (-item["modified_at"], item["path"]))
    return items[:MOST_SENT]


def below(folder: Path, parts: Parts, levels: int, allowance: Allowance, prefix: str = "") -> Iterator[Item]:
    """Everything below ``folder/parts``, so many levels deep; ``prefix`` stands in front of each path."""
    pending = [(parts, prefix, 1)]
    while pending:
        current, prefix, level = pending.pop()
        for entry in entries_of(folder, current, allowance):
            item = item_of(entry, prefix)
            if item is not None:
                yield item
                if item["is_folder"] and level < levels:
                    pending.append(((*current, entry.name), f"{item['path']}/", level + 1))


def entries_of(folder: Path, parts: Parts, allowance: Allowance) -> Iterator["os.DirEntry[str]"]:
    """The entries of ``folder/parts``, to be asked about before the next one is taken. None of a folder that vanished
    or may not be read."""
    with contextlib.suppress(OSError), _opened(folder, parts) as opened, os.scandir(opened) as entries:
        for entry in islice(entries, max(0, min(allowance.entries, allowance.of_folder))):
            allowance.entries -= 1
            yield entry


def item_of(entry: "os.DirEntry[str]", prefix: str = "") -> Item | None:
    """None for an entry that vanished."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return {
        "path": f"{prefix}{readable(entry.name)}",
        "bytes": min(status.st_size, _MOST_BYTES),
        "modified_at": max(-_LATEST_S, min(round(status.st_mtime, 3), _LATEST_S)),
        "is_folder": stat.S_ISDIR(status.st_mode),
    }


def readable(name: str) -> str:
    """A file's name as text that can be sent: bytes that are none become question marks."""
    return name.encode(errors="replace").decode()


def newest(units: Iterable[list[Item]], most: int = MOST_SENT) -> list[Item]:
    """The items of the checkpoints that changed last, each whole: one of which a part is missing looks torn."""
    result: list[Item] = []
    for unit in sorted(units, key=lambda items: -max(item["modified_at"] for item in items)):
        if result and len(result) + len(unit) > most:
            break
        result += unit
    result.sort(key=lambda item: (-item["modified_at"], item["folder"], item["path"]))
    return result[:most]


@contextlib.contextmanager
def _opened(folder: Path, parts: Parts) -> Iterator[int]:
    """A descriptor of ``folder/parts``. Raises OSError where a part is a link, or no folder."""
    opened = os.open(folder, _FOLDER)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)
