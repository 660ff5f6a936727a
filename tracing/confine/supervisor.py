"""Starts one confined command, watches it, ends it and all it started, and reports.

``python -I -S -c`` runs ``main`` with the ``Confinement`` on standard input. Three processes: this one makes the
namespaces, counts memory and processes and kills; its child is process 1 of the PID namespace (``first``); that one's
child becomes the command (``become``). If any of them ends, the kernel ends those below it.
"""

import contextlib
import json
import os
import select
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from kopt.tracing.confine import kernel, landlock, tree
from kopt.tracing.confine.become import Apart, become, visible
from kopt.tracing.confine.identity import Identity, separate
from kopt.tracing.confine.mounts import MountSetup, hide_others, set_up
from kopt.tracing.confine.settings import Confinement
from kopt.tracing.confine.storage import Storage

_POLL_S = 0.05
_CERTAIN_SHARE = 0.9
_AHEAD = 10
_NAMESPACES = {
    "net": kernel.CLONE_NEWNET,
    "ipc": kernel.CLONE_NEWIPC,
    "host name": kernel.CLONE_NEWUTS,
    "pid": kernel.CLONE_NEWPID,
}


def main() -> None:
    kernel.die_with_parent(int(sys.argv[1]))
    task = Confinement.from_json(sys.stdin.read())
    kernel.adopt_orphans()
    signal.signal(signal.SIGTERM, _stop)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.nice(-_AHEAD)  # many processes of the command's must not keep it from ending them
    identity = separate(task.without)
    have = _separate(task.without)
    result_in, result_out = os.pipe()
    me = os.getpid()
    first = os.fork()
    if first == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        os.close(result_in)
        _first(task, have, identity, result_out, me)
    os.close(result_out)
    if task.events_fd is not None:
        os.close(task.events_fd)
    os.close(task.output_fd)
    try:
        report = _watch(task, first, result_in)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Stopped:
        report = {}
    report["left_over"] = not _end(first, "pid" in have)
    with contextlib.suppress(BrokenPipeError):
        _send(task.status_fd, report)


class _Stopped(Exception):
    """The process that asked wants no more."""


def _stop(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _send(status_fd: int, message: dict[str, Any]) -> None:
    os.write(status_fd, json.dumps(message).encode() + b"\n")


def _separate(without: tuple[str, ...]) -> set[str]:
    """Leaves the namespaces this process shares with the rest of the machine; the names of those it could leave."""
    have = set()
    for name, flag in _NAMESPACES.items():
        if name in without:
            continue
        with contextlib.suppress(OSError):
            kernel.unshare(flag)
            have.add(name)
    return have


def _own_mounts() -> bool:
    """Only for process 1: the supervisor goes on seeing the machine's /proc, by which it counts."""
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
    except OSError:
        return False
    return True


def _first(task: Confinement, have: set[str], identity: Identity, result_out: int, supervisor: int) -> NoReturn:
    """Process 1: sets up the view, starts the command, reaps until it ends, then ends and with it everything."""
    status = 125 << 8
    try:
        if "pid" not in have:
            kernel.die_with_parent(supervisor)
        else:
            kernel.die_with_parent(0)  # a parent outside the namespace has no number in it
            _end_without_reader(result_out)
        kernel.adopt_orphans()
        if "net" in have:
            with contextlib.suppress(OSError):
                kernel.raise_loopback()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, this is what may go
        setup = set_up(task) if "mount" not in task.without and _own_mounts() else MountSetup()
        apart = Apart(frozenset(have), identity, setup)
        if "landlock" in task.without or not landlock.abi():
            hide_others(task, setup, visible(task))
        me = os.getpid()
        command = os.fork()
        if command == 0:
            os.close(result_out)
            become(task, apart, me)
        for descriptor in (task.status_fd, task.output_fd, task.events_fd):
            if descriptor is not None:
                os.close(descriptor)
        while True:
            pid, ended = os.wait()
            if pid == command:
                status = ended
                break
    except OSError as error:
        with contextlib.suppress(OSError):
            _send(task.status_fd, {"error": f"could not be confined: {error}"})
    os.write(result_out, struct.pack("=i", status))
    os._exit(0)


def _end_without_reader(pipe: int) -> None:
    """Ends this process where the supervisor ended before the kernel was asked to tell."""
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):
        os._exit(1)


def _watch(task: Confinement, first: int, result_in: int) -> dict[str, Any]:
    """Waits for the command's end or a limit: ``{"status", "limit", "peak_bytes"}``, status None where it was ended."""
    end_at = time.monotonic() + task.limits.wall_s
    storage = Storage(task.base, first)
    peak = 0
    while True:
        remaining_s = end_at - time.monotonic()
        if select.select([result_in], [], [], max(0.0, min(_POLL_S, remaining_s)))[0]:
            result = os.read(result_in, 4)
            return {"status": struct.unpack("=i", result)[0] if len(result) == 4 else None, "peak_bytes": peak}
        pids = tree.descendants(first, 4 * task.limits.processes)
        in_memory, on_disk = storage.used()
        resident = tree.private_bytes(pids)
        if resident + in_memory > _CERTAIN_SHARE * task.limits.memory_bytes:
            resident = tree.shared_out_bytes(pids) or resident
        peak = max(peak, resident + in_memory)
        limit = "wall" if remaining_s <= 0 else "memory" if resident + in_memory > task.limits.memory_bytes else None
        if on_disk > task.limits.written_bytes:
            limit = "files"
        if len(pids) > task.limits.processes:
            limit = "processes"
        if limit:
            return {"status": None, "limit": limit, "peak_bytes": peak}


def _end(first: int, own_processes: bool) -> bool:
    """Ends what is left. Killing process 1 of a namespace ends all of it, and waiting for it waits for all."""
    if own_processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(first, 0)
        return True
    return tree.end_all(os.getpid())


if __name__ == "__main__":
    main()
