"""NVIDIA's device plugin 0.17.4 over a stand-in for NVML takes the configurations that are written for it, and with its
config-manager those that ``kopt fractions sharing apply`` sets on a node of the process kubelet.

What the kubelet does for a ConfigMap that a pod mounts, and for a container that ended, a thread and a shell loop do.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.kubelet import DeviceManager, Kubelet
from controlplane.kubelet.network import lacking
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from nvml_standin.devices import Devices
from typer.testing import CliRunner

from kopt.cli.main import app
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


GPU = "nvidia.com/gpu"
# As in the plugin's DaemonSet: the init container, the plugin, and the config-manager that signals it by its name.
AS_IN_ITS_POD = """
mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
mount --bind "$PLUGINS" /var/lib/kubelet/device-plugins
"$MANAGER" --oneshot --send-signal=false || exit 1
(exec -a nvidia-device-plugin "$PLUGIN" --device-discovery-strategy=nvml --fail-on-init-error \
  --config-file="$CONFIG_FILE_DST" --mps-root=/mps) &
while :; do "$MANAGER"; sleep 1; done
"""


@contextmanager
def mounted(plane: ControlPlane, space: str, folder: Path) -> Iterator[None]:
    """The ConfigMap as files, brought up to date."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(0.2):
            data = plane.api.get("v1", "ConfigMap", "configurations", space)["data"]
            for name, text in data.items():
                if not (folder / name).exists():
                    (folder / f"..{name}").write_text(text)
                    (folder / f"..{name}").rename(folder / name)
            for path in folder.iterdir():
                if path.name not in data and not path.name.startswith(".."):
                    path.unlink()

    folder.mkdir()
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        wait_for(lambda: (folder / "default").exists(), what="the ConfigMap is mounted")
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.cluster
def test_a_node_is_shared_as_applied_and_whole_again_as_undone(
    control_plane: ControlPlane, nvidia_device_plugin: Path, tmp_path: Path
) -> None:
    api, space = control_plane.api, control_plane.api.space("sharing-plugin")
    configuration = {"default": "version: v1\nflags: {plugin: {passDeviceSpecs: true}}\n"}
    metadata = {"name": "configurations", "namespace": space}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": configuration})
    with ExitStack() as parts:
        nodes: list[Kubelet] = []
        devices = DeviceManager(resized=lambda resource, count: nodes[0].resize(resource, count))
        parts.callback(devices.stop)
        node = parts.enter_context(Kubelet(control_plane, devices=devices))
        nodes.append(node)
        parts.enter_context(mounted(control_plane, space, tmp_path / "available"))
        env = {
            **Devices(tmp_path / "gpus", gpus=2).environment,
            "DP_DISABLE_HEALTHCHECKS": "all",
            "PLUGIN": str(nvidia_device_plugin),
            "PLUGINS": str(devices.plugins),
            "MANAGER": str(nvidia_device_plugin.with_name("config-manager")),
            "KUBECONFIG": str(control_plane.kubeconfig),
            "NODE_NAME": node.name,
            "CONFIG_FILE_SRCDIR": str(tmp_path / "available"),
            "CONFIG_FILE_DST": str(tmp_path / "config.yaml"),
            "DEFAULT_CONFIG": "default",
        }
        # A namespace of processes, as pods share theirs: what is signalled is looked for by name.
        inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", AS_IN_ITS_POD]
        server = control_plane.start_server(f"nvidia-{node.name}", inside, env)
        parts.callback(server.kill)

        def state() -> tuple[str | None, str, bool]:
            document = api.get("v1", "Node", node.name, "")
            label = document["metadata"]["labels"].get("nvidia.com/device-plugin.config")
            return label, document["status"]["allocatable"].get(GPU, "0"), "unschedulable" in document["spec"]

        server.wait_until(lambda: state() == (None, "2", False), what="the plugin has registered")
        common = ["--node", node.name, "--config-map", f"{space}/configurations"]
        common += ["--kubeconfig", str(control_plane.kubeconfig), "--timeout", "60s", "-o", "json"]
        setting = ["--mode", "time-slicing", "--replicas", "4", "--settle", "1s"]
        for verb, options, after in (
            ("apply", setting, ("kopt-time-slicing-4", "8", False)),
            ("undo", [], (None, "2", False)),
        ):
            result = CliRunner().invoke(app, ["fractions", "sharing", verb, *options, *common])
            assert result.exit_code == 0, (result.output, server.tail())
            assert state() == after
        kept = api.get("v1", "ConfigMap", "configurations", space)["data"]
        assert kept == configuration
