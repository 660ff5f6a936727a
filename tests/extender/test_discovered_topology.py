"""From what a node's agent discovers to the GPUs that a pod gets."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import node_outputs as outputs
import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_scheduling_by_the_policy import bound, indices

KOPT = Path(sys.executable).with_name("kopt")
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
DEFINITION = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.memory": "32768"}


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.apply_crds([CRDS / "gpuworkloads.yaml", CRDS / "nodetopologies.yaml"])
    yield control_plane
    for kind in ("gpuworkloads.kgwe.nvidia.io", "nodetopologies.kaiwo.ai"):
        control_plane.api.delete(*DEFINITION, kind)
        wait_for(lambda kind=kind: control_plane.api.find(*DEFINITION, kind) is None)


def workload(space: str) -> Object:
    topology = {"preference": "NVLinkOptimal", "required": True}
    return {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "training", "namespace": space},
        "spec": {"gpuRequirements": {"count": 4, "topology": topology}},
    }


def test_a_pod_gets_the_linked_gpus_of_the_node_whose_agent_found_them(
    plane: ControlPlane, kwok: Kwok, start_extender: Callable[..., RunningExtender], tmp_path: Path
) -> None:
    api, space = plane.api, plane.api.space("ext-discovered")
    with kwok.nodes(2, gpus=8, labels=V100) as nodes:
        folder = outputs.cube_mesh(tmp_path / "recorded")
        arguments = ["agent", "topology", "--node", nodes[1], "--replay", folder, "--interval", "3600"]
        agent = plane.start_server("topology-discovered", [KOPT, *arguments], {"KUBECONFIG": str(plane.kubeconfig)})
        try:
            api.wait("kaiwo.ai/v1alpha1", "NodeTopology", nodes[1], namespace="")
            extender = start_extender(plane, space)
            extender.start_scheduler(space)
            api.create(workload(space))
            label = {"kgwe.nvidia.io/workload": "training"}
            first = gpu_pod("first", space, 4, scheduler=space, labels=label, selector=nodes.selector)
            api.create(first)
            pod = bound(api, "first", space)
            assert pod["spec"]["nodeName"] == nodes[1]
            # Of all four GPUs of the mesh these have the most links among them: nine, and a ring of two each.
            assert indices(pod) in ([0, 1, 2, 3], [4, 5, 6, 7])
            left = sorted(set(range(8)) - set(indices(pod)))
            # The other half loses two GPUs' links to one another: the agent says so before a pod asks for it.
            broken = {pair: count for pair, count in outputs.CUBE_MESH.items() if not {*pair} <= set(left)}
            outputs.cube_mesh(folder, broken)
            agent.signal(signal.SIGHUP)
            api.wait("kaiwo.ai/v1alpha1", "NodeTopology", nodes[1], lambda one: one["status"].get("degraded"), "", 90)
            second = gpu_pod("second", space, 4, scheduler=space, labels=label, selector=nodes.selector)
            api.create(second)
            why = wait_for(lambda: refused(extender, space, "second"), timeout_s=90, what="the refusal")
            assert "TOPOLOGY" in {one["code"] for one in why["rejected"]}
            assert not api.get("v1", "Pod", "second", space)["spec"].get("nodeName")
        finally:
            agent.stop()


def refused(extender: RunningExtender, space: str, pod: str) -> Object | None:
    answer = extender.http.get("/explain", params={"pod": f"{space}/{pod}"})
    found = dict(answer.json()) if answer.is_success else {}
    return found if found.get("outcome") == "refused" else None
