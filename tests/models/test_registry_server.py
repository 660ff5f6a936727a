"""The registry on a real MLflow server, with artefacts that travel over HTTP."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from controlplane.processes import free_port

from kopt.core.settings import Settings
from kopt.models.registry.registry import Registry, RegistryError
from kopt.serving.mlflow_server.secret import tracking_secret

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]
Make = Callable[[float], Path]


class Server:
    """An MLflow server of this test's own, in its own process group."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.store = folder / "store"
        home = folder / "home"
        self.secret = tracking_secret(Settings(home=home))
        script = Path(__file__).with_name("team_mlflow.py")
        command = [sys.executable, "-P", str(script), str(home), str(self.store), str(self.port)]
        self.url = f"http://127.0.0.1:{self.port}"
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
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


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    running = Server(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", running.secret)
    yield running
    running.stop()


def test_models_go_through_a_server_and_are_verified_on_the_other_side(
    server: Server, registry: Registry, signed_model: Make, settings: Settings, tmp_path: Path
) -> None:
    assert httpx.post(f"{server.url}/api/2.0/mlflow/experiments/search", json={}).status_code == 401
    assert httpx.get(f"{server.url}/api/2.0/mlflow-artifacts/artifacts").status_code == 401
    training = Registry(replace(settings, mlflow_uri=server.url), predictors=registry._predictors, known_digests=())
    version = training.register(signed_model(2.0), metrics={"mase": 0.5}).version
    training.record_decision("ratios", version, passed=True, against="", summary="first")
    training.promote("ratios", version)

    other_machine = Settings(home=tmp_path / "other", mlflow_uri=server.url)
    serving = Registry(other_machine, predictors=registry._predictors, known_digests=())
    with pytest.raises(RegistryError, match="not trusted here"):
        serving.load("ratios")
    other_machine.keys.mkdir(parents=True)
    shutil.copy(settings.keys / "signing.pub", other_machine.keys / "training.pub")
    assert serving.load("ratios").predict(10.0)[0].value == 20.0
    assert not (other_machine.keys / "signing.key").exists()

    second = training.register(signed_model(3.0)).version
    (stored,) = [path for path in server.store.rglob("ratios.json") if "3.0" in path.read_text()]
    stored.write_text("[1.0, 9.0]")
    with pytest.raises(RegistryError, match="changed, added or removed"):
        serving.fetch("ratios", second)

    server.stop()
    began = time.monotonic()
    with pytest.raises(RegistryError, match=server.url):
        serving.resolve("ratios")
    assert time.monotonic() - began < 60
