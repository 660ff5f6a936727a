"""A training that is told to end closes its run, leaves no process and no folder, and goes on where it was."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kopt.core.settings import Settings
from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from kopt.models.registry.mlflow import connect


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary folder with a short name: Ray's sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="kt", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_sigterm_ends_a_training_cleanly(kopt_home: Path, tmp_path: Path, scratch: Path) -> None:
    write_demand(generate(3, 4.0, seed=1), tmp_path / "data")
    command = [str(Path(sys.executable).with_name("kopt")), "train", "demand", "--data", str(tmp_path / "data")]
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            command, stderr=err, stdout=err, env={**os.environ, "TMPDIR": str(scratch)}, start_new_session=True
        )
    told = _wait_for(tmp_path / "err", "start Ray", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=200) == 130, told
    said = (tmp_path / "err").read_text()
    assert "the same command resumes it" in said
    assert "SIGTERM received" not in said, "Ray's handler aborted the process"
    assert not list(scratch.glob("kopt-*"))

    client = connect(Settings(home=kopt_home))
    (experiment,) = (one for one in client.search_experiments() if one.name != "Default")
    states = {run.info.status for run in client.search_runs([experiment.experiment_id])}
    assert "KILLED" in states
    assert "RUNNING" not in states


def _wait_for(file: Path, text: str, process: subprocess.Popen[bytes]) -> str:
    for _ in range(1200):
        said = file.read_text()
        if text in said:
            return said
        assert process.poll() is None, said
        time.sleep(0.1)
    raise AssertionError(f"{text!r} was not said in two minutes: {file.read_text()}")
