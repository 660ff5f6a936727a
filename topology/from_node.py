"""A discovered node becomes the typed multigraph: what tools say of links, and the catalogue where they are silent."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from kopt.core.hardware.bandwidth import Software, Transport
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyError, TopologyLink, TopologyNic
from kopt.topology.gpu_facts import NO_PEERS, NVLINK_GBPS, RACK_GPUS, SUPERCHIP_RACK, gpu_specs, nvlink_gbps, xgmi_gbps
from kopt.topology.graph import Card, Device, DeviceGraph, DeviceKind, Edge, EdgeKind, GpuSpecs, Machine, Network
from kopt.topology.hardware import SOCKET_GBPS
from kopt.topology.networks import GBIT, network_of, peers_off, software_of

_SWITCHED = (LinkType.PIX, LinkType.PXB)
_SAME_SOCKET = (*_SWITCHED, LinkType.PHB, LinkType.NODE)
_BY_PORTS = {4: 3, 6: 2, 8: 3, 12: 3, 18: 4}
"""NVLink generation that so many links between every two GPUs are of, where the card is not known."""
_XGMI_GUESS_GBPS = 50.0
_METAXLINK_GUESS_GBPS = 50.0


def machine_from(topology: NodeTopology, *, gpu: str = "", software: Software | None = None) -> Machine:
    """``gpu`` names the model where the tool did not. Raises TopologyError for a node without GPUs."""
    if not topology.gpus:
        raise TopologyError(f"node {topology.node!r} has no GPU")
    names = Counter(topology_gpu.name for topology_gpu in topology.gpus if topology_gpu.name)
    name = gpu or (names.most_common(1)[0][0] if names else "")
    unknown = [] if len(names) <= 1 or gpu else ["GPUs of several models"]
    specs = _specs(topology, name)
    direct, doubts = _direct(topology, specs)
    unknown += doubts + ([] if specs.known and name else [f"GPU {name or 'without a name'}"])
    indexes = tuple(sorted(topology_gpu.index for topology_gpu in topology.gpus))
    node = DeviceGraph(specs, indexes, (*direct, *_pcie(topology, specs)), not NO_PEERS.search(name), tuple(unknown))
    network = _network(topology.nics, len(indexes), specs)
    if software is None:
        transport = Transport.RDMA if network is not None else Transport.UNKNOWN
        software = Software(transport)
    in_rack = SUPERCHIP_RACK.search(name)
    domain_nodes = RACK_GPUS // len(indexes) if in_rack else 1
    cards = _cards(topology, network)
    return Machine(node, network, software, len(indexes), domain_nodes, domain_known=not in_rack, cards=cards)


def machine_of_node(topology: NodeTopology, *, gpu: str = "", nics: str = "", software: str = "") -> Machine:
    """The node as a machine of such nodes, with what the caller knows better."""
    machine = machine_from(topology, gpu=gpu)
    if peers_off(software):
        machine = replace(machine, node=machine.node.without_peers())
    network = network_of(nics, len(topology.gpus), machine.node.gpu) if nics else machine.network
    profile: Software = software_of(software, "", network) if nics or software else machine.software
    if network is not None and not nics and software:
        profile = replace(profile, transport=machine.software.transport)
    return replace(machine, network=network, software=profile, cards=() if nics else machine.cards)


def _specs(topology: NodeTopology, name: str) -> GpuSpecs:
    counts = [link.count for link in topology.links if link.type is LinkType.NVLINK and link.count]
    most = max(counts, default=0)
    specs = gpu_specs(name, topology.vendor, f"NV{most}" if most else "")
    if not name and most:
        generation = _BY_PORTS.get(most, 3)
        return GpuSpecs("", specs.vendor, most * NVLINK_GBPS[generation], specs.pcie_gbps, 0.0, 0, generation, False)
    return specs


def _direct(topology: NodeTopology, specs: GpuSpecs) -> tuple[list[Edge], list[str]]:
    links = [link for link in topology.links if link.type.direct]
    if not links:
        return [], []
    kinds = {link.type for link in links}
    doubts: list[str] = []
    each = nvlink_gbps(specs)
    if LinkType.XGMI in kinds:
        each = max((gpu.port_gigabytes_per_s or 0.0 for gpu in topology.gpus), default=0.0) or xgmi_gbps(specs.name)
        if not each and not all(link.gigabytes_per_s for link in links):
            doubts.append("speed of XGMI links")
        each = each or _XGMI_GUESS_GBPS
    if LinkType.METAXLINK in kinds:
        doubts.append("speed of MetaXLink")
        each = _METAXLINK_GUESS_GBPS
    switched = _through_switches(topology, links, specs, each)
    if switched:
        return [
            Edge(_gpu(number), Device(DeviceKind.LINK_SWITCH, 0), EdgeKind.NVLINK, gbps) for number, gbps in switched
        ], []
    edges = [
        Edge(_gpu(link.a), _gpu(link.b), EdgeKind(link.type.value), (link.gigabytes_per_s or each * (link.count or 1)))
        for link in links
    ]
    return edges, doubts


def _through_switches(
    topology: NodeTopology, links: Sequence[TopologyLink], specs: GpuSpecs, each: float
) -> list[tuple[int, float]]:
    """Every two GPUs show all links of a GPU: these lead to switches."""
    gpus = [topology_gpu.index for topology_gpu in topology.gpus]
    counts = {link.count for link in links}
    if any(link.type is not LinkType.NVLINK for link in links):
        return []
    whole = len(links) == len(gpus) * (len(gpus) - 1) // 2 and len(counts) == 1 and len(gpus) > 1
    count = next(iter(counts)) or 0 if whole else 0
    total = max(specs.link_gbps, count * each if not specs.link_gbps else 0.0)
    many = whole and count * each * (len(gpus) - 1) > 1.05 * total
    behind = {gpu for switch in topology.switches for gpu in switch.gpus}
    if not (many or (len(gpus) > 1 and behind >= set(gpus) and whole)):
        return []
    return [
        (topology_gpu.index, (topology_gpu.ports or count) * (topology_gpu.port_gigabytes_per_s or each))
        for topology_gpu in topology.gpus
    ]


def _gpu(index: int) -> Device:
    return Device(DeviceKind.GPU, index)


def _by_cards(topology: NodeTopology) -> list[tuple[int, int]]:
    """GPUs that are near one network card are near each other, which NVLink between them may hide."""
    beside: dict[str, list[int]] = defaultdict(list)
    for nic_affinity in topology.nic_affinity:
        if nic_affinity.type in _SAME_SOCKET:
            beside[nic_affinity.nic].append(nic_affinity.gpu)
    return [pair for gpus in beside.values() for pair in pairwise(gpus)]


def _pcie(topology: NodeTopology, specs: GpuSpecs) -> Iterator[Edge]:
    """GPUs that a switch joins hang below it; switches and GPUs below their NUMA node."""
    between = {(link.a, link.b): link.type for link in topology.links}
    indexes = sorted(gpu.index for gpu in topology.gpus)
    switch = _joined(indexes, [pair for pair, kind in between.items() if kind in _SWITCHED])
    near = [pair for pair, kind in between.items() if kind in _SAME_SOCKET] + _by_cards(topology)
    socket = _joined(indexes, near) if near or any(k in (LinkType.SYS, LinkType.SOC) for k in between.values()) else {}
    numas = {gpu.index: gpu.numa for gpu in topology.gpus if gpu.numa is not None}
    for index in indexes:
        numa = numas.get(index, socket.get(index, 0))
        assert numa is not None
        root = Device(DeviceKind.NUMA, numa)
        if sum(number == switch[index] for number in switch.values()) > 1:
            below = Device(DeviceKind.PCIE_SWITCH, switch[index])
            yield Edge(_gpu(index), below, EdgeKind.PCIE, specs.pcie_gbps)
            if switch[index] == index:
                yield Edge(below, root, EdgeKind.PCIE, specs.pcie_gbps)
        else:
            yield Edge(_gpu(index), root, EdgeKind.PCIE, specs.pcie_gbps)
    yield Edge(Device(DeviceKind.NUMA, 0), Device(DeviceKind.NUMA, 1), EdgeKind.SOCKET, SOCKET_GBPS)


def _joined(indexes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Each GPU to the lowest one that it is joined with."""
    of = {index: index for index in indexes}
    for a, b in pairs:
        low, high = sorted((of[a], of[b]))
        of = {number: low if to == high else to for number, to in of.items()}
    return of


_NEAREST = (LinkType.PIX, LinkType.PXB, LinkType.PHB, LinkType.NODE, LinkType.SOC, LinkType.SYS)


def _cards(topology: NodeTopology, network: Network | None) -> tuple[Card, ...]:
    """The cards of the network, each with the GPUs to which no other one is nearer."""
    if network is None:
        return ()
    speeds = {nic.name: (nic.gbit_per_s or 0.0) * GBIT for nic in topology.nics if "down" not in nic.state.lower()}
    most = max(speeds.values())
    names = [name for name, gbps in speeds.items() if gbps >= 0.5 * most]
    ways: dict[int, dict[str, int]] = defaultdict(dict)
    for way in topology.nic_affinity:
        if way.nic in names and way.type in _NEAREST:
            ways[way.gpu][way.nic] = _NEAREST.index(way.type)
    nearest = {gpu: {nic for nic, rank in ranks.items() if rank == min(ranks.values())} for gpu, ranks in ways.items()}
    is_complete = set(nearest) >= {gpu.index for gpu in topology.gpus}
    return tuple(
        Card(
            name,
            speeds[name] or network.card_gbps,
            tuple(sorted(gpu for gpu, nics in nearest.items() if name in nics)) if is_complete else None,
        )
        for name in names
    )


def _network(nics: Sequence[TopologyNic], installed: int, specs: GpuSpecs) -> Network | None:
    cards = [nic for nic in nics if "down" not in nic.state.lower()]
    if not cards:
        return None
    speeds = [topology_nic.gbit_per_s * GBIT for topology_nic in cards if topology_nic.gbit_per_s]
    fast = [speed for speed in speeds if speed >= 0.5 * max(speeds)]
    if not fast:
        return network_of(f"{len(cards)}x cards of unknown speed", installed, specs)
    return Network(len(fast), sum(fast) / len(fast), f"{len(fast)}x {fast[0] / GBIT:g} Gbit/s")
