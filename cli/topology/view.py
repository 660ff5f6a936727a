"""Topologies, fabrics and measurements as answers of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kopt.cli.output import Answer, column, format_number
from kopt.core.hardware.collectives import CollectiveGraphs, CollectiveLog, PortTests
from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import NodeTopology, TopologyLink, TopologyNic

if TYPE_CHECKING:
    from kopt.formats.topology import Parsed


@dataclass(frozen=True)
class GpuRow:
    gpu: int = column("GPU")
    name: str = column("name")
    pci: str = column("PCI")
    numa: int | None = column("NUMA")
    memory_bytes: int | None = column("memory", show=lambda value: f"{value / (1 << 30):.1f} GiB" if value else "–")
    partition: str = column("partition")
    links: str = column("links to other GPUs")
    cards: str = column("nearest cards")


@dataclass(frozen=True)
class NicRow:
    card: str = column("card")
    pci: str = column("PCI")
    numa: int | None = column("NUMA")
    gbit_per_s: float | None = column("Gbit/s")
    state: str = column("state")
    link_layer: str = column("link layer")
    interface: str = column("interface")


@dataclass(frozen=True)
class CableRow:
    a: str = column("from")
    a_port: int = column("port")
    b: str = column("to")
    b_port: int = column("port")
    speed: str = column("speed")


@dataclass(frozen=True)
class RunRow:
    collective: str = column("collective")
    ranks: int = column("ranks")
    hosts: int = column("hosts")
    bytes: int = column("bytes")
    in_place: bool = column("in place")
    latency_us: float = column("time us")
    algbw: float = column("algbw GB/s")
    busbw: float = column("busbw GB/s")


@dataclass(frozen=True)
class GraphRow:
    graph: int = column("graph")
    pattern: int = column("pattern")
    channels: int = column("channels")
    within: float = column("GB/s within")
    between: float = column("GB/s between")
    types: str = column("types")


@dataclass(frozen=True)
class WireRow:
    device: str = column("device")
    operation: str = column("operation")
    bytes: int = column("bytes")
    peak: float = column("peak Gbit/s")
    average: float = column("average Gbit/s")


def answer(result: "Parsed") -> Answer:
    """What to show of a parsed output; documents are the types' own."""
    document = {name: value for name, value in result.to_dict().items() if name != "schema"}
    remarks = tuple(f"warning: {warning}" for warning in result.warnings)
    if isinstance(result, NodeTopology):
        return _node(result, document, remarks)
    header: dict[str, Any] = {"tool": result.tool}
    rows: Sequence[Any]
    if isinstance(result, Fabric):
        header |= {"switches": len(result.switches), "hosts": len(result.hosts), "cables": len(result.cables)}
        rows = [
            CableRow(
                cable.a, cable.a_port, cable.b, cable.b_port, f"{cable.lanes}x{cable.speed}" if cable.lanes else ""
            )
            for cable in result.cables
        ]
    elif isinstance(result, CollectiveLog):
        rows = [
            RunRow(
                run.collective,
                len(run.ranks),
                run.hosts,
                row.bytes,
                row.in_place,
                row.latency_us,
                row.algbw_gigabytes_per_s,
                row.busbw_gigabytes_per_s,
            )
            for run in result.runs
            for row in run.rows
        ]
    elif isinstance(result, CollectiveGraphs):
        rows = [
            GraphRow(
                graph.id,
                graph.pattern,
                len(graph.channels),
                graph.speed_within_gigabytes_per_s,
                graph.speed_between_gigabytes_per_s,
                f"{graph.type_within}/{graph.type_between}",
            )
            for graph in result.graphs
        ]
    else:
        assert isinstance(result, PortTests)
        rows = [
            WireRow(test.device, test.operation, test.bytes, test.peak_gbit_per_s, test.average_gbit_per_s)
            for test in result.tests
        ]
    return Answer("rows", rows, header, remarks=remarks, document=document)


def _node(node: NodeTopology, document: dict[str, Any], remarks: tuple[str, ...]) -> Answer:
    header = {"tool": node.tool, "node": node.node, "vendor": node.vendor}
    rows: list[Any] = [
        GpuRow(
            gpu.index,
            gpu.name,
            gpu.pci,
            gpu.numa,
            gpu.memory_bytes or None,
            gpu.partition + (f" ({', '.join(gpu.instances)})" if gpu.instances else ""),
            _links(node.links, gpu.index),
            _nearest(node, gpu.index),
        )
        for gpu in node.gpus
    ]
    cards = [
        NicRow(
            topology_nic.name,
            topology_nic.pci,
            topology_nic.numa,
            topology_nic.gbit_per_s,
            topology_nic.state,
            topology_nic.link_layer,
            topology_nic.interface,
        )
        for topology_nic in node.nics
    ]
    if not rows:
        return Answer("nics", cards, header, remarks=remarks, document=document)
    named_cards = tuple(_card(nic) for nic in node.nics if nic.gbit_per_s or nic.state or nic.pci)
    switches = tuple(f"switch {switch.name}: GPUs {_ranges(switch.gpus)}" for switch in node.switches)
    return Answer("gpus", rows, header, remarks=(*switches, *named_cards, *remarks), document=document)


def _card(nic: TopologyNic) -> str:
    header = (_speed(nic.gbit_per_s), nic.state, nic.link_layer, nic.pci)
    return f"card {nic.name}: {', '.join(filter(None, header))}"


def _speed(gbit_per_s: float | None) -> str:
    return f"{format_number(gbit_per_s)} Gbit/s" if gbit_per_s else ""


def _links(links: Sequence[TopologyLink], gpu: int) -> str:
    groups: dict[str, list[int]] = {}
    for link in links:
        if gpu in (link.a, link.b):
            kind = f"NV{link.count}" if link.type.value == "NVLINK" and link.count else str(link.type)
            groups.setdefault(kind, []).append(link.b if link.a == gpu else link.a)
    return "; ".join(f"{kind}: {_ranges(sorted(others))}" for kind, others in groups.items())


def _nearest(node: NodeTopology, gpu: int) -> str:
    order = ["C2C", "PIX", "PXB", "PHB", "NODE", "SOC", "SYS"]
    ways = [
        (order.index(nic_affinity.type), nic_affinity.nic)
        for nic_affinity in node.nic_affinity
        if nic_affinity.gpu == gpu and nic_affinity.type in order
    ]
    best = min((way for way, _ in ways), default=None)
    return "" if best is None else f"{order[best]}: {', '.join(nic for way, nic in ways if way == best)}"


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 as 1-3, 5."""
    result: list[list[int]] = []
    for number in numbers:
        if result and number == result[-1][-1] + 1:
            result[-1].append(number)
        else:
            result.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in result)
