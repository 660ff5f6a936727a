"""``python -P -m kopt.cli.local.child_guard NICE CMD…``: runs a command that cannot outlive whoever started it.

Standard input is a pipe whose other end the starter keeps; when it closes (the starter ended, in whatever way) the
command gets SIGTERM and, after a grace, SIGKILL. On Linux the guard adopts everything the command leaves behind
(``PR_SET_CHILD_SUBREAPER``), so that daemons which detach themselves, as parts of Ray do, are found and ended too.
Standard library only: this process stays as long as its command does.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

GRACE_S = 40.0
"""From SIGTERM to SIGKILL; Ray Serve drains its replicas meanwhile."""
SWEEP_S = 3.0
"""The same for what the command left behind."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: list[str]) -> int:
    """Run the command to its end and return its status (128 + signal when a signal ended it)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # No thread exists yet, so running Python between fork and exec is safe here.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    ending = threading.Event()

    def end(*_: object) -> None:
        if not ending.is_set():
            ending.set()
            threading.Thread(target=_terminate, args=(child,), daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    threading.Thread(target=_await_close, args=(end,), daemon=True).start()
    status = child.wait()
    _sweep()
    return status if status >= 0 else 128 - status


def _await_close(end: Callable[[], None]) -> None:
    while os.read(0, 4096):
        pass
    end()


def _terminate(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _sweep() -> None:
    """End all descendants that are left: politely, then by force."""
    deadline = time.monotonic() + SWEEP_S
    polite = set[int]()
    while remaining := _descendants(os.getpid()):
        forced = time.monotonic() > deadline
        for pid in remaining:
            if forced or pid not in polite:
                polite.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if forced else signal.SIGTERM)
        _reap()
        time.sleep(0.05)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants(pid: int) -> list[int]:
    descendants: list[int] = []
    for child in _children(pid):
        descendants += [child, *_descendants(child)]
    return descendants


def _children(pid: int) -> list[int]:
    listing: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            listing += [int(each) for each in path.read_text().split()]
    return listing


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing, and the pipe alone guards."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
