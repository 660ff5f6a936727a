"""The analytic layer against what is published of machines."""

import pytest

from kopt.core.hardware.bandwidth import BandwidthError, Collective, collective
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.topology.collective_cost import analytic
from kopt.topology.from_node import machine_from
from kopt.topology.hardware import CUBE_MESH, HardwareRow, machine_of, network_of
from kopt.topology.rings import ring_gbps
from kopt.topology.set_links import gpu_set

_LARGE = 8 * 2**30


def _bus(
    gpu: str,
    link: str,
    k: int,
    kind: Collective = Collective.ALL_REDUCE,
    *,
    nodes: int = 1,
    nics: str = "",
    size_bytes: int = _LARGE,
) -> float:
    gpus = gpu_set(machine_of(HardwareRow(gpu, "", link, nodes, k, nics)), range(k), nodes)
    took_us = analytic(gpus, kind, size_bytes).latency_us
    return size_bytes * kind.bus_factor(gpus.ranks) / took_us / 1e3


@pytest.mark.parametrize(
    ("gpu", "link", "published_gbps"),
    [
        ("H100-SXM5-80GB", "NVSwitch-NV18", 480),  # NVLS
        ("A100-SXM4-80GB", "NVSwitch-NV12", 235),
        ("V100-SXM2-32GB", "HybridCubeMesh-NV1/2", 130),
        ("MI300X", "XGMI-fullmesh-8", 320),
    ],
)
def test_all_reduce_of_eight_gpus_reaches_what_is_published(gpu: str, link: str, published_gbps: float) -> None:
    assert _bus(gpu, link, 8) == pytest.approx(published_gbps, rel=0.12)


def test_two_gpus_of_a_full_mesh_of_eight_reach_a_sixth_or_a_seventh() -> None:
    share = _bus("MI300X", "XGMI-fullmesh-8", 2) / _bus("MI300X", "XGMI-fullmesh-8", 8)
    assert 1 / 7.5 < share < 1 / 5.5


def test_switches_are_nearly_flat_and_pcie_falls_with_the_gpus() -> None:
    switched = [_bus("A100-SXM4-80GB", "NVSwitch-NV12", k) for k in (2, 4, 8)]
    pcie = [_bus("L40S", "PCIe4", k) for k in (2, 4, 8)]
    assert min(switched) > 0.8 * max(switched)
    assert pcie[0] > 1.4 * pcie[1] > 1.4 * 1.4 * pcie[2]


def test_a_card_of_two_devices_is_faster_within_than_to_others() -> None:
    node = machine_of(HardwareRow("MI250X", "amd", "XGMI-mesh (1/2/4 links)", 1, 8))
    card, others = gpu_set(node, (0, 1)), gpu_set(node, (0, 2))
    assert card.ring_gbps == pytest.approx(200)
    assert others.ring_gbps == pytest.approx(50)


def test_between_nodes_the_cards_bound_and_two_nodes_with_reducing_switches_pass_them() -> None:
    ring = _bus("A100-SXM4-80GB", "NVSwitch-NV12", 8, nodes=4, nics="8x HDR200 IB")
    tree = _bus("H100-SXM5-80GB", "NVSwitch-NV18", 8, nodes=2, nics="8x NDR400 IB")
    assert 150 < ring < 200
    assert 430 < tree < 520


def test_latency_grows_with_ranks_and_never_falls_with_the_size() -> None:
    gpus = [gpu_set(machine_of(HardwareRow("H100", "", "NVSwitch-NV18", 1, k)), range(k)) for k in (2, 4, 8)]
    small = [analytic(one, Collective.ALL_REDUCE, 8).latency_us for one in gpus]
    assert small == sorted(small)
    sizes = [analytic(gpus[2], Collective.ALL_GATHER, 2**n).latency_us for n in range(35)]
    assert sizes == sorted(sizes)


_CUBE = {pair: 25.0 * n for a, b, n in CUBE_MESH for pair in ((a, b), (b, a))}


@pytest.mark.parametrize(
    ("gpus", "gbps"),
    [(range(8), 150.0), ((0, 3), 50.0), ((0, 1), 25.0), ((0, 5), 0.0), ((0, 3, 4), 0.0), ((0, 1, 2, 3), 100.0)],
)
def test_rings_are_packed_into_the_links_of_a_hybrid_cube_mesh(gpus: range, gbps: float) -> None:
    assert ring_gbps(tuple(gpus), _CUBE) == pytest.approx(gbps)


def test_a_full_mesh_carries_all_of_its_links() -> None:
    mesh = {(a, b): 64.0 for a in range(8) for b in range(8) if a != b}
    assert [ring_gbps(tuple(range(k)), mesh) for k in (2, 3, 4, 8)] == [64, 128, 192, 448]


def _discovered(name: str, kind: LinkType, counts: dict[tuple[int, int], int]) -> NodeTopology:
    gpus = sorted({one for pair in counts for one in pair})
    links = tuple(TopologyLink(a, b, kind, count) for (a, b), count in counts.items())
    return NodeTopology("n", tuple(TopologyGpu(one, name) for one in gpus), links)


def test_words_and_a_discovered_node_become_the_same_sets() -> None:
    found = machine_from(_discovered("V100-SXM2-32GB", LinkType.NVLINK, {(a, b): n for a, b, n in CUBE_MESH}))
    told = machine_of(HardwareRow("V100-SXM2-32GB", "", "HybridCubeMesh-NV1/2", 1, 8))
    for gpus in ((0, 3), (0, 1, 2, 3), tuple(range(8))):
        one, other = gpu_set(found, gpus), gpu_set(told, gpus)
        assert (one.way, one.ring_gbps, one.gpu) == (other.way, other.ring_gbps, other.gpu)


def test_all_links_between_every_two_gpus_lead_to_switches() -> None:
    pairs = {(a, b): 18 for a in range(8) for b in range(a + 1, 8)}
    four = {(a, b): 4 for a in range(4) for b in range(a + 1, 4)}
    eight = gpu_set(machine_from(_discovered("NVIDIA H100 80GB HBM3", LinkType.NVLINK, pairs)), range(8))
    mesh = gpu_set(machine_from(_discovered("NVIDIA A100-SXM4-40GB", LinkType.NVLINK, four)), range(4))
    assert (eight.way.value, eight.ring_gbps) == ("switch", 450)
    assert (mesh.way.value, mesh.ring_gbps) == ("mesh", 300)


def test_bridges_join_pairs_and_everybody_else_goes_over_pcie() -> None:
    machine = machine_of(HardwareRow("A100-PCIE-40GB", "", "NV12 bridged pairs", 1, 4))
    pair, strangers = gpu_set(machine, (2, 3)), gpu_set(machine, (1, 2))
    assert (pair.way.value, pair.ring_gbps) == ("mesh", 300)
    assert (strangers.way.value, gpu_set(machine, range(4)).way.value) == ("pcie", "pcie")


def test_what_is_not_known_is_flagged() -> None:
    assert gpu_set(machine_of(HardwareRow("Foo 9000", "", "warp drive", 1, 4)), range(4)).unknown
    assert gpu_set(machine_of(HardwareRow("H100", "", "NVSwitch-NV18", 2, 8, "IB (unspecified)")), range(8), 2).unknown
    assert not gpu_set(machine_of(HardwareRow("H100", "", "NVSwitch-NV18", 1, 8)), range(8)).unknown


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("8x HDR200 IB", 200),
        ("32x100G EFA", 400),
        ("2x Slingshot-11 200Gb", 50),
        ("10G Eth", 1.25),
        ("4x100G RoCE (2 used?)", 25),
        ("8x NDR400", 400),
        ("8x ConnectX-7", 400),
        ("8x 400Gb/s InfiniBand", 400),
    ],
)
def test_network_cards_are_read_from_words(text: str, gbps: float) -> None:
    found = network_of(text, 8)
    assert found.known
    assert found.total_gbps == pytest.approx(gbps)


def test_questions_that_cannot_be_asked_say_why() -> None:
    machine = machine_of(HardwareRow("H100", "", "NVSwitch-NV18", 1, 8))
    for gpus, nodes, why in (
        ((0, 9), 1, "GPU 9 is not there"),
        ((1, 1), 1, "twice"),
        ((0,), 1, "two GPUs"),
        ((0, 1), 2, "no network card"),
    ):
        with pytest.raises(BandwidthError, match=why):
            gpu_set(machine, gpus, nodes)
    with pytest.raises(BandwidthError, match="all_reduce"):
        collective("allmagic")
    assert collective("AllReduce") is Collective.ALL_REDUCE


def test_bus_by_algorithm_bandwidth_is_that_of_nccl_tests() -> None:
    factors = {kind: kind.bus_factor(8) for kind in Collective}
    assert factors[Collective.ALL_REDUCE] == 1.75
    assert factors[Collective.ALL_GATHER] == factors[Collective.REDUCE_SCATTER] == 0.875
    assert factors[Collective.ALL_TO_ALL] == 0.875
    assert factors[Collective.BROADCAST] == factors[Collective.REDUCE] == factors[Collective.SENDRECV] == 1
