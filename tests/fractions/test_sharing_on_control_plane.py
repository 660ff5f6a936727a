"""``kopt fractions sharing`` on a real API server and Prometheus: its manifests are taken as they are."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from controlplane.plane import ControlPlane
from typer.testing import CliRunner

from kopt.cli.main import app
from tests.gpu_history import Metric, dcgm, history
from tests.prometheus_server import RunningPrometheus

pytestmark = [pytest.mark.services, pytest.mark.long]
GPU = "nvidia.com/gpu"
LABELS = {
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
}


@pytest.fixture
def run(control_plane: ControlPlane) -> Callable[..., str]:
    def invoke(*arguments: str) -> str:
        command = ["fractions", "sharing", "plan", "--kubeconfig", str(control_plane.kubeconfig), *arguments]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[Callable[[str], RunningPrometheus]]:
    """A Prometheus with an hour of four services in a namespace, each alone on a GPU."""
    started: list[RunningPrometheus] = []

    def start(space: str) -> RunningPrometheus:
        values = {"SM_ACTIVE": 0.05, "GR_ENGINE_ACTIVE": 0.2}
        metrics = [
            Metric(f"DCGM_FI_PROF_{field}", dcgm(space, f"chat-{number}", number), value, 3600.0)
            for field, value in values.items()
            for number in range(4)
        ]
        memory = [Metric("DCGM_FI_DEV_FB_USED", dcgm(space, f"chat-{at}", at), 8192.0, 3600.0) for at in range(4)]
        started.append(RunningPrometheus(tmp_path, history(*metrics, *memory)))
        return started[0]

    yield start
    for served in started:
        served.stop()


def test_manifests_are_taken_and_the_node_is_then_waited_for(
    control_plane: ControlPlane, run: Callable[..., str], measured: Callable[[str], RunningPrometheus]
) -> None:
    api, space = control_plane.api, control_plane.api.space("sharing")
    name = f"{space}-gpu"
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": LABELS}})
    try:
        status = {"capacity": {GPU: "4"}, "allocatable": {GPU: "4"}}
        headers = {"Content-Type": "application/merge-patch+json"}
        api.request("PATCH", f"/api/v1/nodes/{name}/status", json={"status": status}, headers=headers)
        for number in range(4):
            container = {"name": "main", "image": "x", "resources": {"limits": {GPU: "1"}}}
            spec = {"nodeName": name, "containers": [container]}
            metadata = {"name": f"chat-{number}", "namespace": space, "labels": {"kaiwo.ai/class": "inference"}}
            api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        template = {"metadata": {"labels": {"app": "mps"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        spec = {"selector": {"matchLabels": {"app": "mps"}}, "template": template}
        metadata = {"name": "nvidia-device-plugin-mps-control-daemon", "namespace": space}
        api.create({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
        served = measured(space)
        options = ("--config-map", f"{space}/plugin", "--node", name, "--prometheus", served.url, "--since", "1h")
        metadata = {"name": "plugin", "namespace": space}
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"default": "version: v1"}})
        command = ["fractions", "sharing", "apply", *options, "--kubeconfig", str(control_plane.kubeconfig)]
        refused = CliRunner().invoke(app, [*command, "--dry-run"])
        # It is planned by the same measurements, and the pods that they are of are in the way.
        assert (refused.exit_code, f"{space}/chat-0, {space}/chat-1" in refused.output) == (1, True), refused.output
        manifests = list(yaml.safe_load_all(run(*options, "--manifests")))
        assert [item["kind"] for item in manifests] == ["ConfigMap", "Node"]
        for item in manifests:
            api.apply(item)
        node = api.get("v1", "Node", name, "")
        assert node["metadata"]["labels"]["nvidia.com/device-plugin.config"] == "kopt-mps-2"
        (row,) = yaml.safe_load(run(*options, "-o", "yaml"))["nodes"]
        # No plugin runs here, so that feature discovery does not say so.
        assert (row["reason"], row["in_force"]) == ("SHARING_NOT_IN_FORCE", "exclusive")
    finally:
        api.delete("v1", "Node", name, "")
