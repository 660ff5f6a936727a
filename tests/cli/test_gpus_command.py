"""``kopt gpus``: each GPU with its holders and what is wrong with it, from objects as drivers and schedulers write."""

from typing import Any

import pytest
from controlplane.plane import ControlPlane

from kopt.cli.cluster.gpus import answer
from kopt.cli.output import FORMATTERS, Format
from kopt.cluster.objects.custom.node_health import HealthRecord, status_of
from kopt.controllers.overview.devices.gpus import GpuDocuments, gpus_of_documents
from kopt.controllers.overview.reduced import reduced_node
from kopt.core.decision import Mode
from kopt.core.hardware.health import Grade, NodeHealth
from kopt.core.scheduling.devices import GpuDevice
from kopt.core.scheduling.gpu_map import GpuActivity, map_node
from tests.cli.conftest import Kopt

Object = dict[str, Any]
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def node(name: str, amounts: dict[str, str], *, cordoned: bool = False, ready: str = "True") -> Object:
    allocatable = {"cpu": "8", "memory": "64Gi", **amounts}
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(name: str, on: str, *, resource: str = GPU, count: str = "1", **annotations: str) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "research",
            "uid": name,
            "annotations": {f"kaiwo.ai/{key.replace('_', '-')}": value for key, value in annotations.items()},
        },
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"limits": {resource: count}}}]},
        "status": {"phase": "Running"},
    }


def listed(**documents: list[Any]) -> tuple[GpuDevice, ...]:
    names = ("nodes", "pods", "topologies", "bandwidths", "slices", "claims")
    return gpus_of_documents(GpuDocuments(*(documents.get(name, []) for name in names))).gpus


def holders(gpu: GpuDevice) -> list[tuple[str, int, bool]]:
    return [(holder.pod, holder.milli_gpu, holder.assumed) for holder in gpu.holders]


def test_a_pod_has_the_gpus_that_its_annotation_names_and_others_are_assumed() -> None:
    gpus = listed(
        nodes=[node("a", {GPU: "3"})],
        pods=[pod("named", "a", gpu_indices="2"), pod("other", "a")],
    )
    assert [gpu.name for gpu in gpus] == ["0", "1", "2"]
    assert [gpu.state for gpu in gpus] == ["held", "free", "held"]
    assert holders(gpus[0]) == [("other", 1000, True)]
    assert holders(gpus[2]) == [("named", 1000, False)]
    assert gpus[0].model == "NVIDIA-H100-80GB-HBM3"


def test_a_pod_has_the_gpus_that_its_kubelet_gave_it_whatever_its_annotation_names() -> None:
    told = {
        "metadata": {"name": "a"},
        "status": {
            "observedAt": "2026-01-01T00:00:10Z",
            "allocations": [
                {"namespace": "research", "pod": "named", "resource": GPU, "devices": ["GPU-0"], "gpus": [0]},
                {"namespace": "research", "pod": "later", "resource": GPU, "devices": ["GPU-1"], "gpus": [1]},
            ],
        },
    }
    pods = [pod("named", "a", gpu_indices="2"), pod("other", "a", gpu_indices="0"), pod("later", "a", gpu_indices="1")]
    for each, second in zip(pods, (5, 5, 20), strict=True):
        each["status"]["startTime"] = f"2026-01-01T00:00:{second:02}Z"
    documents = GpuDocuments([node("a", {GPU: "3"})], pods, [], [], [], [], allocations=[told, None, {"status": 3}])
    gpus = gpus_of_documents(documents).gpus
    # What was told of `later` was told before it began.
    assert [holders(gpu) for gpu in gpus] == [
        [("named", 1000, False)],
        [("later", 1000, False)],
        [("other", 1000, True)],
    ]


def test_gpus_of_a_node_that_takes_no_pods_are_closed_and_say_why() -> None:
    gpus = listed(
        nodes=[
            node("a", {GPU: "1"}, cordoned=True),
            node("b", {GPU: "1"}, ready="False"),
        ]
    )
    assert [(gpu.state, gpu.problem) for gpu in gpus] == [
        ("closed", "its node is cordoned"),
        ("closed", "its node is not ready"),
    ]


def test_a_broken_gpu_is_listed_and_what_a_pod_has_of_broken_ones_is_held() -> None:
    """Capacity is what is there, and paid for; what the device plugin finds unhealthy it takes out of allocatable."""
    for held, states in (("1", ["held", "free", "closed"]), ("3", ["held"] * 3)):
        broken = node("a", {GPU: "2"})
        broken["status"]["capacity"] = {GPU: "3"}
        gpus = listed(nodes=[broken], pods=[pod("p", "a", count=held)])
        assert [gpu.state for gpu in gpus] == states
        assert sum(gpu.free_milli_gpu for gpu in gpus) == 1000 * (3 - int(held))
    assert (
        listed(nodes=[broken])[2].problems == f"its device plugin offers 2 of 3 {GPU}; that it is this one is assumed"
    )
    assert len(listed(nodes=[reduced_node(broken)])) == 3, "so much is kept for the pages"
    one_held = listed(nodes=[broken], pods=[pod("p", "a")])
    shown = map_node("a", one_held, {"2": GpuActivity(0.5, ("research", "p"))}, {}, 1)
    assert [gpu.state for gpu in shown.gpus] == ["closed", "free", "held"], "where the exporter says"


def test_the_free_gpu_that_is_ill_is_taken_for_the_broken_one_and_keeps_its_own_complaint() -> None:
    broken = node("a", {GPU: "2"})
    broken["status"]["capacity"] = {GPU: "3"}
    health = NodeHealth(Grade.SUSPECT, 0.5, {"1": Grade.SUSPECT}, {"1": 0.5})
    record = HealthRecord("a", health, {}, reason="GPU 1: XID 94", mode=Mode.ENFORCE, gpu_count=3)
    ill = [{"metadata": {"name": "a"}, "status": status_of(record)}]
    gpus = gpus_of_documents(GpuDocuments([broken], [pod("p", "a")], [], [], [], [], ill)).gpus
    assert [(gpu.state, gpu.problem) for gpu in gpus] == [("held", ""), ("closed", "GPU 1: XID 94"), ("free", "")]
    shown = map_node("a", gpus, {"1": GpuActivity(0.5, ("research", "p"))}, {}, 1).gpus
    assert [(gpu.state, gpu.problem) for gpu in shown] == [("closed", ""), ("held", "GPU 1: XID 94"), ("free", "")]
    assert [bool(gpu.shortfall) for gpu in shown] == [True, False, False]


def test_what_a_device_plugin_does_not_offer_is_counted_as_it_offers_it() -> None:
    sliced = node("a", {GPU: "28"})
    sliced["status"]["capacity"] = {GPU: "32"}
    closed = [gpu.shortfall for gpu in listed(nodes=[sliced]) if gpu.state == "closed"]
    assert closed == [f"its device plugin offers 28 of 32 {GPU}; that it is this one is assumed"] * 4
    sliced["status"]["allocatable"] = {"cpu": "8"}
    none = [gpu.shortfall for gpu in listed(nodes=[sliced]) if gpu.state == "closed"]
    assert none == [f"its device plugin offers 0 of 32 {GPU}"] * 32


@pytest.mark.parametrize("amount", [["3"], {"a": 1}, None, True, "many", "-1", 1e400])
def test_a_capacity_that_is_no_quantity_hides_no_other_node(amount: Any) -> None:
    odd = node("odd", {GPU: "1"})
    odd["status"]["capacity"] = {GPU: amount}
    assert [gpu.node for gpu in listed(nodes=[odd, node("well", {GPU: "1"})])] == ["odd", "well"]


def test_a_gpu_that_kai_divides_is_of_those_who_share_it_and_not_of_its_reservation_too() -> None:
    reservation = pod("gpu-reservation-x", "a")
    reservation["metadata"]["namespace"] = "kai-resource-reservation"
    sharing = [pod(name, "a", resource="cpu", gpu_fraction="0.5") for name in ("left", "right")]
    gpus = listed(nodes=[node("a", {GPU: "2"})], pods=[reservation, *sharing])
    assert sum(holder.milli_gpu for gpu in gpus for holder in gpu.holders) == 1000
    assert [gpu.free_milli_gpu for gpu in gpus] == [0, 1000], "nobody knows which: they are charged as packed"


def test_partitions_that_a_node_offers_stand_beside_whole_gpus() -> None:
    gpus = listed(
        nodes=[node("a", {GPU: "1", MIG: "2"})],
        pods=[pod("p", "a", resource=MIG)],
    )
    assert [(gpu.resource, gpu.state) for gpu in gpus] == [(GPU, "free"), (MIG, "held"), (MIG, "free")]


def resource_slice(*devices: Object, generation: int = 1) -> Object:
    pool = {"name": "a", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"s{generation}"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "a", "pool": pool, "devices": list(devices)},
    }


def claim(name: str, device: str, pods: tuple[str, ...] = (), **consumed: str) -> Object:
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": device}
    return {
        "metadata": {"name": name, "namespace": "research"},
        "status": {
            "allocation": {"devices": {"results": [result | ({"consumedCapacity": consumed} if consumed else {})]}},
            "reservedFor": [{"resource": "pods", "name": each, "uid": each} for each in pods],
        },
    }


WHOLE = {
    "name": "gpu-0",
    "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100"}},
    "capacity": {"memory": {"value": "80Gi"}},
    "allowMultipleAllocations": True,
}
CUT = {"name": "gpu-1-mig-1g-0", "attributes": {"type": {"string": "mig"}}, "consumesCounters": [{"counterSet": "g"}]}
TAINTED = {
    "name": "gpu-2",
    "attributes": {"type": {"string": "gpu"}},
    "taints": [{"key": "xid", "value": "79", "effect": "NoExecute"}],
}


def test_devices_of_a_driver_show_shares_taints_and_partitions_that_are_in_use() -> None:
    gpus = listed(
        slices=[resource_slice(WHOLE, CUT, TAINTED, generation=2), resource_slice(WHOLE, generation=1)],
        claims=[claim("c", "gpu-0", ("train",), memory="20Gi"), claim("d", "gpu-0", memory="20Gi")],
    )
    assert [gpu.name for gpu in gpus] == ["gpu-0", "gpu-2"]
    assert holders(gpus[0]) == [("train", 250, False), ("claim d", 250, False)]
    assert (gpus[0].state, gpus[0].free_milli_gpu) == ("shared", 500)
    assert (gpus[1].state, gpus[1].problem) == ("closed", "taint xid=79")
    with_partition = listed(slices=[resource_slice(CUT)], claims=[claim("e", "gpu-1-mig-1g-0", ("p",))])
    assert [(gpu.name, gpu.state) for gpu in with_partition] == [("gpu-1-mig-1g-0", "held")]


@pytest.mark.parametrize(
    "torn", [None, 7, "x", {}, {"metadata": None}, {"metadata": {"name": "t"}, "spec": 3, "status": []}]
)
def test_objects_of_wrong_shapes_are_left_out(torn: Any) -> None:
    good = node("a", {GPU: "1"})
    gpus = listed(nodes=[torn, good], pods=[torn], topologies=[torn], bandwidths=[torn], slices=[torn], claims=[torn])
    assert len(gpus) == 1


def test_the_table_counts_by_state_and_free_ones_are_picked() -> None:
    gpus = list(listed(nodes=[node("a", {GPU: "3"})], pods=[pod("p", "a", count="2")]))
    table = FORMATTERS[Format.TABLE](answer(gpus, ("resourceclaims",), free=True))
    assert "nvidia.com/gpu: 3 on 1 node, 1 free, 2 held." in table
    assert "You may not read resourceclaims" in table
    assert "research/p" not in table


@pytest.mark.cluster
def test_on_a_cluster_with_the_rights_of_who_asks(
    control_plane: ControlPlane, kopt: Kopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = control_plane.api
    space = api.space("gpus")
    name = f"{space}-node"
    made = node(name, {GPU: "2"})
    api.create({"apiVersion": "v1", "kind": "Node", **made})
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    try:
        listing = kopt("gpus", "--node", name, "-o", "json")
        assert listing.status == 0, listing.err
        assert [(row["gpu"], row["free_milli_gpu"]) for row in listing.json["gpus"]] == [("0", 1000), ("1", 1000)]
        missing = kopt("gpus", "--node", "nowhere")
        assert missing.status == 1
        assert "no node 'nowhere' with GPUs; there are " in missing.err
    finally:
        api.delete("v1", "Node", name)


def test_what_speaks_against_a_gpu_is_its_problem() -> None:
    status = {
        "verdict": "Condemned",
        "score": 0,
        "mode": "observe",
        "gpuCount": 2,
        "reason": "GPU 1: XID 79, the GPU has fallen off the bus",
        "gpus": [{"gpu": "1", "verdict": "Condemned", "load": 1.2}],
    }
    documents = GpuDocuments(
        [node("a", {GPU: "2"})], [], [], [], [], [], [{"metadata": {"name": "a"}, "status": status}]
    )
    gpus = gpus_of_documents(documents).gpus
    assert [gpu.problem for gpu in gpus] == ["", "GPU 1: XID 79, the GPU has fallen off the bus"]
