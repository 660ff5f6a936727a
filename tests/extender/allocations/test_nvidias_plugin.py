"""NVIDIA's device plugin 0.17.4 with the process kubelet: what it gives out, and books that know of it.

Its NVML is the stand-in of tests/nvml_standin: eight GPUs, of which 0 and 1, 2 and 3 and so on have an NVLink.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import node_outputs as outputs
import pytest
from controlplane.kubelet import DeviceManager, Kubelet
from controlplane.kubelet.network import lacking
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from nvml_standin.devices import Devices
from replicas import KOPT

from tests.extender.allocations.test_what_nodes_gave import KIND, counted, plane, trainer
from tests.extender.conftest import Object, RunningExtender
from tests.extender.test_scheduling_by_the_policy import bound, indices

__all__ = ["plane"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the stand-in of NVML"),
    pytest.mark.skipif(bool(lacking()), reason=f"mounts of its own need more rights: {lacking()}"),
]
GPU = "nvidia.com/gpu"
# The plugin has the path of its own socket compiled in.
OF_THE_NODE = """mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
mount --bind "$1" /var/lib/kubelet/device-plugins && shift && exec "$@" """
SHARED = """version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


@contextmanager
def node_with_plugin(
    control_plane: ControlPlane, plugin: Path, folder: Path, configuration: str = ""
) -> Iterator[tuple[Kubelet, DeviceManager, Devices]]:
    """A node whose GPUs NVIDIA's plugin registers, and its agent."""
    folder.mkdir()
    with ExitStack() as parts:
        nodes: list[Kubelet] = []
        devices = DeviceManager(resized=lambda resource, count: nodes[0].resize(resource, count))
        parts.callback(devices.stop)
        node = parts.enter_context(Kubelet(control_plane, devices=devices, labels={"nvidia.com/gpu.product": "H100"}))
        nodes.append(node)
        gpus = Devices(folder / "gpus", gpus=8)
        for number in range(8):
            # Not only zeros, which nvidia-smi's readers take for a UUID that somebody masked.
            gpus.state.gpus[number].uuid = outputs.uuid(number + 1).encode()
        options = ["--device-discovery-strategy=nvml", "--fail-on-init-error"]
        if configuration:
            (folder / "plugin.yaml").write_text(configuration)
            options.append(f"--config-file={folder / 'plugin.yaml'}")
        env = {**gpus.environment, "DP_DISABLE_HEALTHCHECKS": "all"}
        inside = ["unshare", "--mount", "sh", "-c", OF_THE_NODE, "sh", str(devices.plugins)]
        server = control_plane.start_server(f"nvidia-{node.name}", [*inside, plugin, *options], env)
        parts.callback(server.kill)
        server.wait_until(lambda: node_offers(control_plane, node.name) > 0, what="the plugin has registered")
        recorded = outputs.record(folder / "recorded", **tools(gpus))
        agent = [*KOPT, "agent", "topology", "--node", node.name, "--replay", str(recorded), "--interval", "3600"]
        running = control_plane.start_server(
            f"topology-{node.name}",
            [*agent, "--pod-resources", str(devices.pod_resources)],
            {"KUBECONFIG": str(control_plane.kubeconfig)},
        )
        parts.callback(running.stop)
        control_plane.api.wait(*KIND, node.name, namespace="")
        yield node, devices, gpus


def tools(gpus: Devices) -> Mapping[str, str]:
    """What nvidia-smi would print of the same GPUs."""
    pairs = {(number, number + 1): 1 for number in range(0, 8, 2)}
    listed = "".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: {gpus.uuid(number)})\n" for number in range(8))
    return {"nvidia_smi_topo": outputs.topo_m(8, pairs), "nvidia_smi_list": listed}


def node_offers(control_plane: ControlPlane, name: str) -> int:
    return int(control_plane.api.get("v1", "Node", name, "")["status"]["allocatable"].get(GPU, 0))


def test_what_the_plugin_gives_is_what_books_and_annotations_say(
    plane: ControlPlane, start_extender: Callable[..., RunningExtender], nvidia_device_plugin: Path, tmp_path: Path
) -> None:
    api, space = plane.api, plane.api.space("ext-nvidia")
    with node_with_plugin(plane, nvidia_device_plugin, tmp_path / "node") as (node, devices, gpus):
        assert node_offers(plane, node.name) == 8
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        for number, size in enumerate((1, 2, 1, 4)):
            pod = trainer(f"pod-{number}", space, size, node)
            pod["spec"]["containers"][0]["command"] = ["sh", "-c", "echo gpus $NVIDIA_VISIBLE_DEVICES; sleep 600"]
            api.create(pod)
            bound(api, f"pod-{number}", space)
            wait_for(lambda number=number: sum(counted(extender).values()) == number + 1, what="the node has said")
        for number in range(4):
            name = f"pod-{number}"
            pod = api.wait("v1", "Pod", name, settled(devices, gpus), space)
            given = sorted(gpus.uuid(gpu) for gpu in indices(pod))
            path = f"/api/v1/namespaces/{space}/pods/{name}/log"
            log = wait_for(lambda path=path: api.request("GET", path).text, what="its log")
            # The plugin itself has told the container which GPUs it may see.
            assert sorted(log.split()[1].split(",")) == given
            assert extender.explain(space, name)["gpu_indices"] == indices(pod)
        assert set(counted(extender)) <= {"followed", "differs"}


def settled(devices: DeviceManager, gpus: Devices) -> Callable[[Object], bool]:
    """Whether a pod's annotation names the GPUs that it has."""

    def check(pod: Object) -> bool:
        return sorted(gpus.uuid(gpu) for gpu in indices(pod)) == devices.of(pod["metadata"]["name"])

    return check


def test_shares_of_a_gpu_are_not_taken_for_gpus(
    plane: ControlPlane, start_extender: Callable[..., RunningExtender], nvidia_device_plugin: Path, tmp_path: Path
) -> None:
    api, space = plane.api, plane.api.space("ext-slices")
    with node_with_plugin(plane, nvidia_device_plugin, tmp_path / "node", SHARED) as (node, devices, _):
        assert node_offers(plane, node.name) == 32
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(trainer("shares", space, 1, node))
        bound(api, "shares", space)
        wait_for(lambda: counted(extender) == {"parts": 1}, what="the node has said")
        (device,) = devices.of("shares")
        assert "::" in device
        told = api.get(*KIND, node.name, "")["status"]["allocations"]
        assert [one["devices"] for one in told] == [[device]]
        assert extender.explain(space, "shares")["followed"] == "parts"
