"""Runs a command as a container of a pod: ``enter.py PID COMMAND…``, where PID holds the pod's namespaces.

The command is the first process of a process namespace: as in a container, what it started ends with it, and signals
that it does not handle do nothing. This one stays in front: hands on SIGTERM, and ends as the command did.
"""

import ctypes
import os
import signal
import sys
from types import FrameType

_NEW_PROCESSES, _NEW_MOUNTS = 0x20000000, 0x00020000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_DIE_WITH_PARENT = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """The command's exit code, 128 + n after signal n, 128 where it cannot run."""
    pid, command = sys.argv[1], sys.argv[2:]
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than the rest
    for kind in ("net", "mnt"):
        space = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        _require(_libc.setns(space, 0) == 0, f"cannot enter the {kind} namespace of {pid}")
    _require(_libc.unshare(_NEW_PROCESSES | _NEW_MOUNTS) == 0, "no namespaces for the container")
    child = os.fork()
    if not child:
        _become(folder, command)

    def hand_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, hand_on)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(folder: str, command: list[str]) -> None:
    try:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        _require(_libc.mount(None, b"/", None, _PRIVATE | _RECURSIVE, None) == 0, "mounts cannot be made private")
        _require(_libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0, "cannot mount /proc")
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as problem:
        sys.stderr.write(f"{problem}\n")
    os._exit(128)


def _require(done: bool, problem: str) -> None:
    if not done:
        raise OSError(ctypes.get_errno(), problem)


if __name__ == "__main__":
    sys.exit(main())
