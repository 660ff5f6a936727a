"""``python -P -m kopt.cli.local.child_guard NICE CMD…``: runs a command that cannot outlive whoever started it.

Standard input is a pipe whose other end the starter keeps; when it closes (the starter ended, in whatever way) the
command gets SIGTERM and, after a grace, SIGKILL. On Linux the guard adopts everything the command leaves behind
(``PR_SET_CHILD_SUBREAPER``), so that daemons which detach themselves, as parts of Ray do, are found and ended too.
Standard library only: this process stays as long as its command does.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 40.0
"""From SIGTERM to SIGKILL; Ray Serve drains its replicas meanwhile."""
SWEEP_S = 3.0
"""The same for what the command left behind."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: list[str]) -> int:
    """Run the command to its end and return its status (128 + signal when a signal ended it).

    Without threads: where the machine gives none any more, the command must end all the same.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        # What came is read from the pipe; a handler of its own keeps the default, which ends this process, away.
        signal.signal(number, lambda *_: None)
    # No thread exists, so running Python between fork and exec is safe here.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    status = _await_end(child, woken)
    _sweep()
    return status if status >= 0 else 128 - status


def _await_end(child: "subprocess.Popen[bytes]", woken: int) -> int:
    """Wait for the child; end it when a signal comes or standard input closes, by force after a grace."""
    listened, forced_at = [0, woken], float("inf")
    while (status := child.poll()) is None:
        remaining_s = None if forced_at == float("inf") else max(0.1, forced_at - time.monotonic())
        ready, _, _ = select.select(listened, [], [], remaining_s)
        closed = 0 in ready and not os.read(0, 4096)
        signalled = woken in ready and {signal.SIGTERM, signal.SIGINT} & set(os.read(woken, 4096))
        if closed:
            listened.remove(0)
        if (closed or signalled) and forced_at == float("inf"):
            forced_at = time.monotonic() + GRACE_S
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        if time.monotonic() >= forced_at:
            child.kill()
    return status


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
