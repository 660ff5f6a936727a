"""Runs a vendor's command-line tool: slower than its library, and everywhere."""

import shutil
import subprocess
from collections.abc import Sequence

from kopt.agents.profiler.readings import SourceError

_LIMIT_S = 20.0


def tool_path(tool: str) -> str:
    """Where the tool is. Raises SourceError."""
    path = shutil.which(tool)
    if path is None:
        raise SourceError(f"{tool} is not on the PATH")
    return path


def output_of(path: str, *arguments: str) -> str:
    """What the tool prints. Raises SourceError where it fails or takes too long."""
    command: Sequence[str] = (path, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{path}: {error}") from error
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        message = (done.stderr.decode(errors="replace") or text).strip()[-300:]
        raise SourceError(f"{path} ended with {done.returncode}: {message}")
    return text
