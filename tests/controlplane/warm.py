"""Starts of ``kopt`` without its imports, which take seconds: a process that has made them forks.

What it starts is, as with ``subprocess.Popen``, a process of its own, in a session of its own, with its own
environment, folder and log, that the kernel kills when the tests die. It differs in that its modules are imported.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

RUN = "from kopt.cli.main import app; app(prog_name='kopt')"
KOPT = [sys.executable, "-P", "-c", RUN]
_STARTS = (KOPT, [str(Path(sys.executable).with_name("kopt"))])
#: Variables that the interpreter and its libraries read once, when they start.
_READ_ONCE = ("PYTHON", "LD_", "OMP_", "MALLOC_", "PROMETHEUS_", "SSL_")
_PR_SET_PDEATHSIG = 1
_LONGEST_REQUEST = 1 << 20


class WarmProcess:
    """As much of ``subprocess.Popen`` as the tests use of a server."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._file: int | None = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already
            self._file = None

    def poll(self) -> int | None:
        """None while it runs; afterwards 0, whatever it ended with."""
        if self._file is not None and _ended(self._file, 0.0):
            os.close(self._file)
            self._file = None
        return None if self._file is not None else 0

    def wait(self, timeout: float | None = None) -> int:
        """Returns when it has ended; raises subprocess.TimeoutExpired."""
        if self._file is not None and not _ended(self._file, timeout):
            raise subprocess.TimeoutExpired("kopt", timeout or 0.0)
        return self.poll() or 0

    def send_signal(self, number: int) -> None:
        """Sends it, unless it has ended."""
        if self.poll() is None and self._file is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._file, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _ended(process: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1e3))


class Parent:
    """The process that forks. It runs one thread, so that nothing is locked in its children."""

    def __init__(self, spawn: Callable[..., "subprocess.Popen[bytes]"]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            path, number = [*sys.path], theirs.fileno()
            code = f"import sys; sys.path[:] = {path!r}; from controlplane.warm import leaving, serve; serve({number})"
            code = f"{code}\nwith leaving(): {RUN}"
            spawn([sys.executable, "-P", "-c", code], pass_fds=[number])

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        log: IO[bytes],
        env: Mapping[str, str],
        errors: IO[bytes] | None = None,
        status: Path | None = None,
    ) -> WarmProcess:
        """``log`` takes both streams, unless ``errors`` takes the second; ``status`` will have the exit status."""
        request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "status": str(status or "")}
        streams = [log.fileno(), (errors or log).fileno()]
        socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
        return WarmProcess(int(self._socket.recv(64)))


def arguments_of(command: Sequence[str | Path]) -> list[str] | None:
    """Those of ``kopt``, if the command starts it."""
    words = [str(part) for part in command]
    return next((words[len(start) :] for start in _STARTS if words[: len(start)] == start), None)


def fits(env: Mapping[str, str]) -> bool:
    """Whether an interpreter with this environment would be as this one."""
    return all(env.get(name) == os.environ.get(name) for name in {*env, *os.environ} if name.startswith(_READ_ONCE))


def serve(number: int) -> None:
    """Forks a process for each request on a socket; returns in each of them, ready to run the command."""
    _import_all()
    gc.freeze()  # no collection touches what the children share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    with socket.socket(fileno=number) as requests:
        while True:
            message, files, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 2)
            if not message:
                os._exit(0)
            pid = os.fork()
            if not pid:
                break
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())
    _become(json.loads(message), *files)


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Writes the exit status of the command that runs in it to where the request wants it, as the interpreter would."""
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        if _wanted.status:
            Path(_wanted.status).write_text(str(status))


class _Wanted:
    status = ""


_wanted = _Wanted()


def _become(request: Mapping[str, Any], output: int, errors: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
        os.close(source)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["-c", *request["arguments"]]
    _wanted.status = request["status"]


def _import_all() -> None:
    """The modules of controllers, webhook and extender; what numbers a controller needs comes with them."""
    from kopt.controllers.specs import CONTROLLERS

    for name in ("kopt.cli.main", "kopt.cli.cluster.controller", *(spec.module for spec in CONTROLLERS)):
        importlib.import_module(name)
