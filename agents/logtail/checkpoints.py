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
    result: list[dict[str, Any]] = []
    pending = [(str(folder), "", 1)]
    while pending:
        current, prefix, depth = pending.pop()
        try:
            with os.scandir(current) as entries:
                for entry in entries:
                    item = _entry(entry, prefix)
                    if item is None:
                        continue
                    result.append(item)
                    if item["is_folder"] and depth < _DEPTH:
                        pending.append((entry.path, f"{item['path']}/", depth + 1))
        except OSError:
            continue
    result.sort(key=lambda item: (-item["modified_at"], item["path"]))
    return result[:_MOST]


def _entry(entry: "os.DirEntry[str]", prefix: str) -> dict[str, Any] | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    name = f"{prefix}{entry.name}".encode(errors="replace").decode()
    return {
        "path": name,
        "bytes": status.st_size,
        "modified_at": round(status.st_mtime, 3),
        "is_folder": stat.S_ISDIR(status.st_mode),
    }
