"""``kopt mlflow`` gives the home's owner the way into MLflow, and nobody else."""

from pathlib import Path

import pytest

from kopt.cli.local import state
from kopt.core.settings import Settings
from kopt.serving.mlflow_server.secret import SecretError, tracking_secret
from tests.cli.conftest import Kopt


def test_the_link_and_the_clients_variables_are_shown_while_the_platform_runs(kopt: Kopt, kopt_home: Path) -> None:
    with state.hold(kopt_home):
        state.write(kopt_home, state.Running(1, "http://a:1", "http://b:2", "http://127.0.0.1:8702"))
        shown = kopt("mlflow", "-o", "json").json
    secret = (kopt_home / "keys" / "mlflow.token").read_text().strip()
    assert len(secret) == 64
    assert shown["link"] == f"http://kopt:{secret}@127.0.0.1:8702/"
    assert (shown["MLFLOW_TRACKING_URI"], shown["MLFLOW_TRACKING_TOKEN"]) == ("http://127.0.0.1:8702", secret)


def test_without_a_platform_it_says_how_to_start_one(kopt: Kopt) -> None:
    done = kopt("mlflow")
    assert done.status == 1
    assert "kopt up" in done.err


def test_the_secret_is_made_once_private_and_refused_when_others_read_it(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    first = tracking_secret(settings)
    assert tracking_secret(settings) == first
    path = settings.keys / "mlflow.token"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(SecretError, match=r"may be read by others"):
        tracking_secret(settings)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(SecretError, match="no secret of 16"):
        tracking_secret(settings)
