"""Stores of their own, small series with known shapes, and a real Redis."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from controlplane.processes import free_port, wait_for

from kopt.core.settings import Settings
from kopt.data.demand.table import DemandSeries
from kopt.features.store import DemandFeatureStore

MONDAY_S = 1_700_438_400.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def store(settings: Settings) -> DemandFeatureStore:
    return DemandFeatureStore(settings)


@pytest.fixture
def daily() -> Callable[..., DemandSeries]:
    """Returns a builder of series with a daily shape: ``daily(name, buckets=600, seed=0, **fields)``."""

    def build(name: str = "chat", buckets: int = 600, seed: int = 0, **fields: object) -> DemandSeries:
        noise = np.random.default_rng(seed).gamma(4.0, 0.25, buckets)
        value = 50.0 * (1.2 + np.sin(np.arange(buckets) / 288 * 2 * np.pi)) * noise
        known: dict[str, object] = {"start_s": MONDAY_S, "step_s": 300, "start_known": True}
        return DemandSeries(name=name, value=value, **(known | fields))  # type: ignore[arg-type]

    return build


class RunningRedis:
    """A Redis server on a free loopback port, in memory only; ``start`` and ``stop`` as often as wanted."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.port = free_port()
        self._folder, self._password = folder, password
        self.start()

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        options += ["--requirepass", self._password] if self._password else []
        self.process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        wait_for(lambda: socket.create_connection(("127.0.0.1", self.port)).close() is None, what="redis-server")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Callable[..., RunningRedis]]:
    """Starts real Redis servers: ``redis_server(password="").port``. Needs the Debian package ``redis-server``."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    running: list[RunningRedis] = []

    def start(password: str = "") -> RunningRedis:
        running.append(RunningRedis(tmp_path, password))
        return running[-1]

    yield start
    for server in running:
        server.stop()
