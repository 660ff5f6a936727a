"""What the links of a chosen set of GPUs carry, read off the graph: the analytic layer's and the residual's input."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from weakref import WeakKeyDictionary

from kopt.core.hardware.bandwidth import BandwidthError, Software
from kopt.topology.graph import Device, DeviceGraph, DeviceKind, EdgeKind, GpuSpecs, Machine, Network
from kopt.topology.rings import ring_gbps

_MOST_CACHED = 4096


class Way(StrEnum):
    """How the GPUs of the set reach each other within a node."""

    ALONE = "alone"
    SWITCH = "switch"
    MESH = "mesh"
    PCIE = "pcie"


@dataclass(frozen=True)
class GpuSet:
    """``count`` GPUs in each of ``nodes`` nodes. GB/s per GPU and direction, of the wires: ``ring_gbps`` along rings
    over all of them, ``spread_gbps`` to all others at once, ``pair_gbps`` over the weakest hop from one to the next.
    ``network_gbps`` is what the set may use of a node's network cards, ``card_gbps`` what one GPU may of them.
    """

    gpu: GpuSpecs
    way: Way
    count: int
    nodes: int
    ring_gbps: float
    spread_gbps: float
    pair_gbps: float
    in_network: bool
    """The link switches reduce and multicast (NVLS)."""
    network: Network | None
    network_gbps: float
    card_gbps: float
    software: Software
    unknown: tuple[str, ...] = ()
    domain_nodes: int = 1
    """Nodes of the set that share one NVLink domain."""

    @property
    def ranks(self) -> int:
        return self.count * self.nodes

    @property
    def domains(self) -> int:
        """NVLink domains, which are nodes where nothing joins nodes; only between them is the network used."""
        return math.ceil(self.nodes / self.domain_nodes)

    @property
    def domain_gpus(self) -> int:
        """GPUs of the set in one NVLink domain."""
        return self.count * self.domain_nodes


_cached: "WeakKeyDictionary[Machine, dict[tuple[tuple[int, ...], int], GpuSet]]" = WeakKeyDictionary()


def gpu_set(machine: Machine, gpus: Sequence[int], nodes: int = 1) -> GpuSet:
    """The same GPUs in each of ``nodes`` nodes. Raises BandwidthError for GPUs that are not there, for one rank alone
    and for several nodes without a network."""
    selected = tuple(sorted(gpus))
    sets = _cached.setdefault(machine, {})
    if (selected, nodes) not in sets:
        if len(sets) >= _MOST_CACHED:
            sets.clear()
        sets[selected, nodes] = _read(machine, selected, nodes)
    return sets[selected, nodes]


def _read(machine: Machine, gpus: tuple[int, ...], nodes: int) -> GpuSet:
    missing = sorted(set(gpus) - set(machine.node.gpus))
    if missing:
        available = ", ".join(map(str, machine.node.gpus))
        raise BandwidthError(f"GPU {missing[0]} is not there; the node has {available or 'none'}")
    if len(set(gpus)) != len(gpus):
        raise BandwidthError("a GPU is named twice")
    if nodes < 1 or len(gpus) * nodes < 2:
        raise BandwidthError("a collective needs two GPUs at least")
    domain_nodes = _domain_nodes(machine, gpus, nodes)
    if nodes > domain_nodes and machine.network is None:
        raise BandwidthError("several nodes, but no network card is known; say which with --nics")
    way, ring, spread, pair = _within(machine.node, gpus, in_domain=domain_nodes > 1)
    if way is Way.PCIE and nodes == 1:
        ring = max(ring, _between_bridged_gbps(machine.node, gpus, pair))
    network = machine.network if nodes > domain_nodes else None
    total, card = _outside(network, len(gpus), machine.installed or len(machine.node.gpus))
    if machine.card_shares:
        # Every channel carries as much, so that the busiest card holds up all of them.
        share = min(machine.card_shares.get(gpu, 1.0) for gpu in gpus)
        total, card = total * share, card * share
    unknown = [name for name in machine.node.unknown if way is not Way.ALONE or not name.startswith("link")]
    if network is not None and not network.known:
        unknown.append(f"speed of network {network.name!r}")
    if domain_nodes > 1 and not machine.domain_known:
        unknown.append("whether one NVLink domain joins the nodes")
    if way is not Way.ALONE and ring <= 0:
        unknown.append("links between these GPUs")
    return GpuSet(
        machine.node.gpu,
        way,
        len(gpus),
        nodes,
        ring,
        spread,
        pair,
        way is Way.SWITCH and machine.node.gpu.generation >= 4,
        network,
        min(total * domain_nodes, machine.network_limit_gbps * domain_nodes),
        min(card, machine.network_limit_gbps),
        machine.software,
        tuple(unknown),
        domain_nodes,
    )


def _domain_nodes(machine: Machine, gpus: Sequence[int], nodes: int) -> int:
    """Nodes are shared out evenly among as few NVLink domains as hold them."""
    if machine.domain_nodes <= 1 or any(gpu not in machine.node.switched for gpu in gpus):
        return 1
    return math.ceil(nodes / math.ceil(nodes / machine.domain_nodes))


def _outside(network: Network | None, count: int, installed: int) -> tuple[float, float]:
    """Cards are shared out evenly among a node's GPUs, and a GPU has one at least."""
    if network is None:
        return 0.0, 0.0
    each = max(network.total_gbps / max(installed, 1), min(network.card_gbps, network.total_gbps))
    return min(network.total_gbps, each * count), each


def _within(node: DeviceGraph, gpus: tuple[int, ...], *, in_domain: bool) -> tuple[Way, float, float, float]:
    if len(gpus) == 1 and not in_domain:
        return Way.ALONE, 0.0, 0.0, 0.0
    if all(gpu in node.switched for gpu in gpus):
        least = min(node.switched[gpu] for gpu in gpus)
        return Way.SWITCH, least, least, least
    ring = ring_gbps(gpus, node.between)
    if ring > 0:
        links = [node.between.get(pair, 0.0) for pair in itertools.permutations(gpus, 2)]
        direct = [link for link in links if link > 0]
        spread = min(sum(node.between.get((a, b), 0.0) for b in gpus if b != a) for a in gpus)
        # Pairs without a link of their own forward through others: everybody's share falls by the longer way.
        return Way.MESH, ring, spread * (len(direct) / len(links)) ** 2, min(direct)
    gbps = _pcie_gbps(node, gpus)
    return Way.PCIE, max(gbps, _between_halves_gbps(node, gpus)), gbps, gbps


def _between_halves_gbps(node: DeviceGraph, gpus: tuple[int, ...]) -> float:
    """Along rings over two halves whose GPUs are linked: every ring goes from one to the other by another GPU (two
    quads of MetaX C500: 73 GB/s, where one GPU's link carries 19). 0 where there are no such halves."""
    halves = {frozenset(b for b in gpus if b == a or (a, b) in node.between) for a in gpus}
    if len(halves) != 2 or any(len(half) != len(gpus) // 2 or len(half) < _LEAST_HALF for half in halves):
        return 0.0
    rings = min(ring_gbps(tuple(sorted(half)), node.between) for half in halves)
    bridge = _BRIDGE5 if node.gpu.pcie_gbps >= _PCIE5_GBPS else _BRIDGE
    return min(rings, len(gpus) // 2 * node.gpu.pcie_gbps * bridge)


def _between_bridged_gbps(node: DeviceGraph, gpus: tuple[int, ...], pcie_gbps: float) -> float:
    """Along rings over pairs that bridges join: a ring leaves a pair by one GPU and enters it by the other, so that two
    rings, one each way round, find every PCIe link free (four A100 of an NC96ads A100 v4: 30 GB/s where one ring gets
    15; eight H200 NVL: 69 and 31). 0 where the GPUs are no such pairs."""
    linked = [[node.between[gpu, b] for b in gpus if (gpu, b) in node.between] for gpu in gpus]
    if len(gpus) < 2 * _LEAST_BRIDGES or any(len(links) != 1 for links in linked):
        return 0.0
    return min(2 * pcie_gbps, *(links[0] for links in linked))


_BRIDGE, _BRIDGE5, _STAGED, _SOCKET_SHARE = 0.6, 0.75, 0.7, 0.75
"""Share of a PCIe link that passes the host bridge, and one of PCIe 5; and where GPUs may not read each other's memory;
and from one socket to the other."""
_FALL, _FALL_BRIDGED = 0.8, 0.3
"""Exponents by which bandwidth through host bridges falls with the GPUs that share them; cards that take NVLink bridges
sit behind PCIe switches, as a rule, and hosts with PCIe 5 have roots enough."""
_PCIE5_GBPS = 64.0
_LEAST_HALF = 3
_LEAST_BRIDGES = 2


def _pcie_gbps(node: DeviceGraph, gpus: tuple[int, ...]) -> float:
    """GB/s per direction along a ring through switches, host bridges and sockets; what is shared is divided."""
    ways = {gpu: node.way_up(Device(DeviceKind.GPU, gpu)) for gpu in gpus}
    link = min(
        (node.parents[Device(DeviceKind.GPU, gpu)].total_gbps if len(ways[gpu]) > 1 else node.gpu.pcie_gbps)
        for gpu in gpus
    )
    common = Counter(device for way in ways.values() for device in set(way[1:]))
    unshared = [device for device, many in common.items() if many < len(gpus) and device in node.parents]
    link = min([link, *(node.parents[device].total_gbps for device in unshared)])
    if any(many == len(gpus) and item.kind is DeviceKind.PCIE_SWITCH for item, many in common.items()):
        return link * (0.85 if node.peer_access else _STAGED * _BRIDGE)
    # Behind one switch only the ends of a chain go up; the bridge sees as many ways as there are switches or GPUs.
    tops = {way[-2] if len(way) > 2 else way[0] for way in ways.values()}
    through = link * (_BRIDGE5 if link >= _PCIE5_GBPS else _BRIDGE) * (1.0 if node.peer_access else _STAGED)
    fall = _FALL_BRIDGED if node.gpu.link_gbps > 0 or link >= _PCIE5_GBPS else _FALL
    shared = float((2 / max(2, len(tops))) ** fall)
    sockets = {way[-1] for way in ways.values() if way[-1].kind is DeviceKind.NUMA}
    if len(sockets) < 2:
        return through * shared
    across = min((e.total_gbps for e in node.edges if e.kind is EdgeKind.SOCKET), default=link)
    return min(through * shared * (_SOCKET_SHARE if len(tops) == 2 else 1.0), across)
