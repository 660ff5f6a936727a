"""An endpoint in this process, for commands that ask one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asgi_server import served

from kopt.core.settings import Settings
from kopt.models.registry.registry import NotRegisteredError
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.runtime.service import RunTimeService
from kopt.serving.sizing.service import SizingService


class Nothing:
    """A registry without models: the shipped one answers."""

    def resolve(self, name: str, alias: str) -> Any:
        raise NotRegisteredError(f"{name} has no {alias}")

    def load(self, name: str, version: str) -> Any:
        raise AssertionError(name, version)

    def list(self, name: str) -> Any:
        return ()


@contextlib.contextmanager
def shipped_endpoint(home: Path) -> Iterator[str]:
    """The address of an endpoint with the shipped models of sizes, bandwidths and run times."""
    endpoint = assemble(Settings(home=home), Parts(Nothing(), refresh_s=3600))
    endpoint.service(SizingService).refresh()
    endpoint.service(BandwidthService).refresh()
    endpoint.service(RunTimeService).refresh()
    try:
        with served(create_app(endpoint, manage=False)) as url:
            yield url
    finally:
        endpoint.stop()
