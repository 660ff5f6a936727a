"""Networks described in words: cards, speed, transport, and whether the speed was told."""

import pytest

from kopt.core.hardware.bandwidth import Collective, Software, Transport
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.topology.collective_cost import analytic
from kopt.topology.from_node import machine_of_node
from kopt.topology.gpu_facts import gpu_specs
from kopt.topology.hardware import HardwareRow, machine_of
from kopt.topology.networks import network_of, software_of
from kopt.topology.set_links import GpuSet, Way, gpu_set


@pytest.mark.parametrize(
    ("text", "cards", "card_gbps", "transport"),
    [
        ("10GbE", 1, 1.25, Transport.SOCKETS),
        ("1 Gbps", 1, 0.125, Transport.SOCKETS),
        ("1000 Mbps", 1, 0.125, Transport.SOCKETS),
        ("10GBASE-T", 1, 1.25, Transport.SOCKETS),
        ("2x25GbE", 2, 3.125, Transport.SOCKETS),
        ("100G Eth", 1, 12.5, Transport.SOCKETS),
        ("40G IPoIB", 1, 5.0, Transport.SOCKETS),
        ("100Gbps VPC", 1, 12.5, Transport.SOCKETS),
        ("1x EDR IB", 1, 12.5, Transport.RDMA),
        ("2x 100G RoCEv2", 2, 12.5, Transport.RDMA),
        ("8 x 200Gb/s HDR", 8, 25.0, Transport.RDMA),
        ("8x ConnectX-7", 8, 50.0, Transport.RDMA),
        ("4x 50 GB/s IB", 4, 50.0, Transport.RDMA),
        ("32x100G EFA", 32, 12.5, Transport.PLUGIN),
        ("4x Slingshot-11", 4, 25.0, Transport.PLUGIN),
        ("4x Slingshot-11 (TCP)", 4, 25.0, Transport.SOCKETS),
        ("GPUDirect-TCPX 1Tbps", 8, 12.5, Transport.TCPX),
        ("4 NICs (about 24 GB/s each)", 4, 24.0, Transport.RDMA),
        ("400G RoCE, 8 HCAs", 8, 50.0, Transport.RDMA),
        ("4x 200G RoCE (1 NIC used)", 1, 25.0, Transport.RDMA),
        ("Slingshot (1 NIC used; verbs)", 1, 12.5, Transport.RDMA),
    ],
)
def test_a_network_in_words_is_its_cards_and_speed(
    text: str, cards: int, card_gbps: float, transport: Transport
) -> None:
    network = network_of(text, 8)
    assert (network.cards, network.card_gbps) == (cards, pytest.approx(card_gbps))
    assert network.known
    assert software_of("", "", network).transport is transport


@pytest.mark.parametrize(
    ("gpu", "text", "total_gbps"),
    [
        ("H100-SXM5-80GB", "IB (unspecified)", 400.0),
        ("A100-SXM4-80GB", "RoCE", 200.0),
        ("H100-SXM5-80GB", "", 400.0),
        ("L40S", "", 12.5),
        ("T4", "", 3.125),
        ("T4", "Ethernet", 1.25),
        ("A10G", "AWS ENA", 1.25),
        ("GH200-96GB", "HPE Slingshot", 200.0),
    ],
)
def test_where_no_speed_is_told_it_is_what_such_gpus_are_sold_with(gpu: str, text: str, total_gbps: float) -> None:
    network = network_of(text, 8, gpu_specs(gpu))
    assert network.total_gbps == pytest.approx(total_gbps)
    assert not network.known


def test_boards_of_four_hopper_gpus_have_the_cards_of_supercomputers() -> None:
    """Measured on two nodes: 96 GB/s on Snellius, 94 to 97 on Kolyoz."""
    assert network_of("IB (unspecified)", 4, gpu_specs("H100-SXM5-94GB")).total_gbps == 100.0
    assert network_of("IB (unspecified)", 4, gpu_specs("GB200")).total_gbps == 200.0


def test_settings_decide_the_transport() -> None:
    infiniband = network_of("8x HDR200 IB")
    assert software_of("", "NCCL_IB_DISABLE=1", infiniband).transport is Transport.SOCKETS
    assert software_of("", "NCCL_IB_DISABLE=0", infiniband).transport is Transport.RDMA
    assert software_of("", "SHARP", infiniband) == Software(Transport.RDMA, sharp=True)
    slingshot = network_of("4x Slingshot-11")
    assert software_of("", "no aws-ofi-nccl plugin", slingshot).transport is Transport.SOCKETS
    gvnic = network_of("1x gVNIC", 8, gpu_specs("H100-SXM5-80GB"))
    assert software_of("", "NET/Socket (no TCPX)", gvnic).transport is Transport.SOCKETS


def _set(gpu: str, link: str, nodes: int, count: int, nics: str = "", condition: str = "") -> GpuSet:
    machine = machine_of(HardwareRow(gpu, "", link, nodes, count, nics, "", condition))
    return gpu_set(machine, range(count), nodes)


def _bus(gpus: GpuSet) -> float:
    size_bytes = 2**32
    latency_us = analytic(gpus, Collective.ALL_REDUCE, size_bytes).latency_us
    return size_bytes * Collective.ALL_REDUCE.bus_factor(gpus.ranks) / latency_us / 1e3


def test_trays_of_one_nvlink_domain_do_not_use_the_network() -> None:
    """Measured: 847 GB/s on 2 and 839 on 18 trays (OCI, CoreWeave), 811 on the 36 of two racks."""
    two, rack = _set("GB200", "NVL72-NV18", 2, 4, "MNNVL"), _set("GB200", "NVL72-NV18", 18, 4, "MNNVL")
    assert (two.domains, two.domain_gpus, two.network, two.way) == (1, 8, None, Way.SWITCH)
    assert (rack.domains, rack.domain_gpus) == (1, 72)
    assert _bus(two) == pytest.approx(847, rel=0.15)
    assert _bus(rack) == pytest.approx(839, rel=0.15)
    racks = _set("GB200", "NVL72-NV18", 36, 4, "MNNVL in a rack, 4x NDR400 IB between racks")
    assert (racks.domains, racks.domain_nodes, racks.network_gbps) == (2, 18, 18 * 200.0)
    assert not two.unknown


def test_one_gpu_of_each_tray_is_joined_by_the_domain_as_well() -> None:
    assert (_set("GB200", "NVL72-NV18", 4, 1).way, _set("GB200", "NVL72-NV18", 4, 1).ring_gbps) == (Way.SWITCH, 900.0)


def test_the_domain_is_a_doubt_where_only_a_network_is_told_and_none_where_it_is_excluded() -> None:
    assert any("NVLink domain" in text for text in _set("GB300", "NVL72-NV18", 2, 4, "8x 400G RoCE").unknown)
    apart = _set("GB300", "NVL72-NV18", 2, 4, "8x 400G RoCE", "nodes in distinct NVLink domains")
    assert (apart.domains, apart.unknown, apart.network_gbps) == (2, (), 400.0)
    boards = _set("H100-SXM5-80GB", "NVSwitch-NV18", 2, 8, "8x NDR400 IB")
    assert (boards.domains, boards.domain_nodes) == (2, 1)


def test_four_mi300a_have_two_links_between_every_two() -> None:
    gpus = _set("MI300A", "XGMI-fullmesh-4", 1, 4)
    assert (gpus.way, gpus.pair_gbps, gpus.ring_gbps) == (Way.MESH, 128.0, 384.0)
    assert _set("MI300A", "", 1, 4).ring_gbps == 384.0
    assert _set("MI300X", "XGMI-fullmesh-8", 1, 8).pair_gbps == 64.0


def test_between_two_nodes_with_cards_enough_a_tree_needs_half_of_the_network() -> None:
    """Four Slingshot cards on Alps: 123 to 132 GB/s on two nodes and 92 on more (CSCS), where rings get 75."""
    two = _bus(_set("GH200-96GB", "NV6-fullmesh-4", 2, 4, "4x Slingshot-11", "aws-ofi-nccl"))
    many = _bus(_set("GH200-96GB", "NV6-fullmesh-4", 16, 4, "4x Slingshot-11", "aws-ofi-nccl"))
    assert 1.4 * many < two < 2.0 * many
    few = _bus(_set("A100-SXM4-40GB", "NV4-fullmesh-4", 2, 4, "2x Slingshot-11", "aws-ofi-nccl"))
    assert few < 2 * 25


def test_between_racks_rings_use_eight_rails_however_many_cards_there_are() -> None:
    """Published: 681 GB/s and rising on two racks of GB200, 382 on twenty (CoreWeave), 738 on two of GB300 (OCI)."""
    nics = "MNNVL in a rack, 4x {} IB between racks"
    assert _bus(_set("GB200", "NVL72-NV18", 36, 4, nics.format("NDR400"))) == pytest.approx(720, rel=0.1)
    assert _bus(_set("GB200", "NVL72-NV18", 360, 4, nics.format("NDR400"))) == pytest.approx(382, rel=0.15)
    assert _bus(_set("GB300", "NVL72-NV18", 36, 4, nics.format("XDR"))) == pytest.approx(738, rel=0.1)


def test_between_nodes_a_full_mesh_has_a_chain_more_than_rings() -> None:
    """Published on two nodes: 350 to 361 GB/s (MI300X, MI325X), more than on one; 128 with 4 GPUs of 8 (MI355X)."""
    two = _bus(_set("MI300X", "", 2, 8, "8x 400G RoCE"))
    assert two == pytest.approx(357, rel=0.1)
    assert two > 1.05 * _bus(_set("MI300X", "", 1, 8))
    assert _bus(_set("MI355X", "XGMI-fullmesh-8", 2, 4, "8x 400G RoCE")) < 180


def test_data_that_are_staged_in_the_host_are_slow_whatever_the_card() -> None:
    """Published: 7.6 GB/s (A100 PCIe), 12.9 (MetaX C500), both with one GPU and one card of 400 Gbit/s or less."""
    staged = _set("A100-PCIE-40GB", "PCIe", 2, 1, "1x NDR400 IB", "GDR off (NCCL_NET_GDR_LEVEL=PXB)")
    assert staged.software.staged
    assert _bus(staged) == pytest.approx(9.9, rel=0.3)
    assert _bus(_set("A100-PCIE-40GB", "PCIe", 2, 1, "1x NDR400 IB")) > 3 * _bus(staged)


def test_quads_of_metax_cross_by_the_link_of_each_gpu() -> None:
    """Published: 73 GB/s of all-reduce on two nodes of eight C500 with two cards."""
    gpus = _set("MetaX C500", "MetaXLink", 2, 8, "2x NDR400 IB")
    assert _bus(gpus) == pytest.approx(73, rel=0.15)
    assert any("MetaXLink" in text for text in gpus.unknown)


def test_gpus_that_bridges_join_are_not_behind_switches() -> None:
    """Published: 35 GB/s on two nodes of eight H200 NVL."""
    assert _set("H200-NVL", "", 2, 8, "4x ConnectX-7 RoCE").way is Way.PCIE
    assert _set("H200-141GB", "", 2, 8, "4x ConnectX-7 RoCE").way is Way.SWITCH


def test_two_rings_fit_between_pairs_that_bridges_join() -> None:
    """Published: 30.8 GB/s on the two pairs of an NC96ads A100 v4, 68.7 on the four of eight H200 NVL."""
    assert _bus(_set("A100-PCIE-80GB", "NV12 bridges", 1, 4)) == pytest.approx(30.8, rel=0.15)
    assert _bus(_set("H200-NVL", "", 1, 8)) == pytest.approx(68.7, rel=0.15)
    alone = _bus(_set("A100-PCIE-80GB", "PCIe", 1, 4))
    assert _bus(_set("A100-PCIE-80GB", "NV12 bridges", 1, 4)) == pytest.approx(2 * alone, rel=0.05)
    assert _bus(_set("A100-PCIE-80GB", "NV12 bridges", 1, 3)) < 1.5 * alone, "a GPU is left without its pair"


def test_slingshot_is_slower_where_gpus_share_cards_and_beyond_a_group() -> None:
    """Published: 92 to 97 of 100 GB/s on 4 to 64 nodes of Alps and 73 on 128 and more; 36 of 50 on Polaris."""
    own = _bus(_set("GH200-96GB", "NV6-fullmesh-4", 16, 4, "4x Slingshot-11", "aws-ofi-nccl"))
    many = _bus(_set("GH200-96GB", "NV6-fullmesh-4", 256, 4, "4x Slingshot-11", "aws-ofi-nccl"))
    shared = _bus(_set("A100-SXM4-40GB", "NV4-fullmesh-4", 8, 4, "2x Slingshot-11 200Gb", "aws-ofi-nccl"))
    assert own == pytest.approx(92, rel=0.1)
    assert many < 0.9 * own
    assert shared == pytest.approx(36, rel=0.1)


def test_links_of_small_cards_are_slower_than_those_of_their_generation() -> None:
    """Published: 47 GB/s of all-reduce on two A40 over a bridge of four links, 56 GB/s per direction."""
    assert _set("A40", "NV4 bridges", 1, 2).ring_gbps == pytest.approx(56.25)
    assert _set("A100-PCIE-80GB", "NV12 bridges", 1, 2).ring_gbps == pytest.approx(300.0)


def test_without_peer_access_links_carry_nothing_and_what_does_is_a_doubt() -> None:
    linked, off = _set("A40", "NV4 bridges", 1, 2), _set("A40", "NV4 bridges", 1, 2, "", "NCCL_P2P_DISABLE=1")
    assert (linked.way, off.way) == (Way.MESH, Way.PCIE)
    assert _bus(off) < 0.75 * _bus(_set("A40", "PCIe", 1, 2))
    assert any("host's memory" in text for text in off.unknown)
    assert not _set("A40", "NV4 bridges", 1, 2, "", "NCCL_P2P_DISABLE=0").unknown
    assert not _set("A40", "NV4 bridges", 1, 2, "", "NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1").unknown


def test_a_topology_that_a_tool_showed_loses_its_links_by_the_same_setting() -> None:
    gpus = tuple(TopologyGpu(index, "A40") for index in range(2))
    node = NodeTopology("node-1", gpus, (TopologyLink(0, 1, LinkType.NVLINK, 4),))
    linked, off = (gpu_set(machine_of_node(node, software=text), (0, 1)) for text in ("", "nccl 2.27, P2P disabled"))
    assert (linked.way, off.way) == (Way.MESH, Way.PCIE)
