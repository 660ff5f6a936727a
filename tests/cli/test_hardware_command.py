"""``kopt hardware``: one list of GPUs, TPUs and FPGAs, whatever shows them."""

from typing import Any

import pytest
from controlplane.plane import ControlPlane

from kopt.cli.cluster.hardware import answer
from kopt.cli.output import FORMATTERS, Format
from kopt.cluster.workloads.hardware import inventory_of
from kopt.core.hardware.inventory import Hardware, model_pattern, model_slug
from kopt.core.units import GIB
from tests.cli.conftest import Kopt

Object = dict[str, Any]
NFD = "feature.node.kubernetes.io"


def node(name: str, labels: dict[str, str], **amounts: str) -> Object:
    named = {key.replace("__", "/").replace("_", "."): value for key, value in amounts.items()}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": "8", **named}}}


def resource_slice(driver: str, pool: str, *devices: Object, generation: int = 1) -> Object:
    spec = {"driver": driver, "nodeName": pool, "pool": {"name": pool, "generation": generation}, "devices": devices}
    return {"metadata": {"name": f"{pool}-{driver}-{generation}"}, "spec": spec | {"devices": list(devices)}}


def device(name: str, product: str, memory: str, **more: Any) -> Object:
    attributes = {"productName": {"string": product}, "type": {"string": more.pop("kind", "gpu")}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def found(nodes: list[Object], slices: list[Object] | None = None) -> list[tuple[Any, ...]]:
    return [
        (item.node, item.kind.value, item.model, item.count, item.memory_bytes // GIB, item.resource, item.source.value)
        for one in inventory_of(nodes, slices or [])
        for item in one.hardware
    ]


def test_gpus_tpus_and_fpgas_are_listed_whatever_shows_them() -> None:
    h100 = node("a", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, nvidia__gpu="8")
    h100["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    mi300 = node("b", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"})
    mi300["status"]["allocatable"] = {"amd.com/gpu": "8"}
    tpu = node("c", {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"})
    tpu["status"]["allocatable"] = {"google.com/tpu": "4"}
    fpga = node("d", {})
    fpga["status"]["allocatable"] = {"xilinx.com/fpga-xilinx_u250_gen3x16_xdma_shell_4_1-0": "1"}
    bare = node("e", {f"{NFD}/pci-0302_10de.present": "true", f"{NFD}/pci-0200_15b3.present": "true"})
    sound = node("f", {f"{NFD}/pci-0403_10de.present": "true"})
    driver = resource_slice("gpu.nvidia.com", "g", *(device(f"gpu-{n}", "NVIDIA L40S", "48Gi") for n in range(2)))
    assert found([h100, mi300, tpu, fpga, bare, sound], [driver]) == [
        ("a", "GPU", "NVIDIA-H100-80GB-HBM3", 8, 80, "nvidia.com/gpu", "allocatable"),
        ("b", "GPU", "AMD_Instinct_MI300X_OAM", 8, 192, "amd.com/gpu", "allocatable"),
        ("c", "TPU", "tpu-v5-lite-podslice", 4, 0, "google.com/tpu", "allocatable"),
        *[("d", "FPGA", "fpga-xilinx_u250_gen3x16_xdma_shell_4_1-0", 1, 0, resource, "allocatable")
          for resource in fpga["status"]["allocatable"]],
        ("e", "GPU", "NVIDIA device", 0, 0, "", "label"),
        ("g", "GPU", "NVIDIA L40S", 2, 48, "gpu.nvidia.com", "slice"),
    ]  # fmt: skip


def test_old_generations_partitions_and_labels_beside_a_slice_are_no_further_gpus() -> None:
    labelled = node("a", {f"{NFD}/pci-0302_10de.present": "true"})
    old = resource_slice("gpu.nvidia.com", "a", device("gpu-0", "OLD", "40Gi"))
    cut = device("mig-0", "H100", "10Gi", kind="mig", consumesCounters=[])
    new = resource_slice("gpu.nvidia.com", "a", device("gpu-0", "H100", "80Gi"), cut, generation=2)
    other = resource_slice("net.example.com", "a", device("nic-0", "NIC", "1Gi"))
    assert found([labelled], [old, new, other]) == [("a", "GPU", "H100", 1, 80, "gpu.nvidia.com", "slice")]


@pytest.mark.parametrize("hostile", [{}, {"metadata": {"name": 3, "labels": []}}, {"metadata": {}, "status": 7}])
def test_objects_of_any_shape_are_read_without_an_error(hostile: Object) -> None:
    assert found([hostile], [{"spec": {"driver": "gpu.nvidia.com", "devices": [1, {}], "pool": hostile}}]) is not None


@pytest.mark.parametrize("name", ["", "h100)|(", "a" * 64, "-", "h100\n.*"])
def test_what_is_no_name_of_a_model_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a model"):
        model_pattern(name)


def test_case_and_separators_of_a_name_do_not_matter() -> None:
    assert model_slug(" H100_80GB  HBM3") == "h100-80gb-hbm3"


def test_the_table_counts_by_model_and_says_what_may_not_be_read() -> None:
    listed: list[Hardware] = [item for one in inventory_of([], []) for item in one.hardware]
    assert "no node has an accelerator" in FORMATTERS[Format.TABLE](answer(listed))
    slices = [resource_slice("gpu.amd.com", name, device("gpu-0", "MI300X", "192Gi")) for name in "ab"]
    listed = [item for one in inventory_of([], slices) for item in one.hardware]
    text = " ".join(FORMATTERS[Format.TABLE](answer(listed, ("nodes",))).split())
    assert "MI300X: 2 on 2 nodes." in text
    assert "You may not read nodes" in text


@pytest.mark.cluster
def test_a_cluster_is_listed_and_filtered(
    control_plane: ControlPlane, kopt: Kopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_plane.api.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "hw-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}},
        }
    )
    amounts = {"status": {"allocatable": {"nvidia.com/gpu": "2"}, "capacity": {"nvidia.com/gpu": "2"}}}
    control_plane.api.patch("v1", "Node", "hw-1", amounts, "", "status")
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    rows = kopt("hardware", "--model", "l4", "-o", "json").json["hardware"]
    assert [(row["node"], row["kind"], row["count"]) for row in rows] == [("hw-1", "GPU", 2)]
    assert kopt("hardware", "--kind", "fpga", "-o", "json").json["hardware"] == []
    assert kopt("hardware", "--model", "(").status == 2
    control_plane.api.delete("v1", "Node", "hw-1")
