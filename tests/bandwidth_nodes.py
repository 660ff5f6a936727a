"""Nodes that bandwidth is asked about in tests."""

import random
from itertools import combinations

from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink, TopologyNic
from kopt.topology.hardware import CUBE_MESH


def cube_mesh() -> NodeTopology:
    """Eight V100 as in a DGX-1: some pairs have two links, some one, some none."""
    linked = {(a, b): count for a, b, count in CUBE_MESH}
    links = tuple(
        TopologyLink(a, b, LinkType.NVLINK, linked[a, b]) if (a, b) in linked else TopologyLink(a, b, LinkType.SYS)
        for a, b in combinations(range(8), 2)
    )
    gpus = tuple(TopologyGpu(n, "Tesla V100-SXM2-32GB", numa=n // 4) for n in range(8))
    cards = tuple(TopologyNic(f"mlx5_{n}", gbit_per_s=100.0, state="ACTIVE") for n in range(4))
    return NodeTopology("dgx-1", gpus, links, cards, tool="nvidia-smi topo -m", vendor="nvidia")


def strange(gpus: int = 8) -> NodeTopology:
    """Cards that nobody knows, without a link that says how fast it is."""
    links = tuple(TopologyLink(a, b, LinkType.PHB) for a, b in combinations(range(gpus), 2))
    return NodeTopology("n2", tuple(TopologyGpu(n, "Foo 9000") for n in range(gpus)), links)


def without_symmetry(gpus: int, seed: int = 1) -> NodeTopology:
    """No two links alike: every set needs a look, and each look is long."""
    draw = random.Random(seed)
    links = tuple(
        TopologyLink(a, b, LinkType.XGMI, 1, gigabytes_per_s=draw.uniform(5, 64))
        for a, b in combinations(range(gpus), 2)
    )
    return NodeTopology("n3", tuple(TopologyGpu(n, "MI300X") for n in range(gpus)), links)
