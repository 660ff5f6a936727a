"""``kopt`` in this process (fast) and as a command (streams and exit statuses as a shell sees them)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from kopt.data.demand.table import DemandSeries


@dataclass(frozen=True)
class Done:
    """A finished run of ``kopt``."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Kopt = Callable[..., Done]
"""Runs ``kopt`` with arguments."""


@pytest.fixture
def _umask_as_it_was() -> Iterator[None]:
    """A command makes what its process writes private."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture
def kopt(kopt_home: Path, monkeypatch: pytest.MonkeyPatch, _umask_as_it_was: None) -> Callable[..., Done]:
    """Runs ``kopt`` in this process on an empty home."""
    from kopt.cli.main import app

    for name in [name for name in os.environ if name.startswith("KOPT_") and name != "KOPT_HOME"]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        result = CliRunner().invoke(app, list(arguments))
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def command(kopt_home: Path) -> Callable[..., Done]:
    """Runs ``kopt`` as a process of its own on an empty home."""

    def run(*arguments: str, environ: Mapping[str, str] | None = None) -> Done:
        known = {name: value for name, value in os.environ.items() if not name.startswith("KOPT_")}
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from kopt.cli.main import app; app(prog_name='kopt')", *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**known, "KOPT_HOME": str(kopt_home), **(environ or {})},
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def services() -> list[DemandSeries]:
    """Three short synthetic services."""
    return generate(services=3, days=3.0, seed=5)


@pytest.fixture(scope="session")
def demand_folder(services: list[DemandSeries], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in a folder, each with a source of its own."""
    folder = write_demand(services, tmp_path_factory.mktemp("demand") / "demand", source="generator")
    catalogue = folder / "SERIES.csv"
    lines = catalogue.read_text().splitlines()
    for row, line in enumerate(lines[1:], 1):
        lines[row] = line.replace(",generator,", f",source {line.partition(',')[0].partition('/')[0]},")
    catalogue.write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def finite() -> Callable[[object], bool]:
    """Is every number of a JSON document finite?"""

    def check(value: object) -> bool:
        if isinstance(value, dict):
            return all(check(item) for item in value.values())
        if isinstance(value, list):
            return all(check(item) for item in value)
        return not isinstance(value, float) or bool(np.isfinite(value))

    return check


@pytest.fixture
def made_up_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Scripts give a made-up trace; what would have been run. The working folder holds a ``train.py``."""
    from sizing.traces import training

    from kopt.models.sizing import estimate as sizing
    from kopt.tracing.trace import Traced

    found: list[Any] = []

    def traced(call: Any, gpu: Any, **_: Any) -> Traced:
        found.append((call, gpu))
        return Traced(training())

    monkeypatch.setattr(sizing, "trace_script", traced)
    monkeypatch.setattr(sizing, "find_interpreter", lambda asked: asked or "/usr/bin/python3")
    monkeypatch.setenv("KOPT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    return found
