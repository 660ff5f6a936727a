"""The registry on a real MLflow server, with artefacts that travel over HTTP."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from kopt.core.settings import Settings
from kopt.models.registry.registry import Registry, RegistryError
from tests.models.team_mlflow_server import TeamMlflow

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]
Make = Callable[[float], Path]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TeamMlflow]:
    folder = tmp_path / "server"
    folder.mkdir()
    running = TeamMlflow(folder, (folder / "store").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", running.secret)
    yield running
    running.stop()


def test_models_go_through_a_server_and_are_verified_on_the_other_side(
    server: TeamMlflow, registry: Registry, signed_model: Make, settings: Settings, tmp_path: Path
) -> None:
    assert httpx.post(f"{server.url}/api/2.0/mlflow/experiments/search", json={}).status_code == 401
    assert httpx.get(f"{server.url}/api/2.0/mlflow-artifacts/artifacts").status_code == 401
    training = Registry(replace(settings, mlflow_uri=server.url), predictors=registry._predictors, trusted_digests=())
    version = training.register(signed_model(2.0), metrics={"mase": 0.5}).version
    training.record_decision("ratios", version, passed=True, against="", summary="first")
    training.promote("ratios", version)

    other_machine = Settings(home=tmp_path / "other", mlflow_uri=server.url)
    serving = Registry(other_machine, predictors=registry._predictors, trusted_digests=())
    with pytest.raises(RegistryError, match="not trusted here"):
        serving.load("ratios")
    other_machine.keys.mkdir(parents=True)
    shutil.copy(settings.keys / "signing.pub", other_machine.keys / "training.pub")
    assert serving.load("ratios").predict(10.0)[0].value == 20.0
    assert not (other_machine.keys / "signing.key").exists()

    second = training.register(signed_model(3.0)).version
    (stored,) = [path for path in (tmp_path / "server" / "store").rglob("ratios.json") if "3.0" in path.read_text()]
    stored.write_text("[1.0, 9.0]")
    with pytest.raises(RegistryError, match="changed, added or removed"):
        serving.fetch("ratios", second)

    server.stop()
    began = time.monotonic()
    with pytest.raises(RegistryError, match=server.url):
        serving.resolve("ratios")
    assert time.monotonic() - began < 60
