"""Runs a vendor's tool: no shell, a limit on time and on text, and nothing of it left behind.

A tool that asks a broken driver may wait in the kernel, where no signal reaches it. It is left there and not started
again before it has ended: otherwise every scan would add a process.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kopt.agents.topology.readings import CollectorError, CollectorProblem

_STDERR_BYTES = 2000
_CHUNK_BYTES = 1 << 16
_ENDING_S = 2.0


@dataclass(frozen=True)
class Limits:
    """Of one call of a tool."""

    time_s: float = 20.0
    """``nvidia-smi`` without persistence mode initialises every GPU first: seconds on a large node."""
    text_bytes: int = 2 << 20
    """The longest real output, ``nvidia-smi -q`` of 16 GPUs in 7 instances each, has less than one MiB."""
    path: str = ""
    """Folders in which tools are looked for, beside PATH."""


class Tool:
    """One command and its arguments. ``fine`` are exit statuses that come with a whole output, ``absent`` those that
    say that the hardware is not there, as does a folder ``needs`` with nothing in it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        limits: Limits,
        fine: Sequence[int] = (0,),
        absent: Sequence[int] = (),
        needs: Path | None = None,
    ) -> None:
        self.name = name
        self._command, self._limits, self._needs = tuple(command), limits, needs
        self._fine, self._absent = frozenset(fine), frozenset(absent)
        self._stuck: asyncio.subprocess.Process | None = None

    async def collect(self) -> str:
        """What it prints. Raises CollectorError."""
        if self._stuck is not None and self._stuck.returncode is None:
            raise CollectorError(CollectorProblem.STUCK, "does not end, not even when killed; not started again")
        self._stuck = None
        if self._needs is not None and not (self._needs.is_dir() and any(self._needs.iterdir())):
            raise CollectorError(CollectorProblem.ABSENT, f"nothing in {self._needs}")
        process = await self._start()
        try:
            async with asyncio.timeout(self._limits.time_s):
                text, stderr = await asyncio.gather(self._read(process), _last_lines(process))
                status = await process.wait()
        except TimeoutError as error:
            raise CollectorError(CollectorProblem.TIMEOUT, f"no answer within {self._limits.time_s:g} s") from error
        finally:
            await self._end(process)
        if status not in self._fine:
            reason = (stderr or text[-_STDERR_BYTES:]).decode(errors="replace").strip()[-300:]
            kind = CollectorProblem.ABSENT if status in self._absent else CollectorProblem.FAILED
            raise CollectorError(kind, f"ended with {status}: {reason}" if reason else f"ended with {status}")
        if not text.strip():
            raise CollectorError(CollectorProblem.ABSENT, "prints nothing")
        return text.decode(errors="replace")

    async def _start(self) -> asyncio.subprocess.Process:
        search = os.pathsep.join(filter(None, (os.environ.get("PATH", os.defpath), self._limits.path)))
        path = shutil.which(self._command[0], path=search)
        if path is None:
            raise CollectorError(CollectorProblem.ABSENT, f"{self._command[0]} is not there")
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                path,
                *self._command[1:],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
                env={**os.environ, "PATH": search, "LC_ALL": "C", "COLUMNS": "1000"},
            )
        except OSError as error:
            raise CollectorError(CollectorProblem.FAILED, f"cannot be started: {error.strerror}") from error

    async def _read(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        result = bytearray()
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            result += chunk
            if len(result) > self._limits.text_bytes:
                most = self._limits.text_bytes >> 10
                raise CollectorError(CollectorProblem.TOO_LARGE, f"prints more than {most} KiB")
        return bytes(result)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Its whole group: tools start others, which may hold the pipes open."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            if process.returncode is None:
                async with asyncio.timeout(_ENDING_S):
                    await process.wait()
            await _reap(process.pid)
        except TimeoutError:
            self._stuck = process
        finally:
            # Pipes of what does not end would stay open with it; asyncio has no public word for this.
            process._transport.close()  # type: ignore[attr-defined]


async def _reap(group: int) -> None:
    """Ends of what a tool had started: in a container this process inherits them, and has to reap them."""
    with contextlib.suppress(ChildProcessError, TimeoutError):
        async with asyncio.timeout(_ENDING_S):
            while True:
                if os.waitpid(-group, os.WNOHANG) == (0, 0):
                    await asyncio.sleep(0.01)


async def _last_lines(process: asyncio.subprocess.Process) -> bytes:
    """The end of standard error; read to its end, so that the tool is not held up."""
    assert process.stderr is not None
    kept = b""
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        kept = (kept + chunk)[-_STDERR_BYTES:]
    return kept
