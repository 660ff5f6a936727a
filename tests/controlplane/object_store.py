"""A real S3 server (versitygw) over a folder."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from controlplane import build
from controlplane.processes import Server, free_port
from obstore.store import S3Store

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
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
        }

    def put(self, key: str, content: bytes, part_bytes: int = 5 << 20) -> None:
        """In parts, as tools upload what is large; its etag is no MD5 then."""
        obstore.put(self.store, key, content, chunk_size=part_bytes)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A real S3 server with the bucket ``data``."""
    with server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@contextmanager
def server(folder: Path) -> Iterator[S3]:
    """The same, over ``folder``, while the block runs."""
    port = free_port()
    (folder / "objects" / "data").mkdir(parents=True)
    command = [build.binaries("s3") / "versitygw", "--port", f"127.0.0.1:{port}", "posix", folder / "objects"]
    running = Server("versitygw", command, folder, {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET})
    store = S3Store(
        "data",
        endpoint=f"http://127.0.0.1:{port}",
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    running.wait_until(lambda: _answers(port))
    yield S3(port, store, folder / "objects" / "data")
    running.stop()


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
