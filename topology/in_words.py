"""A discovered node in the words of tables of measurements, so that what its cluster measured can stand among them."""

from collections import Counter, defaultdict

from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.topology.from_node import machine_from
from kopt.topology.gpu_facts import nvlink_gbps
from kopt.topology.graph import Device, DeviceKind, EdgeKind, Machine, Network
from kopt.topology.hardware import CUBE_MESH, HardwareRow, machine_of
from kopt.topology.networks import GBIT

_DIRECT = (EdgeKind.NVLINK, EdgeKind.XGMI)
_TOLERANCE = 0.05


def in_words(topology: NodeTopology, n_nodes: int, gpus_per_node: int, software: str = "") -> HardwareRow:
    """``n_nodes`` such nodes of which ``gpus_per_node`` GPUs each are used.

    Raises TopologyError for a node that no words describe: reading them would give another machine.
    """
    machine = machine_from(topology)
    if not machine.node.gpu.known:
        raise TopologyError(f"its GPUs ({machine.node.gpu.name[:60] or 'without a name'}) are not known")
    if not 1 <= gpus_per_node <= machine.installed:
        raise TopologyError(f"{gpus_per_node} GPUs of each node were used, and it has {machine.installed}")
    gpu = Counter(topology_gpu.name for topology_gpu in topology.gpus).most_common(1)[0][0]
    nics = _nics(topology, machine.network)
    row = HardwareRow(gpu, topology.vendor, _links(machine), n_nodes, gpus_per_node, nics, software)
    read = machine_of(row)
    if not _alike(_speeds(machine), _speeds(read)):
        raise TopologyError("the links between its GPUs are of a kind that no words describe")
    if machine.network is not None and not _same_network(machine.network, read.network):
        raise TopologyError("its network cards are of a kind that no words describe")
    return row


def _links(machine: Machine) -> str:
    node, count = machine.node, machine.installed
    edges = [edge for edge in node.edges if edge.kind in _DIRECT]
    if not edges:
        return f"PCIe x{count}"
    if edges[0].kind is EdgeKind.XGMI:
        return f"XGMI mesh-{count}"
    links = round(edges[0].total_gbps / nvlink_gbps(node.gpu))
    if any(end.kind is DeviceKind.LINK_SWITCH for edge in edges for end in (edge.a, edge.b)):
        return f"NVSwitch-NV{links} x{count}"
    joined = {tuple(sorted((edge.a.index, edge.b.index))) for edge in edges}
    if joined == {(a, b) for a, b, _ in CUBE_MESH}:
        return f"HybridCubeMesh x{count}"
    if joined == {(gpu, gpu + 1) for gpu in range(0, count - 1, 2)} and count > 2:
        return f"NV{links} bridges x{count}"
    return f"NV{links} x{count}"


def _nics(topology: NodeTopology, network: Network | None) -> str:
    if network is None or not network.known:
        return ""
    layers = {nic.link_layer.lower() for nic in topology.nics if "down" not in nic.state.lower()}
    return f"{network.cards}x{network.card_gbps / GBIT:g}G {'IB' if 'infiniband' in layers else 'RoCE'}"


def _speeds(machine: Machine) -> list[float]:
    """GB/s of the links of each GPU's own, in ascending order."""
    result: defaultdict[Device, float] = defaultdict(float)
    for edge in machine.node.edges:
        if edge.kind in _DIRECT:
            for end in (edge.a, edge.b):
                result[end] += edge.total_gbps if end.kind is DeviceKind.GPU else 0.0
    return sorted(gbps for device, gbps in result.items() if device.kind is DeviceKind.GPU)


def _alike(first: list[float], second: list[float]) -> bool:
    return len(first) == len(second) and all(
        abs(a - b) <= _TOLERANCE * max(a, b) for a, b in zip(first, second, strict=True)
    )


def _same_network(first: Network, second: Network | None) -> bool:
    if not first.known or second is None:
        return not first.known
    return first.cards == second.cards and abs(first.card_gbps - second.card_gbps) <= _TOLERANCE * first.card_gbps
