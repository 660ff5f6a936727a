"""Child processes that cannot outlive the tests, free loopback ports, and waiting with a deadline."""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx
from controlplane import warm

T = TypeVar("T")

#: For what comes at once on an idle machine: only a failing test waits so long, and a busy machine fails none.
PATIENCE_S = 90.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
# The kernel sends the death signal when the *thread* that forked ends: all children come from this one, which lives
# as long as the interpreter, whichever thread of a test asks.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


class NotReady(RuntimeError):
    """Something did not happen in time, or a process ended early; the message ends with its log."""


def spawn(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[bytes]":
    """``subprocess.Popen`` of a process that the kernel kills when this one dies, however it dies."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    arguments = [str(part) for part in command]
    # In a session of its own a Ctrl-C reaches the tests first, which then stop what they started in order.
    start = lambda: subprocess.Popen(arguments, preexec_fn=die_with_parent, start_new_session=True, **options)  # noqa: E731
    return _spawner.submit(start).result()


@cache
def _warm_parent() -> warm.Parent:
    return warm.Parent(spawn)


def run_kopt(
    *words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """``kopt`` to its end, as ``subprocess.run`` runs it with its text captured, but without its imports."""
    arguments, environment = [str(word) for word in words], {**os.environ} if env is None else {**env}
    if not warm.fits(environment):
        command = [*warm.KOPT, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=timeout_s, check=False
        )
    with tempfile.TemporaryDirectory() as folder:
        output, errors, status = (Path(folder) / name for name in ("output", "errors", "status"))
        with output.open("wb") as into, errors.open("wb") as beside:
            process = _warm_parent().start(arguments, cwd or Path.cwd(), into, environment, beside, status)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        # Who is killed leaves none.
        code = int(status.read_text()) if status.exists() else -signal.SIGKILL
        return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())


class Server:
    """A server process with its log in a file; may be killed, stopped and started again."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        env: Mapping[str, str] | None = None,
        url: str = "",
    ) -> None:
        self.name = name
        #: Where it listens, for those that do.
        self.url = url
        self.command = list(command)
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | warm.WarmProcess | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The running process's id; raises NotReady when there is none."""
        if self._process is None:
            raise NotReady(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Starts the command (again); its output is appended to the log."""
        with self.log.open("ab") as log:
            arguments = warm.arguments_of(self.command) if warm.fits(self._env) else None
            if arguments is not None:
                self._process = _warm_parent().start(arguments, self._folder, log, self._env)
                return
            self._process = spawn(
                self.command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs (a stopped one does)."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        """Sends a signal, e.g. SIGSTOP and SIGCONT."""
        os.kill(self.pid, number)

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after ``grace_s``; nothing happens when it has ended already."""
        if self._process is None:
            return
        if self.alive:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait_until(self, check: Callable[[], object], timeout_s: float = PATIENCE_S, what: str = "") -> None:
        """Waits for ``check`` while the process lives; OSError and ValueError count as not yet."""
        try:
            wait_for(lambda: not self.alive or check(), timeout_s, what or f"{self.name} is ready")
        except NotReady as late:
            raise NotReady(f"{late}\n{self.tail()}") from None
        if not self.alive:
            raise NotReady(f"{self.name} ended at once:\n{self.tail()}")

    def tail(self, characters: int = 4000) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-characters:]


def wait_for(check: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "", every_s: float = 0.1) -> T:
    """The first true answer of ``check``; raises NotReady (naming ``what``) after ``timeout_s``.

    An answer that is not there yet may also be an OSError (no connection) or a ValueError.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            answer = check()
        except (OSError, ValueError, httpx.TransportError) as problem:
            last = problem
        else:
            if answer:
                return answer
            last = answer
        if time.monotonic() > deadline:
            raise NotReady(f"not within {timeout_s:g} s: {what or check!r}; last answer: {last!r}")
        time.sleep(every_s)


async def until(check: Callable[[], object], timeout_s: float = PATIENCE_S, what: str = "") -> None:
    """``wait_for`` where an event loop must go on meanwhile; an exception of ``check`` is the test's end."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            raise NotReady(f"not within {timeout_s:g} s: {what or check!r}")
        await asyncio.sleep(0.01)


def free_port() -> int:
    """A free loopback port below the ephemeral range: it stays free while a server restarts."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
