"""Environments of trainers, and scripts run under the probe in them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sizing.probing import PROBE, SCRIPTS, Run, start

# `make test` looks at the newest torch; `make test-torch` names them all.
ENVIRONMENTS = os.environ.get("KOPT_TRAINER_ENVIRONMENTS", "newest").split()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trainers: needs an environment of scripts/trainer-env.sh (gigabytes, cached)")


@pytest.fixture(scope="session", params=ENVIRONMENTS)
def torch_python(request: pytest.FixtureRequest, trainer_python: Callable[[str], str]) -> str:
    """The interpreter of each environment that is asked for."""
    return trainer_python(request.param)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fake device is kept: compiling it takes longer than most scripts."""
    return tmp_path_factory.mktemp("fake-device")


@pytest.fixture(scope="session")
def probe(torch_python: str, tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Callable[..., Run]:
    """``probe("script.py", "--flag", world_size=8)`` runs one of ``scripts/`` in a folder of its own."""

    def run(script: str, *arguments: str, world_size: int = 1, **environment: str) -> Run:
        folder = tmp_path_factory.mktemp("script")
        source = SCRIPTS / script
        shutil.copytree(source.parent, folder, dirs_exist_ok=True)
        extra = {"KOPT_PROBE_CACHE": str(compiled), "KOPT_PROBE_WORLD_SIZE": str(world_size), **environment}
        return start([torch_python, str(PROBE), source.name, *arguments], folder, extra)

    return run
