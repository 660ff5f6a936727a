"""Nodes that were discovered, in the words of tables: reading these gives the same machine, or nothing is said."""

from itertools import combinations

import pytest
from bandwidth_nodes import cube_mesh, strange, without_symmetry

from kopt.core.hardware.node_topology import (
    LinkType,
    NodeTopology,
    TopologyError,
    TopologyGpu,
    TopologyLink,
    TopologyNic,
)
from kopt.topology.from_node import machine_from
from kopt.topology.hardware import machine_of
from kopt.topology.in_words import in_words


def node(gpu: str, count: int, ways: dict[tuple[int, int], int], kind: LinkType = LinkType.NVLINK) -> NodeTopology:
    """A node whose GPUs have so many links between them; the others go through PCIe."""
    links = tuple(
        TopologyLink(a, b, kind if ways.get((a, b)) else LinkType.SYS, ways.get((a, b)))
        for a, b in combinations(range(count), 2)
    )
    cards = tuple(TopologyNic(f"mlx5_{n}", gbit_per_s=400.0, state="ACTIVE", link_layer="Ethernet") for n in range(2))
    vendor = "amd" if "Instinct" in gpu else "nvidia"
    return NodeTopology("n", tuple(TopologyGpu(n, gpu) for n in range(count)), links, cards, vendor=vendor)


def every(count: int, links: int) -> dict[tuple[int, int], int]:
    return dict.fromkeys(combinations(range(count), 2), links)


NODES = {
    "NVSwitch-NV18 x8": node("NVIDIA H100 80GB HBM3", 8, every(8, 18)),
    "NVSwitch-NV12 x8": node("NVIDIA A100-SXM4-80GB", 8, every(8, 12)),
    "NV4 x4": node("NVIDIA A100-SXM4-40GB", 4, every(4, 4)),
    "NV12 bridges x4": node("NVIDIA A100 80GB PCIe", 4, {(0, 1): 12, (2, 3): 12}),
    "PCIe x4": node("NVIDIA L40S", 4, {}),
    "XGMI mesh-8": node("AMD Instinct MI300X OAM", 8, every(8, 1), LinkType.XGMI),
    "HybridCubeMesh x8": cube_mesh(),
}


@pytest.mark.parametrize("words", NODES)
def test_words_are_read_as_the_same_machine(words: str) -> None:
    topology = NODES[words]
    row = in_words(topology, 2, len(topology.gpus), "nccl 2.27.3")
    assert row.intra_link == words
    first, read = machine_from(topology), machine_of(row)
    assert read.installed == first.installed
    assert first.network is not None
    assert read.network is not None
    assert (read.network.cards, read.network.card_gbps) == (first.network.cards, first.network.card_gbps)
    links = [sorted(edge.total_gbps for edge in machine.node.edges) for machine in (first, read)]
    assert links[0] == pytest.approx(links[1], rel=0.05)


def test_what_no_words_describe_is_refused() -> None:
    with pytest.raises(TopologyError, match="not known"):
        in_words(strange(), 2, 8)
    with pytest.raises(TopologyError, match="no words describe"):
        in_words(without_symmetry(8), 2, 8)
    with pytest.raises(TopologyError, match="it has 4"):
        in_words(NODES["PCIe x4"], 2, 8)
