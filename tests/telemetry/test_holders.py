"""Which pods have which device, by the names that plugins and drivers of claims give out."""

from pathlib import Path

from kopt.agents.telemetry.exposition import GpuIdentity, expose
from kopt.agents.telemetry.holders import Holder, Holders, holders_of
from kopt.agents.telemetry.process import partition_names
from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.formats.gpu_metrics.device_reading import DeviceReading

GPU = "nvidia.com/gpu"
WHOLE = DeviceReading("0", "GPU-a", pci="0000:1a:00.0", aliases=("0", "gpu-0"), values={"power_watts": 1.0})
OTHER = DeviceReading("1", "GPU-b", aliases=("1", "gpu-1"), values={"power_watts": 2.0})
PART = DeviceReading("1", "MIG-x", partition="7", profile="1g.10gb", aliases=("gpu-1-mig-19-4",))
DEVICES = (WHOLE, OTHER, PART)


def given(pod: str, resource: str, *devices: str, claim: str = "") -> DeviceAllocation:
    return DeviceAllocation("research", pod, resource, devices, claim)


def test_a_whole_gpu_and_an_instance_are_their_pods_alone() -> None:
    every = [given("a", GPU, "GPU-a"), given("b", "nvidia.com/mig-1g.10gb", "MIG-x"), given("c", "x.com/nic", "n")]
    holders = holders_of(every, {GPU: ("GPU-a", "GPU-b")}, DEVICES)
    assert holders.alone(("0", "")) == Holder("research", "a", GPU, share=1.0)
    assert holders.alone(("1", "7")) == Holder("research", "b", "nvidia.com/mig-1g.10gb")
    assert holders.alone(("1", "")) is None
    assert holders.unmapped == {}


def test_replicas_are_shares_of_what_the_plugin_offers() -> None:
    offered = {GPU: tuple(f"GPU-a::{n}" for n in range(4))}
    holders = holders_of([given("a", GPU, "GPU-a::0", "GPU-a::3"), given("b", GPU, "GPU-a::1")], offered, DEVICES)
    assert [(one.pod, one.share) for one in holders.by_device["0", ""]] == [("a", 0.5), ("b", 0.25)]
    assert holders.alone(("0", "")) is None
    unknown = holders_of([given("a", GPU, "GPU-a::0")], {}, DEVICES)
    assert [one.share for one in unknown.by_device["0", ""]] == [None]


def test_devices_of_claims_are_known_by_their_drivers_names() -> None:
    driver = "gpu.nvidia.com"
    every = [
        given("a", driver, "n1/gpu-0", claim="one"),
        given("b", driver, "n1/gpu-1-mig-1g10gb-19-4", claim="two"),
        given("c", driver, "n1/gpu-1-mig-19-4-1", claim="three"),
        given("d", driver, "n1/gpu-9", claim="four"),
    ]
    holders = holders_of(every, {}, DEVICES)
    assert [one.pod for one in holders.by_device["0", ""]] == ["a"]
    assert [(one.pod, one.claim) for one in holders.by_device["1", "7"]] == [("b", "two"), ("c", "three")]
    assert holders.unmapped == {driver: 1}


def test_amds_partitions_are_known_by_their_render_nodes(tmp_path: Path) -> None:
    for node, render in ((2, 128), (3, 129)):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"simd_count 152\ndrm_render_minor {render}\n")
    (tmp_path / "sys/devices/platform/amdgpu_xcp_0/drm/renderD129").mkdir(parents=True)
    devices = [DeviceReading(str(n), f"u{n}", partition=str(n), aliases=(f"kfd-{n + 2}",)) for n in range(2)]
    every = [given("a", "amd.com/gpu", "amdgpu_xcp_0"), given("b", "gpu.amd.com", "n1/gpu-1-128", claim="c")]
    holders = holders_of(every, {}, devices, partition_names(tmp_path))
    assert {key: one[0].pod for key, one in holders.by_device.items()} == {("1", "1"): "a", ("0", "0"): "b"}


def test_series_beyond_the_limit_are_left_out_by_importance_and_counted() -> None:
    devices = [
        DeviceReading(str(n), f"u{n}", values={"memory_used_bytes": 1.0, "pcie_replays_total": 1.0}) for n in range(8)
    ]
    gpus = [GpuIdentity(str(n), f"u{n}", "H100") for n in range(8)]
    exposed = expose("n1", devices, gpus, Holders({}, {}), 18)
    assert (exposed.series, exposed.dropped) == (18, 6)
    counts = {metric.name: len(metric.samples) for metric in exposed.metrics}
    assert counts == {"kopt_gpu_up": 8, "kopt_gpu_memory_used_bytes": 8, "kopt_gpu_pcie_replays": 2}
