"""Fixtures that all tests share: a state folder of their own, and the real data where it is."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture
def kopt_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder, named by KOPT_HOME."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("KOPT_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def demand_data_dir() -> Path:
    """The real demand series; absent, the test is skipped, or fails where KOPT_REQUIRE_DATA=1."""
    root = os.environ.get("KOPT_DATA_DIR")
    folder = Path(root) / "demand" if root else None
    if folder is None or not (folder / "demand.parquet").exists():
        message = "KOPT_DATA_DIR does not name a folder with demand/demand.parquet"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder
