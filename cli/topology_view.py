"""Topologies, fabrics and measurements as answers of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kopt.cli.output import Answer, column, format_number
from kopt.core.collectives import CollectiveGraphs, CollectiveLog, PortTests
from kopt.core.fabric import Fabric
from kopt.core.topology import NodeTopology, TopologyLink, TopologyNic

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


def answer(found: "Parsed") -> Answer:
    """What to show of a parsed output; documents are the types' own."""
    document = {name: value for name, value in found.to_dict().items() if name != "schema"}
    notes = tuple(f"warning: {warning}" for warning in found.warnings)
    if isinstance(found, NodeTopology):
        return _node(found, document, notes)
    facts: dict[str, Any] = {"tool": found.tool}
    rows: Sequence[Any]
    if isinstance(found, Fabric):
        facts |= {"switches": len(found.switches), "hosts": len(found.hosts), "cables": len(found.cables)}
        rows = [CableRow(one.a, one.a_port, one.b, one.b_port, f"{one.lanes}x{one.speed}" if one.lanes else "")
                for one in found.cables]  # fmt: skip
    elif isinstance(found, CollectiveLog):
        rows = [RunRow(run.collective, len(run.ranks), run.hosts, row.bytes, row.in_place, row.latency_us,
                       row.algbw_gigabytes_per_s, row.busbw_gigabytes_per_s)
                for run in found.runs for row in run.rows]  # fmt: skip
    elif isinstance(found, CollectiveGraphs):
        rows = [GraphRow(one.id, one.pattern, len(one.channels), one.speed_within_gigabytes_per_s,
                         one.speed_between_gigabytes_per_s, f"{one.type_within}/{one.type_between}")
                for one in found.graphs]  # fmt: skip
    else:
        assert isinstance(found, PortTests)
        rows = [WireRow(one.device, one.operation, one.bytes, one.peak_gbit_per_s, one.average_gbit_per_s)
                for one in found.tests]  # fmt: skip
    return Answer("rows", rows, facts, notes=notes, document=document)


def _node(node: NodeTopology, document: dict[str, Any], notes: tuple[str, ...]) -> Answer:
    facts = {"tool": node.tool, "node": node.node, "vendor": node.vendor}
    rows: list[Any] = [
        GpuRow(gpu.index, gpu.name, gpu.pci, gpu.numa, gpu.memory_bytes or None,
               gpu.partition + (f" ({', '.join(gpu.instances)})" if gpu.instances else ""),
               _links(node.links, gpu.index), _nearest(node, gpu.index))
        for gpu in node.gpus
    ]  # fmt: skip
    cards = [
        NicRow(one.name, one.pci, one.numa, one.gbit_per_s, one.state, one.link_layer, one.interface)
        for one in node.nics
    ]
    if not rows:
        return Answer("nics", cards, facts, notes=notes, document=document)
    told = tuple(_card(nic) for nic in node.nics if nic.gbit_per_s or nic.state or nic.pci)
    switches = tuple(f"switch {one.name}: GPUs {_ranges(one.gpus)}" for one in node.switches)
    return Answer("gpus", rows, facts, notes=(*switches, *told, *notes), document=document)


def _card(nic: TopologyNic) -> str:
    facts = (_speed(nic.gbit_per_s), nic.state, nic.link_layer, nic.pci)
    return f"card {nic.name}: {', '.join(filter(None, facts))}"


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
    ways = [(order.index(one.type), one.nic) for one in node.nic_affinity if one.gpu == gpu and one.type in order]
    best = min((way for way, _ in ways), default=None)
    return "" if best is None else f"{order[best]}: {', '.join(nic for way, nic in ways if way == best)}"


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 as 1-3, 5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found)
