"""The process of ``team_mlflow.py``, for tests of a registry that several machines share."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from controlplane.processes import free_port

from kopt.core.settings import Settings
from kopt.serving.mlflow_server.secret import tracking_secret


class TeamMlflow:
    """An MLflow server of this test's own, in its own process group."""

    def __init__(self, folder: Path, artefacts: str, database: str = "", **variables: str) -> None:
        self.port = free_port()
        home = folder / "home"
        self.secret = tracking_secret(Settings(home=home))
        script = Path(__file__).with_name("team_mlflow.py")
        command = [sys.executable, "-P", str(script), str(home), artefacts, str(self.port), database]
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {**os.environ, **variables}
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self._wait(folder / "log")

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        self.stop()
        pytest.fail(f"MLflow did not start: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
