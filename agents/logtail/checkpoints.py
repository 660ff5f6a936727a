"""What lies in a checkpoint folder, as the endpoint takes it: names, sizes and times tell a whole checkpoint from a
torn one."""

import os
import stat
from pathlib import Path
from typing import Any

_MOST = 2000
_DEPTH = 3


def listing(folder: Path) -> list[dict[str, Any]]:
    """Entries up to three levels deep, newest first where there are too many; nothing for a folder that is not there.

    ``path`` is relative to the folder. Links are not followed.
    """
    found: list[dict[str, Any]] = []
    waiting = [(str(folder), "", 1)]
    while waiting:
        place, prefix, depth = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    one = _entry(entry, prefix)
                    if one is None:
                        continue
                    found.append(one)
                    if one["is_folder"] and depth < _DEPTH:
                        waiting.append((entry.path, f"{one['path']}/", depth + 1))
        except OSError:
            continue
    found.sort(key=lambda one: (-one["modified_at"], one["path"]))
    return found[:_MOST]


def _entry(entry: "os.DirEntry[str]", prefix: str) -> dict[str, Any] | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    name = f"{prefix}{entry.name}".encode(errors="replace").decode()
    return {"path": name, "bytes": status.st_size, "modified_at": round(status.st_mtime, 3),
            "is_folder": stat.S_ISDIR(status.st_mode)}  # fmt: skip
