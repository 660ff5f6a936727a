"""Runs a command for each request to save."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kopt.agents.runtime.running import end_signals
from kopt.core.workload.checkpoint_request import SaveRequest
from kopt.saving.requests import ANNOTATIONS_FILE, SaveRequests

_LOG = logging.getLogger(__name__)
_KILL_AFTER_S = 5.0
_LONGEST = 2048


@dataclass(frozen=True)
class HookSettings:
    """Times in seconds."""

    command: Sequence[str]
    file: Path = ANNOTATIONS_FILE
    every_s: float = 1.0
    """Between two looks at the file; one costs a ``stat``."""
    timeout_s: float = 600.0
    """A command that takes longer is ended."""


async def serve(settings: HookSettings, stop: asyncio.Event | None = None) -> None:
    """Run until SIGTERM, SIGINT or ``stop``; a command that runs then is ended, too."""
    ending = end_signals(stop)
    requests = SaveRequests(settings.file)
    _LOG.info("requests to save are looked for in %s", settings.file)
    while not ending.is_set():
        if requests.asked() and requests.last is not None:
            await _run(settings, requests.last, ending)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.every_s):
                await ending.wait()


async def _run(settings: HookSettings, request: SaveRequest, ending: asyncio.Event) -> None:
    """Once: a failure is logged and not retried, because half of it may have been done."""
    _LOG.info("%s asks to save (%s)", _word(request.by) or "somebody", _word(request.reason) or "no reason given")
    try:
        process = await asyncio.create_subprocess_exec(
            *settings.command, env=os.environ | _environment(request), start_new_session=True
        )
    except OSError as error:
        _LOG.error("%s cannot be run: %s", settings.command[0], error)
        return
    ended, stopped = asyncio.ensure_future(process.wait()), asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait({ended, stopped}, timeout=settings.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            _LOG.warning("%s is ended%s", settings.command[0], "" if ending.is_set() else ": it took too long")
            await _end(process)
    finally:
        stopped.cancel()
    _LOG.info("%s ended with status %s", settings.command[0], process.returncode)


async def _end(process: asyncio.subprocess.Process) -> None:
    """The command with what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER_S):
                await process.wait()
                return


def _environment(request: SaveRequest) -> Mapping[str, str]:
    return {
        "KOPT_SAVE_AT": f"{request.at_s:.0f}",
        "KOPT_SAVE_UNTIL": f"{request.until_s:.0f}",
        "KOPT_SAVE_BY": _word(request.by),
        "KOPT_SAVE_REASON": _word(request.reason),
    }


def _word(text: str) -> str:
    """Text from an annotation that anyone may have written, reduced to what an environment variable can hold."""
    return text[:_LONGEST].replace("\0", "").encode("utf-8", "replace").decode()
