"""A node whose GPUs are the stand-in's."""

from pathlib import Path

import pytest
from nvml_standin.devices import Devices, load
from nvml_standin.executors import Node


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = Devices(tmp_path / "devices")
    for name, value in devices.environment.items():
        monkeypatch.setenv(name, value)
    return Node(tmp_path, devices, load())
