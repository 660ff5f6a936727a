"""Running a command under observation, and ending it when enough was seen."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kopt.agents.profiler.observation import Observation, SteadySettings
from kopt.agents.profiler.processes import end, tree_of
from kopt.agents.profiler.readings import Exhausted, Source, SourceError
from kopt.core.workload.profile import DryRun, says_out_of_memory

_TAIL = 4096
_KILL_S = 5.0
"""What SIGKILL has not ended after so long hangs in a driver."""
_MOST_ERRORS = 5
"""Readings that may fail in a row before the source is given up."""


@dataclass(frozen=True)
class RunSettings:
    """Times in seconds. Raises ValueError for times that are none."""

    limit_s: float = 300.0
    interval_s: float = 0.5
    """Between readings; at most one second."""
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL when enough was seen."""
    to_the_end: bool = False
    """Go on until the command ends by itself or the limit is reached, however steady it is, and if readings fail."""
    steady: SteadySettings = field(default_factory=SteadySettings)

    def __post_init__(self) -> None:
        if not 0 < self.interval_s <= 1 or self.limit_s <= 0 or self.grace_s < 0:
            raise ValueError("a profile samples every second or more often, for a positive time")


@dataclass(frozen=True)
class Watched:
    """What was seen of a command that has ended, by itself (with ``exit_status``) or not (None)."""

    observation: Observation
    exit_status: int | None
    out_of_memory: bool


def profile_command(
    command: Sequence[str],
    source: Source,
    settings: RunSettings,
    *,
    job_type: str = "",
    world_size: int = 1,
    relay: IO[bytes] | None = None,
    env: dict[str, str] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> DryRun:
    """Run the command until it ends, is steady, or the limit is reached. Its output goes to ``relay`` (stderr).

    Raises OSError when it cannot be started, and SourceError when the source fails before anything was seen.
    """
    watched = watch_command(command, source, settings, relay=relay, env=env, stopped=stopped)
    return watched.observation.result(
        source=source.name,
        exit_status=watched.exit_status,
        out_of_memory=watched.out_of_memory,
        job_type=job_type,
        world_size=world_size,
    )


def watch_command(
    command: Sequence[str],
    source: Source,
    settings: RunSettings,
    *,
    relay: IO[bytes] | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Watched:
    """The same, as it was seen. All that the command has started ends with it."""
    idle = {gpu.gpu: int(gpu.used_bytes or 0) for gpu in source.read().gpus} if source.idles else {}
    observation = Observation(settings.steady, idle)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=env,
        cwd=cwd,
    )
    output = _Output(process, relay or sys.stderr.buffer)
    pids = frozenset({process.pid})
    try:
        pids = _watch(process, source, settings, observation, output, stopped)
        status = process.poll()
    finally:
        _end(process, pids, settings.grace_s, output)
    return Watched(observation, status, output.out_of_memory)


def _watch(
    process: "subprocess.Popen[bytes]",
    source: Source,
    settings: RunSettings,
    observation: Observation,
    output: "_Output",
    stopped: Callable[[], bool],
) -> frozenset[int]:
    """Take readings until there is a reason to stop; the processes that were seen last."""
    ends_s = time.monotonic() + settings.limit_s
    pids = frozenset({process.pid})
    errors = 0
    while process.poll() is None and time.monotonic() < ends_s and not stopped():
        due_s = time.monotonic() + settings.interval_s
        pids = tree_of(process.pid, pids)
        try:
            observation.take(source.read(), pids)
            errors = 0
        except Exhausted:
            break
        except SourceError:
            errors += 1
            if errors >= _MOST_ERRORS and not observation.samples:
                raise
            if errors >= _MOST_ERRORS and not settings.to_the_end:
                break
        if observation.steady and not settings.to_the_end:
            break
        output.pump(max(0.0, due_s - time.monotonic()))
    return tree_of(process.pid, pids)


def _end(process: "subprocess.Popen[bytes]", pids: frozenset[int], grace_s: float, output: "_Output") -> None:
    ends_s = time.monotonic() + grace_s
    end(pids, signal.SIGTERM)
    while (alive := tree_of(process.pid, pids)) and time.monotonic() < ends_s and process.poll() is None:
        pids |= alive
        output.pump(0.05)
    ends_s = time.monotonic() + _KILL_S
    while (alive := tree_of(process.pid, pids)) and time.monotonic() < ends_s:
        end(alive)
        output.pump(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_S)
    output.drain()


class _Output:
    """Passes the command's output on and looks for what says that memory ran out."""

    def __init__(self, process: "subprocess.Popen[bytes]", relay: IO[bytes]) -> None:
        assert process.stdout is not None
        self.out_of_memory = False
        self._pipe: IO[bytes] | None = process.stdout
        self._relay, self._tail = relay, b""
        os.set_blocking(process.stdout.fileno(), False)

    def pump(self, wait_s: float) -> None:
        """Pass on what comes within the time."""
        ends_s = time.monotonic() + wait_s
        while True:
            remaining_s = max(0.0, ends_s - time.monotonic())
            if self._pipe is None:
                time.sleep(remaining_s)
                return
            ready, _, _ = select.select([self._pipe], [], [], remaining_s)
            if (not ready or not self._pass_on() or time.monotonic() >= ends_s) and self._pipe is not None:
                return

    def drain(self) -> None:
        """What is in the pipe still; whoever holds it open beyond the end is not waited for."""
        while self._pipe is not None and select.select([self._pipe], [], [], 0)[0] and self._pass_on():
            pass
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _pass_on(self) -> bool:
        assert self._pipe is not None
        chunk = os.read(self._pipe.fileno(), 1 << 16)
        if not chunk:
            self._pipe.close()
            self._pipe = None
            return False
        self._relay.write(chunk)
        self._relay.flush()
        text = self._tail + chunk
        self.out_of_memory = self.out_of_memory or says_out_of_memory(text.decode(errors="replace"))
        self._tail = text[-_TAIL:]
        return True
