"""A real S3 server, and staging in this process or as one that may be killed."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from controlplane import build
from controlplane.processes import Server, free_port
from obstore.store import S3Store

from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.staging import stage
from kopt.core.staging import Manifest, Progress, Source
from tests.staging.servers import Pipe, Web, web

KOPT = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()"]
KEY, SECRET = "stagingtests", "a-secret-that-nobody-prints"


@dataclass
class S3:
    """versitygw over a folder; ``variables`` are what a client needs in its environment."""

    port: int
    store: Any
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        return self.through(f"http://127.0.0.1:{self.port}")

    def through(self, url: str) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": url}  # fmt: skip

    def put(self, key: str, content: bytes, part_bytes: int = 5 << 20) -> None:
        """In parts, as tools upload what is large; its etag is no MD5 then."""
        obstore.put(self.store, key, content, chunk_size=part_bytes)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A real S3 server with the bucket ``data``."""
    folder, port = tmp_path_factory.mktemp("s3"), free_port()
    (folder / "objects" / "data").mkdir(parents=True)
    command = [build.binaries("s3") / "versitygw", "--port", f"127.0.0.1:{port}", "posix", folder / "objects"]
    server = Server("versitygw", command, folder, {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET})
    store = S3Store("data", endpoint=f"http://127.0.0.1:{port}", access_key_id=KEY, secret_access_key=SECRET,
                    region="us-east-1", client_options={"allow_http": True})  # fmt: skip
    server.wait_until(lambda: _answers(port))
    yield S3(port, store, folder / "objects" / "data")
    server.stop()


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


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
    return subprocess.run(
        [*KOPT, "stage", *map(str, words)], env=environment, capture_output=True, text=True, timeout=120, check=False,
        **more,
    )  # fmt: skip


def content(place: Path) -> dict[str, bytes]:
    """The files of a copy, without what staging keeps."""
    return {
        str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*")
        if path.is_file() and not path.relative_to(place).parts[0].startswith(".kopt-")
    }  # fmt: skip
