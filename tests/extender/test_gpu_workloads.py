"""GPUWorkload and NodeTopology: what they ask for and tell, on the real API server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from controlplane.api import Refused
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_scheduling_by_the_policy import bound, indices

Start = Callable[..., RunningExtender]
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
MANIFEST = """
apiVersion: kgwe.nvidia.io/v1
kind: GPUWorkload
metadata: {name: llm-training-job}
spec:
  gpuRequirements:
    count: 8
    minMemoryGB: 40
    topology: {preference: NVLinkOptimal, minBandwidthGBps: 600}
  workloadType: DistributedTraining
  framework: PyTorch
"""
WORKLOAD_LABEL = "kgwe.nvidia.io/workload"
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.apply_crds([CRDS / "gpuworkloads.yaml", CRDS / "nodetopologies.yaml"])
    yield control_plane
    for kind in ("gpuworkloads.kgwe.nvidia.io", "nodetopologies.kaiwo.ai"):
        control_plane.api.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", kind)
        wait_for(
            lambda kind=kind: (
                control_plane.api.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", kind) is None
            )
        )


def workload(space: str, **topology: object) -> Object:
    document = yaml.safe_load(MANIFEST)
    document["metadata"]["namespace"] = space
    if topology:
        document["spec"]["gpuRequirements"]["topology"] = topology
    return dict(document)


def of_workload(name: str, space: str, gpus: int, selector: dict[str, str]) -> Object:
    return gpu_pod(name, space, gpus, scheduler=space, labels={WORKLOAD_LABEL: "llm-training-job"}, selector=selector)


def test_its_pods_go_where_the_memory_is_and_its_status_tells_where(
    plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = plane.api
    space = api.space("ext-memory")
    with (
        kwok.nodes(2, gpus=8, labels=T4 | {"pool": space}),
        kwok.nodes(1, gpus=8, labels=A100 | {"pool": space}) as big,
    ):
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(workload(space))
        status = lambda: api.get("kgwe.nvidia.io/v1", "GPUWorkload", "llm-training-job", space).get("status", {})  # noqa: E731
        for number in range(2):
            api.create(of_workload(f"rank-{number}", space, 4, {"pool": space}))
            assert bound(api, f"rank-{number}", space)["spec"]["nodeName"] == big[0]
        wait_for(lambda: status().get("phase") == "Placed")
        placements = status()["placements"]
        assert [one["pod"] for one in placements] == ["rank-0", "rank-1"]
        assert {one["node"] for one in placements} == {big[0]}
        assert sorted(gpu for one in placements for gpu in one["gpuIndices"]) == list(range(8))
        assert status()["placedGpus"] == 8
        # A third finds room on GPUs with too little memory only, and waits for the right ones.
        api.create(of_workload("rank-2", space, 4, {"pool": space}))
        why = wait_for(lambda: decided(extender, space, "rank-2"))
        assert why["rejected"] == [{"code": "GPU_MEMORY", "nodes": 2, "reason": "GPUs with less memory than asked for"}]
        api.delete("v1", "Pod", "rank-0", space, gracePeriodSeconds=0)
        assert bound(api, "rank-2", space)["spec"]["nodeName"] == big[0]
        wait_for(lambda: [one["pod"] for one in status()["placements"]] == ["rank-1", "rank-2"])


def nvlink_pairs(node: str) -> Object:
    """Four GPUs, of which 0-3 and 1-2 have NVLink; two switches, two NUMA nodes."""
    gpus = [{"index": index, "numa": index // 2, "memoryBytes": 80 << 30} for index in range(4)]
    fast = {"type": "NVLINK", "count": 12}
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    links = [{"a": a, "b": b} | (fast if (a, b) in ((0, 3), (1, 2)) else {"type": "SYS"}) for a, b in pairs]
    return {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "NodeTopology",
        "metadata": {"name": node},
        "spec": {"tool": "nvidia-smi", "vendor": "nvidia", "gpus": gpus, "links": links},
    }


@pytest.mark.parametrize(
    ("preference", "possible"),
    [("NVLinkOptimal", [[0, 3], [1, 2]]), ("SameNUMA", [[0, 1], [2, 3]]), ("Spread", [[0, 2], [0, 3], [1, 2], [1, 3]])],
)
def test_gpus_lie_as_preferred(
    plane: ControlPlane, kwok: Kwok, start_extender: Start, preference: str, possible: list[list[int]]
) -> None:
    api = plane.api
    space = api.space(f"ext-{preference.lower()}")
    with kwok.nodes(2, gpus=4, labels=A100) as nodes:
        api.create(nvlink_pairs(nodes[1]))
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(workload(space, preference=preference, required=preference == "NVLinkOptimal"))
        for number in range(2):
            api.create(of_workload(f"pair-{number}", space, 2, nodes.selector))
            pod = bound(api, f"pair-{number}", space)
            # Node 0 has room as well, but nobody knows how its GPUs are linked.
            assert pod["spec"]["nodeName"] == nodes[1]
            assert indices(pod) in possible
        if preference == "NVLinkOptimal":
            api.create(of_workload("pair-2", space, 2, nodes.selector))
            why = wait_for(lambda: decided(extender, space, "pair-2"))
            assert why["outcome"] == "refused"
            assert {one["code"] for one in why["rejected"]} == {"TOPOLOGY", "GPU_FREE"} or why["rejected"][0][
                "code"
            ] == "TOPOLOGY"
            assert not api.get("v1", "Pod", "pair-2", space)["spec"].get("nodeName")


def decided(extender: RunningExtender, space: str, pod: str) -> Object | None:
    answer = extender.http.get("/explain", params={"pod": f"{space}/{pod}"})
    return dict(answer.json()) if answer.is_success else None


def test_a_contradictory_topology_costs_only_itself(plane: ControlPlane, kwok: Kwok, start_extender: Start) -> None:
    api = plane.api
    space = api.space("ext-contradiction")
    with kwok.nodes(1, gpus=4) as nodes:
        wrong = nvlink_pairs(nodes[0])
        wrong["spec"]["links"].append({"a": 3, "b": 0, "type": "SYS"})
        api.create(wrong)
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(gpu_pod("one", space, scheduler=space, selector=nodes.selector))
        assert bound(api, "one", space)["spec"]["nodeName"] == nodes[0]
        assert "second one" in extender.server.tail()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("topology", {"preference": "Fastest"}),
        ("count", -1),
        ("minMemoryGB", "a lot"),
        ("topology", {"required": "yes"}),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_schema(plane: ControlPlane, path: str, value: object) -> None:
    space = plane.api.space("ext-schema")
    document = workload(space)
    document["spec"]["gpuRequirements"][path] = value
    with pytest.raises(Refused, match=path):
        plane.api.create(document)
