"""How long a collective takes by what is known of wires and algorithms: the minimum over algorithms and protocols of
alpha + beta × message.

Latencies are those of NCCL's own tuning table (src/graph/tuning.cc: a base by algorithm and protocol, and so much per
step within and between nodes); traffic per wire follows from the algorithms (nccl-tests' PERFORMANCE.md).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kopt.core.hardware.bandwidth import Collective, Transport
from kopt.topology.set_links import GpuSet, Way

MIB = 2**20
_C = Collective
_PROTOCOLS = ("LL", "LL128", "Simple")
_BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4), "pairwise": (6.6, 14.0, 8.4)}
_HOP_US = {
    Way.SWITCH: {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)},
    Way.PCIE: {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)},
    "net": {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)},
}
_SHARE = {"LL": 0.4, "LL128": 0.9, "Simple": 1.0}
"""Of the wire that carries data: LL sends a flag with every four bytes, LL128 with every 120."""
_NVLS_US = 18.0
_SLOW = {
    Transport.RDMA: 1.2,
    Transport.PLUGIN: 1.3,
    Transport.TCPX: 3.0,
    Transport.SOCKETS: 3.5,
    Transport.UNKNOWN: 2.0,
}
"""Times the latencies of the table, which are those of InfiniBand at its best."""
_SLOW_EFA, _SLOW_EFA_FIRST = 2.5, 6.0
"""Of EFA, and of its first generation, which instances of V100 and A100 have."""
_NET_BASE_US = 4.0
"""To enter the network and leave it, times the same."""
_LAUNCH_US = 12.0
"""More where each GPU has a process of its own and they start when they get there."""
_NET_SHARE = {
    Transport.RDMA: 0.95,
    Transport.PLUGIN: 0.8,
    Transport.TCPX: 0.45,
    Transport.SOCKETS: 0.9,
    Transport.UNKNOWN: 0.8,
}
_TCPXO_SHARE = 0.87
_SLINGSHOT_SHARE, _SLINGSHOT_SHARED = 0.92, 0.75
"""Where a GPU has a card of its own, and where GPUs share them (Alps: 96 of 100 GB/s, Polaris: 36 of 50)."""
_SLINGSHOT_NODES, _SLINGSHOT_FALL = 64, 0.15
"""Jobs of more nodes than a group of the dragonfly has share its global links with others."""
_SOCKET_MOST_GBPS, _SOCKET_MOST_NEW_GBPS = 4.5, 8.0
"""What one card's sockets carry, whatever the card; several cards wait for the same cores. Hosts of NVLink 4 GPUs, with
virtual network cards of many queues, carry more over Ethernet."""
_STAGED_GBPS = 10.0
"""What one GPU's data get through the host's memory to a card and back, where cards may not read the GPU's."""
_RAILS_BETWEEN_DOMAINS = 8
"""Cards whose bandwidth rings and trees use between NVLink domains of several nodes, however many there are: 382 GB/s
of 50 GB/s cards between twenty racks; between two, where a tree needs half, 681 and rising."""
_WIRE_SHARE = {Way.SWITCH: 0.82, Way.MESH: 0.82, Way.PCIE: 1.0, Way.ALONE: 1.0}
_XGMI_SHARE = 0.70
_NVLS_SHARE, _NVLS5_SHARE = 0.69, 0.6
"""Of the links, with NVLink 4 and 5."""
_TREE_CARDS = 4
"""A node needs so many that both directions of both trees have a card of their own."""
_SHARP_SHARE = 0.75
_NET_FILLING = (4.0, 1.0, 0.5)
"""Times that, per protocol, where the pipeline runs over a network."""
_RAMP_BYTES_PER_GBPS = 8 * MIB / 300
"""Pipelines fill: at this size by bandwidth a message reaches half of it, and more with the root of the size."""


@dataclass(frozen=True)
class Analytic:
    """``algorithm`` is the one that was fastest (``ring/LL128``)."""

    latency_us: float
    algorithm: str
    gigabytes_per_s: float
    """Of the wires that bound it, per GPU or node."""


def analytic(gpus: GpuSet, kind: Collective, size_bytes: int, algorithm: str = "") -> Analytic:
    """The fastest way. A forced algorithm of the software profile is obeyed. ``algorithm`` (``ring/LL128``) asks for
    one of them: a library chooses by what wires carry, whatever others put on them."""
    ways = list(_ways(gpus, kind, max(1, size_bytes)))
    if algorithm:
        return next(way for way in ways if way.algorithm == algorithm)
    forced = [analytic for analytic in ways if analytic.algorithm.startswith(gpus.software.algorithm)]
    return min(forced or ways, key=lambda analytic: analytic.latency_us)


def _ways(gpus: GpuSet, kind: Collective, m: int) -> Iterator[Analytic]:
    if kind is _C.ALL_TO_ALL:
        yield from _pairwise(gpus, m)
        return
    wire = kind.bus_factor(gpus.ranks)
    yield from _protocols(gpus, kind, "ring", m, wire, ring_bus_gbps(gpus, kind))
    if kind is not _C.ALL_REDUCE:
        return
    if gpus.domains > 1:
        yield from _protocols(gpus, kind, "tree", m, wire, tree_bus_gbps(gpus))
    if gpus.in_network and gpus.domain_gpus >= 3 and gpus.software.version in ((0, 0), *_NVLS_VERSIONS):
        gbps = nvls_bus_gbps(gpus)
        hops = math.log2(gpus.domains) * _net_us(gpus, "tree", 2) * 2 if gpus.domains > 1 else 0.0
        yield _timed("nvls", _NVLS_US + _start_us(gpus) + hops, m, wire, gbps)


_NVLS_VERSIONS = tuple((2, minor) for minor in range(17, 60))


def wire_share(gpus: GpuSet, kind: Collective) -> float:
    """What of the links' specification a ring reaches: headers, and a copy of each GPU's own part, which weighs more
    the fewer there are."""
    if gpus.way in (Way.PCIE, Way.ALONE):
        return 1.0
    if gpus.gpu.vendor == "amd":
        return _XGMI_SHARE
    copied = 0.35 if kind is _C.ALL_REDUCE else 0.0 if kind in (_C.BROADCAST, _C.REDUCE) else 0.5
    return _WIRE_SHARE[gpus.way] * (1 - copied / gpus.domain_gpus)


def network_gbps(gpus: GpuSet) -> float:
    """What the set gets through a node's cards."""
    transport = gpus.software.transport
    assert gpus.network is not None
    total = gpus.network_gbps * _NET_SHARE[transport]
    if transport is Transport.TCPX and "tcpxo" in gpus.network.name.lower():
        total = gpus.network_gbps * _TCPXO_SHARE
    if transport is Transport.PLUGIN and "slingshot" in gpus.network.name.lower():
        own = gpus.network.cards >= gpus.count
        fall = min(1.0, (_SLINGSHOT_NODES / gpus.nodes) ** _SLINGSHOT_FALL)
        total = gpus.network_gbps * (_SLINGSHOT_SHARE if own else _SLINGSHOT_SHARED) * fall
    if transport is Transport.SOCKETS:
        cards = max(1.0, gpus.network_gbps / gpus.network.card_gbps)
        new = gpus.gpu.generation >= 4 and not gpus.network.fabric
        total = min(total, (_SOCKET_MOST_NEW_GBPS if new else _SOCKET_MOST_GBPS) * math.sqrt(cards))
    return min(total, _STAGED_GBPS * gpus.domain_gpus) if gpus.software.staged else total


def _rails_gbps(gpus: GpuSet) -> float:
    """The same as far as rings and trees use it."""
    total = network_gbps(gpus)
    if gpus.domain_nodes == 1:
        return total
    return min(total, total / max(gpus.network_gbps, 1e-9) * gpus.card_gbps * _RAILS_BETWEEN_DOMAINS)


def ring_bus_gbps(gpus: GpuSet, kind: Collective) -> float:
    """Bus bandwidth of rings: the least of what the links and the cards carry."""
    within = _chain_gbps(gpus) * wire_share(gpus, kind) if gpus.domain_gpus > 1 else math.inf
    if kind is _C.SENDRECV:
        within = gpus.pair_gbps * wire_share(gpus, kind) if gpus.domain_gpus > 1 else math.inf
        outside = min(network_gbps(gpus), gpus.card_gbps) if gpus.domains > 1 else math.inf
        return max(1e-3, min(within, outside))
    outside = _rails_gbps(gpus) if gpus.domains > 1 else math.inf
    return max(1e-3, min(within, outside))


def _chain_gbps(gpus: GpuSet) -> float:
    """Of the links along rings. Between nodes a ring is open in each of them: in a full mesh of k GPUs, k chains fit
    where k - 1 closed rings do (eight MI300X: 313 GB/s in a node, 360 on two). For less than all GPUs of a node the
    library does not look for them (four of eight MI355X: 128 GB/s)."""
    k = gpus.domain_gpus
    full = gpus.way is Way.MESH and math.isclose(gpus.ring_gbps, (k - 1) * gpus.pair_gbps, rel_tol=0.01)
    full = full and math.isclose(gpus.ring_gbps, gpus.gpu.link_gbps, rel_tol=0.01)
    return gpus.ring_gbps * k / (k - 1) if gpus.domains > 1 and full else gpus.ring_gbps


def tree_bus_gbps(gpus: GpuSet) -> float:
    """A node passes the message up and down once, where a ring sends nearly twice of it: between two nodes a tree needs
    half of the network, if there are cards enough that both directions of both trees have their own."""
    ring = ring_bus_gbps(gpus, _C.ALL_REDUCE)
    sockets = gpus.software.transport is Transport.SOCKETS
    if gpus.network is None or gpus.network.cards < _TREE_CARDS or sockets:
        return 0.9 * ring
    within = _chain_gbps(gpus) * wire_share(gpus, _C.ALL_REDUCE) if gpus.domain_gpus > 1 else ring
    return 0.9 * max(ring, min(within, _rooted_bus_gbps(gpus)))


def nvls_bus_gbps(gpus: GpuSet) -> float:
    """The switches add up: a GPU sends its message and a k-th of it back. Between nodes a tree."""
    k = gpus.domain_gpus
    factor = _C.ALL_REDUCE.bus_factor(gpus.ranks)
    share = _NVLS_SHARE if gpus.gpu.generation <= 4 else _NVLS5_SHARE
    within = factor * gpus.ring_gbps * share / (1 + 1 / k) * min(1.0, float((8 / k) ** 0.1))
    return within if gpus.domains == 1 else min(within, _rooted_bus_gbps(gpus))


def _rooted_bus_gbps(gpus: GpuSet) -> float:
    """What the network allows along trees: of two nodes each sends the message once; of more, a node inside one tree
    is a leaf of the other and sends it twice. Where switches reduce, every node sends it once and gets it once."""
    times = 1.0 if gpus.domains <= 2 else 1 / _SHARP_SHARE if gpus.software.sharp else 2.0
    return _rails_gbps(gpus) * _C.ALL_REDUCE.bus_factor(gpus.ranks) / times


def _protocols(gpus: GpuSet, kind: Collective, algorithm: str, m: int, wire: float, gbps: float) -> Iterator[Analytic]:
    for number, protocol in enumerate(_PROTOCOLS):
        alpha = _BASE_US[algorithm][number] + _start_us(gpus) + _steps_us(gpus, kind, algorithm, number)
        # A ring passes on one part per rank: the more ranks, the smaller, and the slower it fills the wire.
        filling = 1.0 if number == 2 else 0.0
        if gpus.domains > 1:
            filling = _NET_FILLING[number] * (max(1.0, gpus.ranks / 8) if algorithm == "ring" and number == 2 else 1.0)
        gbps_now = gbps * _SHARE[protocol]
        yield _timed(
            f"{algorithm}/{protocol}",
            alpha,
            m,
            wire,
            gbps_now,
            filling=filling if number == 2 or gpus.domains > 1 else 0.0,
        )


def _steps_us(gpus: GpuSet, kind: Collective, algorithm: str, protocol: int) -> float:
    k, n = gpus.domain_gpus, gpus.domains
    hop = _HOP_US[Way.PCIE if gpus.way is Way.PCIE else Way.SWITCH][algorithm][protocol]
    net = _net_us(gpus, algorithm, protocol)
    if algorithm == "tree":
        return 2 * ((k - 1) * hop + math.log2(n) * net)
    if kind in (_C.SENDRECV, _C.BROADCAST, _C.REDUCE):
        return net if n > 1 else hop
    rounds = 2 if kind is _C.ALL_REDUCE else 1
    within, across = (k - 1, 0) if n == 1 else ((k - 1) * n, n)
    return rounds * (within * hop + across * net * _farther(gpus))


def _slow(gpus: GpuSet) -> float:
    efa = gpus.network is not None and "EFA" in gpus.network.name
    if not efa or gpus.software.transport is not Transport.PLUGIN:
        return _SLOW[gpus.software.transport]
    return _SLOW_EFA if gpus.gpu.generation >= 4 else _SLOW_EFA_FIRST


def _start_us(gpus: GpuSet) -> float:
    network = _NET_BASE_US * _slow(gpus) if gpus.domains > 1 else 0.0
    return network + (0.0 if gpus.software.in_process else _LAUNCH_US)


def _farther(gpus: GpuSet) -> float:
    """Many nodes are more switches apart, and a chain over all of them waits for the last."""
    return min(4.0, float((gpus.domains / 2) ** 0.35))


def _net_us(gpus: GpuSet, algorithm: str, protocol: int) -> float:
    return _HOP_US["net"][algorithm][protocol] * _slow(gpus)


def _pairwise(gpus: GpuSet, m: int) -> Iterator[Analytic]:
    """Everybody sends to everybody: what stays in the node by its links, the rest by each GPU's share of the cards."""
    k, n, ranks = gpus.domain_gpus, gpus.domains, gpus.ranks
    inside = m * (k - 1) / ranks / (gpus.spread_gbps * wire_share(gpus, _C.ALL_TO_ALL)) if k > 1 else 0.0
    outside = m * (n - 1) / n / (_scattered(n) * network_gbps(gpus) / k) if n > 1 else 0.0
    wire = _C.ALL_TO_ALL.bus_factor(ranks)
    gbps = m * wire / max(inside, outside, 1e-12)
    hop = 1.5 if gpus.way is Way.PCIE else 0.5
    alpha = (
        6.6
        + _start_us(gpus)
        + hop * (k - 1)
        + (_net_us(gpus, "ring", 1) * (1 + 0.5 * (ranks - k)) * _farther(gpus) if n > 1 else 0.0)
    )
    yield _timed("pairwise", alpha, m, wire, gbps)


def _scattered(nodes: int) -> float:
    """What of the cards' bandwidth is left where everybody sends to everybody: ways cross, the more the more nodes."""
    return 0.8 * float((2 / nodes) ** 0.15)


def _timed(name: str, alpha_us: float, m: int, wire: float, gbps: float, *, filling: float = 1.0) -> Analytic:
    slower = 1 + math.sqrt(filling * _RAMP_BYTES_PER_GBPS * min(gbps, 900.0) / m) if m > 65536 else 1.0
    return Analytic(alpha_us + m * wire / (gbps * 1e3) * slower, name, gbps)
