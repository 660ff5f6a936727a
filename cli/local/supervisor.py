"""Starts the platform's processes, waits until they answer, starts them again when they end, stops them all.

Every process runs under `kopt.cli.local.child_guard`, in a session of its own: a terminal's Ctrl-C reaches only the
supervisor, which then ends the others in order, and none outlives it.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kopt.cli.errors import Refused

LOG_LIMIT_BYTES = 20 << 20
TRY_AGAIN = 75
"""Status of a process that could not start for a passing reason (EX_TEMPFAIL of sysexits.h)."""


@dataclass(frozen=True)
class Service:
    """One process. ``ready_url`` answers with a status below 400 when it is up; its output goes to ``log``.

    ``on_line`` gets what the process writes to its standard output (a protocol; its log is standard error). ``again``
    is the command once it has answered, where it differs; ``nice`` yields to the others while all start at once; a
    ``held`` service starts when it is released.
    """

    name: str
    command: Sequence[str]
    ready_url: str
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    starts_within_s: float = 300.0
    on_line: Callable[[str], None] | None = None
    again: Sequence[str] = ()
    nice: int = 0
    held: bool = False


@dataclass(frozen=True)
class BackOff:
    """Waits of 1, 2, 4 … seconds between restarts; after ``limit`` ends within ``window_s`` it gives up."""

    limit: int = 4
    window_s: float = 300.0
    first_s: float = 1.0

    def wait_s(self, ends: int) -> float:
        return self.first_s * 2.0 ** (ends - 1)


class Supervisor:
    """Keeps services running. ``tell`` gets a sentence for people about every unplanned event."""

    def __init__(
        self, services: Sequence[Service], report: Callable[[str], None], back_off: BackOff | None = None
    ) -> None:
        self.services = services
        self.pids: dict[str, int] = {}
        self.ready_after_s: dict[str, float] = {}
        self._report = report
        self._back_off = back_off or BackOff()
        self._stopping = asyncio.Event()
        self._released = {service.name: asyncio.Event() for service in services}
        self._ready = {service.name: asyncio.Event() for service in services}
        self._tasks: list[asyncio.Task[None]] = []
        self._on_ready: Callable[[str], None] = lambda name: None

    async def start(self, on_ready: Callable[[str], None] = lambda name: None) -> None:
        """Start all and return when all answer. Raises Refused when one ends first or never answers.

        ``on_ready`` gets the name of each service when it answers, also after later restarts.
        """
        self._on_ready = on_ready
        _watch_without_threads()
        self._tasks = [asyncio.create_task(self._keep(service)) for service in self.services]
        everyone = asyncio.create_task(self._all_ready())
        done, _ = await asyncio.wait([everyone, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        everyone.cancel()
        _raise_first(done)

    async def watch(self) -> None:
        """Wait until `stop` is called. Raises Refused when a service cannot be kept running."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        _raise_first(done)

    def release(self, name: str) -> None:
        """Let a held service start."""
        self._released[name].set()

    async def _all_ready(self) -> None:
        for event in self._ready.values():
            await event.wait()

    async def stop(self) -> None:
        """End every process and wait for it; safe to call twice."""
        self._stopping.set()
        for held in self._released.values():
            held.set()
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, service: Service) -> None:
        ends: list[float] = []
        if service.held:
            await self._released[service.name].wait()
        while not self._stopping.is_set():
            was_ready = self._ready[service.name].is_set()
            status = await self._run_once(service, service.again if was_ready and service.again else service.command)
            if self._stopping.is_set():
                return
            if not self._ready[service.name].is_set() and status != TRY_AGAIN:
                raise Refused(_never_answered(service, status))
            now = time.monotonic()
            ends = [at for at in ends if now - at < self._back_off.window_s] + [now]
            if len(ends) > self._back_off.limit:
                raise Refused(_gave_up(service, status, len(ends)))
            wait_s = self._back_off.wait_s(len(ends))
            self._report(
                f"{service.name} ended with status {status}; starting it again in {wait_s:g} s ({service.log})"
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    async def _run_once(self, service: Service, command: Sequence[str]) -> int:
        """Start the process, note when it answers, and wait for its end."""
        begun = time.monotonic()
        process = await _spawn(service, command)
        self.pids[service.name] = process.pid
        forward, probe, ended = (
            asyncio.create_task(each)
            for each in (_forward(process, service), self._await_ready(service, begun), process.wait())
        )
        try:
            await asyncio.wait([probe, ended], return_when=asyncio.FIRST_COMPLETED)
            if process.returncode is None and not self._ready[service.name].is_set():
                process.terminate()
                await process.wait()
                if not self._stopping.is_set():
                    raise Refused(f"{service.name} gave no answer in {service.starts_within_s:g} s; see {service.log}")
            return await process.wait()
        finally:
            self.pids.pop(service.name, None)
            forward.cancel()
            probe.cancel()

    async def _await_ready(self, service: Service, begun: float) -> None:
        deadline = begun + service.starts_within_s
        while time.monotonic() < deadline and not self._stopping.is_set():
            if await answers(service.ready_url):
                self.ready_after_s.setdefault(service.name, time.monotonic() - begun)
                self._ready[service.name].set()
                self._on_ready(service.name)
                return
            await asyncio.sleep(0.2)


def _watch_without_threads() -> None:
    """Python 3.11 starts a thread for each child after the fork: where there is none, the child is lost and keeps its
    port."""
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)


def _raise_first(done: Iterable[asyncio.Task[None]]) -> None:
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _spawn(service: Service, command: Sequence[str]) -> asyncio.subprocess.Process:
    with _open_log(service.log) as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "kopt.cli.local.child_guard", str(service.nice), *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if service.on_line else log,
            stderr=log,
            env={**os.environ, **service.environ},
            start_new_session=True,
        )


def _open_log(path: Path) -> IO[bytes]:
    """Appends, readable by the owner only; a log past the limit is kept once as ``.old`` and begun anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".log.old"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


async def _forward(process: asyncio.subprocess.Process, service: Service) -> None:
    if process.stdout is None or service.on_line is None:
        return
    async for line in process.stdout:
        service.on_line(line.decode(errors="replace").rstrip())


async def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Does a GET of the address give a status below 400? Plain sockets: no client library is loaded to start up."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(name.strip("[]"), int(port))
            try:
                writer.write(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return len(status) > 1 and status[1].isdigit() and int(status[1]) < 400


def _never_answered(service: Service, status: int) -> str:
    last = last_line(service.log)
    return f"{service.name} ended with status {status} before it answered: {last} (log: {service.log})"


def _gave_up(service: Service, status: int, ends: int) -> str:
    last = last_line(service.log)
    return f"{service.name} ended {ends} times, the last time with status {status}: {last} (log: {service.log})"


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    return lines[-1][:300] if lines else "it wrote nothing"
