"""An endpoint in this process, for commands that ask one."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from kopt.core.settings import Settings
from kopt.models.registry import NotRegisteredError
from kopt.serving.app import create_app
from kopt.serving.build import Parts, assemble


class _Nothing:
    """A registry without models: the shipped one answers."""

    def resolve(self, name: str, alias: str) -> Any:
        raise NotRegisteredError(f"{name} has no {alias}")

    def load(self, name: str, version: str) -> Any:
        raise AssertionError(name, version)

    def list(self, name: str) -> Any:
        return ()


@contextlib.contextmanager
def shipped_endpoint(home: Path) -> Iterator[str]:
    """The address of an endpoint with the shipped model of sizes."""
    endpoint = assemble(Settings(home=home), Parts(_Nothing(), refresh_s=3600))
    assert endpoint.sizing is not None
    endpoint.sizing.refresh()
    server = uvicorn.Server(uvicorn.Config(create_app(endpoint, manage=False), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started and time.monotonic() < until:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)
    endpoint.stop()
