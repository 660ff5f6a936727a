"""NVIDIA's device plugin 0.17.4 over a stand-in for NVML takes the configurations that are written for it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.kubelet.network import lacking
from nvml_standin.devices import Devices

from kopt.core.sharing.modes import SharingMode
from kopt.formats.sharing_terms import ReplicaSetting, plugin_configuration, read_plugin_configuration

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the stand-in of NVML"),
    pytest.mark.skipif(bool(lacking()), reason=f"mounts of its own need more rights: {lacking()}"),
]
# The plugin has the path of its own socket compiled in.
OWN_FOLDERS = """mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins && exec "$@" """


def log_of(plugin: Path, folder: Path, setting: ReplicaSetting, until: str, strategy: str = "none") -> str:
    """What it logs until a line has ``until``."""
    gpus = Devices(folder / "gpus", gpus=2)
    file = folder / "plugin.yaml"
    flags = {"migStrategy": strategy, "plugin": {"passDeviceSpecs": True}}
    file.write_text(yaml.safe_dump(plugin_configuration(setting, {"version": "v1", "flags": flags})))
    options = ["--device-discovery-strategy=nvml", "--fail-on-init-error", f"--config-file={file}", "--mps-root=/mps"]
    env = {**os.environ, **gpus.environment, "DP_DISABLE_HEALTHCHECKS": "all"}
    inside = ["unshare", "--mount", "sh", "-c", OWN_FOLDERS, "sh", plugin, *options]
    with subprocess.Popen(inside, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if until in line:
                break
        process.kill()
    return "".join(lines)


def configuration_in(log: str) -> Any:
    match = re.search(r"Running with config:\n(\{.*?\n\})", log, re.DOTALL)
    assert match is not None, log
    return json.loads(match[1])


@pytest.mark.parametrize(
    "setting", [ReplicaSetting(SharingMode.TIME_SLICING, 3), ReplicaSetting(SharingMode.EXCLUSIVE)], ids=str
)
def test_it_serves_what_is_configured(nvidia_device_plugin: Path, tmp_path: Path, setting: ReplicaSetting) -> None:
    log = log_of(nvidia_device_plugin, tmp_path, setting, "Starting to serve")
    taken = configuration_in(log)
    assert read_plugin_configuration(taken) == setting
    assert taken["flags"]["plugin"]["passDeviceSpecs"] is True
    assert "Starting to serve 'nvidia.com/gpu'" in log


def test_with_mps_it_offers_nothing_until_the_daemon_is_there(nvidia_device_plugin: Path, tmp_path: Path) -> None:
    setting = ReplicaSetting(SharingMode.MPS, 4)
    # With ``mixed``, which the node had, it would not start at all.
    log = log_of(nvidia_device_plugin, tmp_path, setting, "error waiting for MPS daemon", strategy="mixed")
    assert read_plugin_configuration(configuration_in(log)) == setting
    assert "error waiting for MPS daemon" in log
    assert "Starting to serve" not in log
