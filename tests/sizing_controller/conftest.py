"""The sizing controller as a process, before a real control plane whose pods truly run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port
from replicas import KOPT, reviewing

CRD = Path(__file__).parents[2] / "deploy" / "chart" / "crds" / "sizingprofiles.yaml"
POLICIES = CRD.with_name("conformancepolicies.yaml")
SYSTEM = "kopt-system"
GPU = "nvidia.com/gpu"
Object = dict[str, Any]


def recording(path: Path, peak_mib: int, rows: int = 150, activity: int = 8) -> Path:
    """What nvidia-smi logs of a run that loads for ten seconds and then trains."""
    lines = ["timestamp, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"]
    for n in range(rows):
        used = min(peak_mib, 100 + peak_mib * n // 10)
        at = f"2026/03/01 10:{n // 60:02d}:{n % 60:02d}.000"
        lines.append(f"{at}, GPU-1, NVIDIA H100 80GB HBM3, {used} MiB, 81559 MiB, {activity} %")
    path.write_text("\n".join([*lines, ""]))
    return path


def job(
    name: str,
    namespace: str,
    script: str,
    *,
    log: Path | None = None,
    selector: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Job for one GPU that runs a shell line; ``log``: what its dry run replays."""
    container: Object = {
        "name": "train",
        "image": "team/train:1",
        "command": ["sh", "-c", script],
        "resources": {"limits": {GPU: "1", "cpu": "100m"}},
    }
    if log is not None:
        container["env"] = [{"name": "KOPT_PROFILE_SOURCE", "value": f"csv:{log}"}]
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "nodeSelector": selector or {},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"template": {"spec": pod}, **spec},
    }


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """The shared control plane with the custom resource, and the namespace of the Lease."""
    control_plane.apply_crds([CRD])
    control_plane.api.namespace(SYSTEM)
    return control_plane


@pytest.fixture(scope="session")
def gpu_node(plane: ControlPlane) -> Iterator[Kubelet]:
    """A node with two H100, one of them cut into slices, whose pods are processes."""
    resources = {GPU: "2", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-2g.20gb": "3", "nvidia.com/mig-3g.40gb": "2"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    with Kubelet(plane, resources=resources, labels=labels, entrypoints={"kopt-agents": KOPT}) as running:
        yield running


@pytest.fixture
def space(plane: ControlPlane) -> Iterator[str]:
    """A namespace in which jobs may be held. Dry runs that are left in it would take GPUs of nodes of later tests."""
    name = plane.api.space("sizing", {"kaiwo.ai/managed": "true"}, {"kaiwo.ai/mode": "enforce"})
    yield name
    plane.api.delete_all("batch/v1", "Job", name, propagationPolicy="Background")


@pytest.fixture
def start_controller(plane: ControlPlane) -> Iterator[Callable[..., Server]]:
    """``start_controller("--fractions")`` starts a replica; all are killed in the end."""
    with ExitStack() as running:
        numbers = iter(range(100))

        def start(*options: str, kubeconfig: Path | None = None) -> Server:
            port = free_port()
            command = [
                *KOPT,
                "controller",
                "sizing",
                "--kubeconfig",
                str(kubeconfig or plane.kubeconfig),
                "--agent-image=kopt-agents:test",
                "--interval=0.02",
                "--duration=20s",
                "--budget=120s",
                f"--port={port}",
                f"--identity=replica-{next(numbers)}",
                *options,
            ]
            server = plane.start_server(f"sizing-{next(numbers)}", command)
            running.callback(server.kill)
            metrics = f"http://127.0.0.1:{port}/metrics"
            server.wait_until(lambda: "\nkopt_sizing_leading 1.0" in httpx.get(metrics, trust_env=False).text)
            return server

        yield start


@pytest.fixture
def webhook(plane: ControlPlane) -> Iterator[Server]:
    """A replica of the webhook."""
    plane.apply_crds([POLICIES])
    with reviewing(plane, "sizing-webhook", SYSTEM) as running:
        yield running
