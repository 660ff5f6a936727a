"""A real S3 server, and staging in this process or as one that may be killed."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from controlplane.object_store import KEY, S3, SECRET, s3_server
from controlplane.processes import run_kopt
from replicas import KOPT

from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.staging import stage
from kopt.core.staging.manifest import Manifest, Progress, Source
from tests.staging.servers import Pipe, Web, web

__all__ = ["KEY", "S3", "SECRET", "s3_server"]


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, with this process's environment set for it."""
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def pipes() -> Iterator[Any]:
    """``pipes(port)`` relays to a port and counts."""
    with ExitStack() as stack:

        def start(port: int) -> Pipe:
            made = Pipe(port)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture
def files() -> Iterator[Web]:
    with web() as running:
        yield running


def staged(source: object, place: Path, told: list[Progress] | None = None, **settings: Any) -> Manifest:
    """One run in this process; small parts, short patience."""
    own = StageSettings(**{"part_bytes": 1000, "retry_s": 3.0, "stall_s": 5.0, **settings})
    listener = told.append if told is not None else lambda progress: None
    return asyncio.run(stage(Source.parse(str(source)), place, own, listener))


def run(*words: object, variables: dict[str, str] | None = None, **more: Any) -> "subprocess.CompletedProcess[str]":
    """``kopt stage …`` to its end."""
    environment = {**os.environ, **(variables or {})}
    if not more:
        return run_kopt("stage", *words, env=environment)
    return subprocess.run(
        [*KOPT, "stage", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


def content(place: Path) -> dict[str, bytes]:
    """The files of a copy, without what staging keeps."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not path.relative_to(place).parts[0].startswith(".kopt-")
    }
