"""A discovered node becomes the typed multigraph: what tools say of links, and the catalogue where they are silent."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from kopt.core.bandwidth import Software, Transport
from kopt.core.topology import LinkType, NodeTopology, TopologyError, TopologyLink, TopologyNic
from kopt.policies.bandwidth.facts import NO_PEERS, NVLINK_GBPS, gpu_facts, xgmi_gbps
from kopt.policies.bandwidth.graph import Device, DeviceGraph, DeviceKind, Edge, EdgeKind, GpuFacts, Machine, Network
from kopt.policies.bandwidth.hardware import (
    GBIT,
    NIC_GUESS_GBPS,
    SOCKET_GBPS,
    HardwareRow,
    network_of,
    software_of,
)

_SWITCHED = (LinkType.PIX, LinkType.PXB)
_ONE_SOCKET = (*_SWITCHED, LinkType.PHB, LinkType.NODE)
_BY_PORTS = {4: 3, 6: 2, 8: 3, 12: 3, 18: 4}
"""NVLink generation that so many links between every two GPUs are of, where the card is not known."""
_XGMI_GUESS_GBPS = 50.0


def machine_from(topology: NodeTopology, *, gpu: str = "", software: Software | None = None) -> Machine:
    """``gpu`` names the model where the tool did not. Raises TopologyError for a node without GPUs."""
    if not topology.gpus:
        raise TopologyError(f"node {topology.node!r} has no GPU")
    names = Counter(one.name for one in topology.gpus if one.name)
    name = gpu or (names.most_common(1)[0][0] if names else "")
    unknown = [] if len(names) <= 1 or gpu else ["GPUs of several models"]
    facts = _facts(topology, name)
    direct, doubts = _direct(topology, facts)
    unknown += doubts + ([] if facts.known and name else [f"GPU {name or 'without a name'}"])
    indexes = tuple(sorted(one.index for one in topology.gpus))
    node = DeviceGraph(
        facts, indexes, (*direct, *_pcie(topology, facts)), not NO_PEERS.search(name), tuple(unknown)
    )  # fmt: skip
    network = _network(topology.nics)
    if software is None:
        transport = Transport.RDMA if network is not None else Transport.UNKNOWN
        software = Software(transport)
    return Machine(node, network, software, len(indexes))


def machine_of_node(topology: NodeTopology, *, gpu: str = "", nics: str = "", software: str = "") -> Machine:
    """The node as a machine of such nodes, with what the caller knows better."""
    machine = machine_from(topology, gpu=gpu)
    network = network_of(nics, len(topology.gpus)) if nics else machine.network
    said = HardwareRow(gpu, "", "", 2 if network else 1, len(topology.gpus), nics, software)
    told: Software = software_of(said, network) if nics or software else machine.software
    if network is not None and not nics and software:
        told = replace(told, transport=machine.software.transport)
    return replace(machine, network=network, software=told)


def _facts(topology: NodeTopology, name: str) -> GpuFacts:
    counts = [one.count for one in topology.links if one.type is LinkType.NVLINK and one.count]
    most = max(counts, default=0)
    facts = gpu_facts(name, topology.vendor, f"NV{most}" if most else "")
    if not name and most:
        generation = _BY_PORTS.get(most, 3)
        return GpuFacts("", facts.vendor, most * NVLINK_GBPS[generation], facts.pcie_gbps, 0.0, 0, generation, False)
    return facts


def _direct(topology: NodeTopology, facts: GpuFacts) -> tuple[list[Edge], list[str]]:
    links = [one for one in topology.links if one.type.direct]
    if not links:
        return [], []
    kinds = {one.type for one in links}
    doubts: list[str] = []
    each = NVLINK_GBPS.get(facts.generation, 25.0)
    if LinkType.XGMI in kinds:
        each = max((one.port_gigabytes_per_s or 0.0 for one in topology.gpus), default=0.0) or xgmi_gbps(facts.name)
        if not each and not all(one.gigabytes_per_s for one in links):
            doubts.append("speed of XGMI links")
        each = each or _XGMI_GUESS_GBPS
    switched = _through_switches(topology, links, facts, each)
    if switched:
        return [Edge(_gpu(one), Device(DeviceKind.LINK_SWITCH, 0), EdgeKind.NVLINK, gbps) for one, gbps in switched], []
    edges = [
        Edge(_gpu(one.a), _gpu(one.b), EdgeKind(one.type.value), (one.gigabytes_per_s or each * (one.count or 1)))
        for one in links
    ]
    return edges, doubts


def _through_switches(
    topology: NodeTopology, links: Sequence[TopologyLink], facts: GpuFacts, each: float
) -> list[tuple[int, float]]:
    """Every two GPUs show all links of a GPU: these lead to switches."""
    gpus = [one.index for one in topology.gpus]
    counts = {one.count for one in links}
    if any(one.type is not LinkType.NVLINK for one in links):
        return []
    whole = len(links) == len(gpus) * (len(gpus) - 1) // 2 and len(counts) == 1 and len(gpus) > 1
    count = next(iter(counts)) or 0 if whole else 0
    total = max(facts.link_gbps, count * each if not facts.link_gbps else 0.0)
    many = whole and count * each * (len(gpus) - 1) > 1.05 * total
    behind = {gpu for switch in topology.switches for gpu in switch.gpus}
    if not (many or (len(gpus) > 1 and behind >= set(gpus) and whole)):
        return []
    return [(one.index, (one.ports or count) * (one.port_gigabytes_per_s or each)) for one in topology.gpus]


def _gpu(index: int) -> Device:
    return Device(DeviceKind.GPU, index)


def _by_cards(topology: NodeTopology) -> list[tuple[int, int]]:
    """GPUs that are near one network card are near each other, which NVLink between them may hide."""
    beside: dict[str, list[int]] = defaultdict(list)
    for one in topology.nic_affinity:
        if one.type in _ONE_SOCKET:
            beside[one.nic].append(one.gpu)
    return [pair for gpus in beside.values() for pair in pairwise(gpus)]


def _pcie(topology: NodeTopology, facts: GpuFacts) -> Iterator[Edge]:
    """GPUs that a switch joins hang below it; switches and GPUs below their NUMA node."""
    between = {(one.a, one.b): one.type for one in topology.links}
    indexes = sorted(one.index for one in topology.gpus)
    switch = _joined(indexes, [pair for pair, kind in between.items() if kind in _SWITCHED])
    near = [pair for pair, kind in between.items() if kind in _ONE_SOCKET] + _by_cards(topology)
    socket = _joined(indexes, near) if near or any(k in (LinkType.SYS, LinkType.SOC) for k in between.values()) else {}
    numas = {one.index: one.numa for one in topology.gpus if one.numa is not None}
    for index in indexes:
        numa = numas.get(index, socket.get(index, 0))
        assert numa is not None
        root = Device(DeviceKind.NUMA, numa)
        if sum(one == switch[index] for one in switch.values()) > 1:
            below = Device(DeviceKind.PCIE_SWITCH, switch[index])
            yield Edge(_gpu(index), below, EdgeKind.PCIE, facts.pcie_gbps)
            if switch[index] == index:
                yield Edge(below, root, EdgeKind.PCIE, facts.pcie_gbps)
        else:
            yield Edge(_gpu(index), root, EdgeKind.PCIE, facts.pcie_gbps)
    yield Edge(Device(DeviceKind.NUMA, 0), Device(DeviceKind.NUMA, 1), EdgeKind.SOCKET, SOCKET_GBPS)


def _joined(indexes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Each GPU to the lowest one that it is joined with."""
    of = {one: one for one in indexes}
    for a, b in pairs:
        low, high = sorted((of[a], of[b]))
        of = {one: low if to == high else to for one, to in of.items()}
    return of


def _network(nics: Sequence[TopologyNic]) -> Network | None:
    cards = [one for one in nics if "down" not in one.state.lower()]
    if not cards:
        return None
    speeds = [one.gbit_per_s * GBIT for one in cards if one.gbit_per_s]
    fast = [one for one in speeds if one >= 0.5 * max(speeds)]
    if not fast:
        return Network(len(cards), NIC_GUESS_GBPS, f"{len(cards)} cards of unknown speed", known=False)
    return Network(len(fast), sum(fast) / len(fast), f"{len(fast)}x {fast[0] / GBIT:g} Gbit/s")
