"""Which processes a command has started, from ``/proc``; no library is needed for it."""

import contextlib
import os
import signal
from pathlib import Path

_PROC = Path("/proc")


def tree_of(root: int, earlier: frozenset[int] = frozenset()) -> frozenset[int]:
    """``root`` and its descendants that live, and those of ``earlier`` that live although their parents have ended."""
    children: dict[int, list[int]] = {}
    alive = set()
    for entry in (path.name for path in _PROC.iterdir()):
        if entry.isdigit() and (parent := _parent(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
            alive.add(int(entry))
    result: set[int] = set()
    waiting = [root, *earlier]
    while waiting:
        pid = waiting.pop()
        if pid not in result and pid in alive:
            result.add(pid)
            waiting += children.get(pid, ())
    return frozenset(result)


def end(pids: frozenset[int], signal_number: int = signal.SIGKILL) -> None:
    """Send a signal to each; those that have ended are fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def _parent(pid: int) -> int | None:
    """None for a process that has ended, also where nobody has asked for its status yet."""
    try:
        # The name in parentheses may hold anything, parentheses too.
        state, parent = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[:2]
        return None if state == b"Z" else int(parent)
    except (OSError, ValueError):
        return None
