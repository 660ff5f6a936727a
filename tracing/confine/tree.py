"""The processes below one: how many, how much memory they hold, and how to end them all."""

import contextlib
import os
import signal
import time
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_END_WITHIN_S = 5.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""  # it ended meanwhile


def _children(pid: int) -> list[int]:
    result: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            result += map(int, _read(f"{thread}/children").split())
    return result


def _children_by_scan() -> dict[int, list[int]]:
    """Children of every process: for kernels without the ``children`` file."""
    below: dict[int, list[int]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            status = _read(f"{process}/stat").rpartition(")")[2].split()
            if len(status) > 1:
                below.setdefault(int(status[1]), []).append(int(process.name))
    return below


def descendants(root: int, at_most: int = 100_000) -> list[int]:
    """Every process below ``root``, parents first; may miss those that start while it looks."""
    children = None if Path(f"/proc/self/task/{os.getpid()}/children").exists() else _children_by_scan()
    result: list[int] = []
    pending = [root]
    while pending and len(result) < at_most:
        pid = pending.pop()
        below = _children(pid) if children is None else children.get(pid, [])
        result += below
        pending += below
    return result


def private_bytes(pids: list[int]) -> int:
    """Resident memory that no file backs, summed; pages that forks still share count once per process."""
    total = 0
    for pid in pids:
        pages = _read(f"/proc/{pid}/statm").split()
        if len(pages) > 2:
            total += max(0, int(pages[1]) - int(pages[2])) * _PAGE_BYTES
    return total


def shared_out_bytes(pids: list[int]) -> int:
    """The same with shared pages divided among their holders (PSS): exact, and slow to ask for.

    Before Linux 5.4 pages that files back are counted as well.
    """
    total = 0
    for pid in pids:
        sizes = dict(line.split()[:2] for line in _read(f"/proc/{pid}/smaps_rollup").splitlines()[1:])
        total += int(sizes.get("Pss_Anon:", sizes.get("Pss:", 0))) * 1024
    return total


def end_all(root: int, spared: int | None = None) -> bool:
    """Kills every process below ``root`` until none is left; each is stopped first, so that none outruns the sweep.

    Only for a ``root`` that adopts orphans. False when some could not be ended in time.
    """
    give_up = time.monotonic() + _END_WITHIN_S
    while time.monotonic() < give_up:
        remaining = [pid for pid in descendants(root) if pid != spared]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in remaining:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not remaining:
            return True
        time.sleep(0.002)
    return False
