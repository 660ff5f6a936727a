"""What resources are of physical GPUs, in the ways in which clusters divide them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.controllers.meter.claims import ClaimedDevices, read_claim, read_slice
from kopt.controllers.meter.views import pod_reader, read_node, read_workload, request_of
from kopt.controllers.overview.devices.gpus import GpuDocuments, gpus_of_documents
from kopt.core.cost.metering import Demand, Idle, MeteredPod, Rule
from kopt.core.units import GIB
from kopt.policies.cost.devices import Request, demand_of, node_devices
from kopt.policies.cost.shares import shares

H100 = "NVIDIA-H100-80GB-HBM3"
GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("amounts", "product", "options", "gpus"),
    [
        ({GPU: 8}, H100, {}, 8),
        ({GPU: 40}, f"{H100}-SHARED", {"replicas": 10}, 4),
        ({GPU: 40}, f"{H100}-SHARED", {"replicas": 10, "counted": 4}, 4),
        ({GPU: 14}, f"{H100}-MIG-1g.10gb", {"counted": 14}, 2),
        ({"nvidia.com/mig-4g.40gb": 1, "nvidia.com/mig-3g.40gb": 1}, H100, {}, 1),
        ({GPU: 6, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2}, H100, {}, 8),
        ({"amd.com/cpx_nps4": 64}, "AMD_Instinct_MI300X_OAM", {}, 8),
        ({GPU: 80}, H100, {"counted": 8}, 8),
    ],
    ids=["whole", "sliced", "sliced, counted", "one profile", "4g + 3g", "mixed", "CPX", "HAMi, counted"],
)
def test_physical_gpus_of_a_node(amounts: dict[str, int], product: str, options: dict[str, int], gpus: int) -> None:
    devices = node_devices(amounts, product, **options)
    assert devices is not None
    assert devices.gpus == gpus


def test_a_node_without_gpus_costs_nothing() -> None:
    assert node_devices({"cpu": 64}, H100) is None


def _charged(request: Request, amounts: dict[str, int], **options: int) -> tuple[int, int]:
    devices = node_devices(amounts, H100, **options)
    assert devices is not None
    demand = demand_of(request, devices)
    assert demand is not None
    return demand.count, demand.charged(Rule.MAX)


def test_a_partition_is_charged_with_what_it_makes_unusable() -> None:
    small, half, wide = (f"nvidia.com/mig-{name}" for name in ("1g.10gb", "3g.40gb", "1g.20gb"))
    assert _charged(Request({small: 1}), {small: 7}) == (1, 143)
    assert _charged(Request({half: 1}), {half: 2}) == (1, 500), "by memory: with the seventh slice"
    assert _charged(Request({wide: 1}), {wide: 4}) == (1, 250)


def test_a_share_of_hami_is_no_whole_gpu() -> None:
    """As opencost charged it (opencost#3828)."""
    request = Request({GPU: 1}, memory_mib=20 * 1024, cores_percent=30)
    assert _charged(request, {GPU: 80}, counted=8) == (1, 300)
    assert _charged(Request({GPU: 1}, memory_mib=40 * 1024), {GPU: 80}, counted=8) == (1, 500)
    assert _charged(Request({GPU: 1}, cores_percent=30), {GPU: 80}, counted=8) == (1, 1000), "memory is unlimited"


def test_shares_by_annotation() -> None:
    assert _charged(Request({}, fraction_milli=250), {GPU: 8}) == (1, 250)
    assert _charged(Request({}, fraction_milli=250, devices=2), {GPU: 8}) == (2, 250)
    assert _charged(Request({}, memory_bytes=20 * GIB), {GPU: 8}) == (1, 250)


def test_the_rule_selects_the_share() -> None:
    demand = Demand(1, 250, 500)
    assert [demand.charged(rule) for rule in (Rule.MAX, Rule.MEMORY, Rule.COMPUTE)] == [500, 250, 500]


def _pod(**spec: Any) -> dict[str, Any]:
    limits = {"limits": {GPU: "2"}}
    return {
        "metadata": {
            "name": "train-0",
            "namespace": "ml",
            "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"team": "vision", "kueue.x-k8s.io/queue-name": "gpus", "secret": "x"},
            "ownerReferences": [{"kind": "Job", "name": "train", "uid": "j", "controller": True}],
        },
        "spec": {"nodeName": "n", "containers": [{"name": "a", "resources": limits}], **spec},
        "status": {
            "phase": "Succeeded",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}],
            "containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-01-01T01:00:00Z"}}}],
        },
    }


def test_what_is_read_of_a_pod() -> None:
    pod = pod_reader(("team",))(_pod())
    assert (pod.started_ms, pod.ended_ms) == (1767225660000, 1767229200000)
    assert (pod.attributes.workload, pod.attributes.queue) == ("jobs/train", "gpus")
    assert dict(pod.attributes.labels) == {"team": "vision"}
    assert pod_reader(())(_pod(nodeName="")) is None, "it holds nothing before it is bound"
    reservation = _pod()
    reservation["metadata"]["namespace"] = "kai-resource-reservation"
    assert pod_reader(())(reservation) is None, "whoever shares that GPU is charged"


def test_init_containers_count_as_the_scheduler_counts() -> None:
    big = {"name": "i", "resources": {"limits": {GPU: "4"}}}
    beside = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}}
    assert request_of(_pod(initContainers=[big])).units == {GPU: 4}
    assert request_of(_pod(initContainers=[beside])).units == {GPU: 3}


def _node(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "n",
            "uid": "u",
            "labels": {"nvidia.com/gpu.product": H100, "karpenter.sh/capacity-type": "spot"},
        },
        "spec": {"providerID": "aws:///us-east-1a/i-0", **spec},
        "status": {"capacity": {GPU: "8"}, "allocatable": {GPU: "6"}},
    }


def test_what_is_read_of_a_node() -> None:
    observed = read_node(_node())
    assert observed.node.gpus == 8, "broken GPUs are paid for as well"
    assert (observed.node.offer.model, observed.node.offer.provider) == ("H100-SXM5-80GB", "aws")
    assert observed.node.offer.capacity == "spot"
    assert observed.node.closed is None


@pytest.mark.parametrize(
    ("spec", "closed"),
    [
        ({"unschedulable": True}, Idle.UNAVAILABLE),
        ({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, Idle.UNAVAILABLE),
        ({"taints": [{"key": "team", "value": "vision", "effect": "NoSchedule"}]}, Idle.RESERVED),
        ({"taints": [{"key": GPU, "effect": "NoSchedule"}]}, None),
    ],
)
def test_why_what_is_free_cannot_be_had(spec: dict[str, Any], closed: Idle | None) -> None:
    observed = read_node(_node(**spec))
    assert observed.node.closed is closed


@pytest.mark.parametrize(("held", "unavailable"), [(0, 2), (7, 1), (8, 0)])
def test_what_is_broken_and_free_cannot_be_had(held: int, unavailable: int) -> None:
    node = read_node(_node()).node
    pods = [MeteredPod("p", "n", Demand(held), 0)] if held else []
    charged = shares(node, pods, Rule.MAX, {(1, 1000): 1.0})
    assert charged.get(Idle.UNAVAILABLE.subject, 0) == 1000 * unavailable
    assert charged.get(Idle.UNALLOCATED.subject, 0) == 1000 * (8 - held - unavailable)


def test_what_is_broken_behind_a_taint_is_not_reserved() -> None:
    taints = [{"key": "team", "value": "x", "effect": "NoSchedule"}]
    charged = shares(read_node(_node(taints=taints)).node, [], Rule.MAX, {})
    assert charged == {Idle.UNAVAILABLE.subject: 2000, Idle.RESERVED.subject: 6000}
    cordoned = read_node(_node(taints=taints, unschedulable=True)).node
    assert shares(cordoned, [], Rule.MAX, {}) == {Idle.UNAVAILABLE.subject: 8000}


@pytest.mark.parametrize(("allocatable", "broken"), [({"cpu": "8"}, 8), ({GPU: "0"}, 8), ({GPU: "9"}, 0), ({}, 0)])
def test_what_a_node_does_not_offer_is_broken_on_the_invoice_as_on_the_page(
    allocatable: dict[str, str], broken: int
) -> None:
    """Where there is no allocatable at all the API server puts the capacity."""
    document = _node()
    document["status"]["allocatable"] = allocatable
    assert read_node(document).node.broken == broken
    gpus = gpus_of_documents(GpuDocuments([document], [], [], [], [], [])).gpus
    assert [gpu.state for gpu in gpus].count("closed") == broken


def _slice(generation: int, *devices: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": list(devices)}}


def _device(name: str, kind: str, **attributes: str) -> dict[str, Any]:
    values = {"type": kind, "productName": H100, **attributes}
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in values.items()},
        "capacity": {"memory": {"value": "80Gi" if kind == "gpu" else "10Gi"}},
        "consumesCounters": [{"counterSet": name}],
    }


def _claim(*devices: str, pods: tuple[str, ...] = ("p",), memory: str = "") -> dict[str, Any]:
    results = [{"driver": "gpu.nvidia.com", "pool": "n", "device": device} for device in devices]
    for result in results if memory else ():
        result["consumedCapacity"] = {"memory": memory}  # type: ignore[assignment]
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
    return {"status": {"reservedFor": reserved, "allocation": {"devices": {"results": results}}}}


def _claimed(*claims: dict[str, Any]) -> ClaimedDevices:
    mig = _device("gpu-0-mig-1g10gb-0", "mig", profile="1g.10gb")
    slices = [_slice(1, _device("gone", "gpu")), _slice(2, _device("gpu-0", "gpu"), _device("gpu-1", "gpu"), mig)]
    read = [read_slice(item) for item in slices], [read_claim(item) for item in claims]
    return ClaimedDevices([item for item in read[0] if item], [item for item in read[1] if item])


def test_devices_of_drivers() -> None:
    devices = _claimed(
        _claim("gpu-0", "gpu-1", pods=("whole",)),
        _claim("gpu-0-mig-1g10gb-0", pods=("part",)),
        _claim("gpu-1", pods=("half",), memory="40Gi"),
        _claim("gpu-1", pods=("a", "b")),
    )
    node = devices.of_node("n")
    assert node is not None
    assert (node.gpus, node.model) == (2, "H100-SXM5-80GB"), "of the newest generation, and GPUs alone"
    charged = {}
    for uid in ("whole", "part", "half", "a", "b"):
        demand = devices.of_pod(uid)
        assert demand is not None
        charged[uid] = (demand.count, demand.charged(Rule.MAX))
    assert charged == {"whole": (2, 1000), "part": (1, 143), "half": (1, 500), "a": (1, 500), "b": (1, 500)}
    assert devices.of_pod("none") is None


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(annotations=_ANYTHING, spec=_ANYTHING, status=_ANYTHING, labels=_ANYTHING, amount=_ANYTHING)
def test_nothing_that_is_written_there_makes_a_reader_raise(
    annotations: Any, spec: Any, status: Any, labels: Any, amount: Any
) -> None:
    metadata = {"name": "x", "namespace": "y", "uid": "z", "labels": labels, "annotations": annotations}
    for document in (
        {"metadata": metadata, "spec": spec, "status": status},
        {"metadata": metadata, "spec": {"nodeName": "n", "containers": spec}, "status": {"capacity": {GPU: amount}}},
        {"metadata": metadata, "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {GPU: amount}}}]}},
    ):
        pod_reader(("a",))(document)
        read_slice(document)
        read_claim(document)
        read_node(document)
        read_workload(document)
