"""A node as a drawing: GPUs in a ring, by NUMA node and PCIe switch; links as lines as wide as their bandwidth.

Places are in turns (0 is at the top, clockwise) and radii; a GPU's is 1. What draws it is ``figure.drawn`` (pages,
HTML) and ``topology_drawing`` (SVG, PNG).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kopt.core.hardware.node_topology import DegradedPart, NodeTopology
from kopt.dashboard.pages.topology.cards import BEHIND_SWITCH, Beside, lay_out_cards, nearest
from kopt.topology.graph import Device, DeviceGraph, DeviceKind, Edge

Point = tuple[float, float]
Homes = Mapping[int, tuple[int, int]]
"""Each GPU's NUMA node and PCIe switch, -1 where there is none."""
GPU_R, SWITCH_R, CARD_R, EDGE_R, LABEL_R = 1.0, 1.2, 1.34, 1.46, 1.54
INNER_R = 0.84
_SWITCH_GAP, _NUMA_GAP = 0.35, 0.7
_SWITCH_NAMES = {"NVLINK": "NVSwitch", "XGMI": "XGMI switch"}


@dataclass(frozen=True)
class Wire:
    """A line of ``gbps`` GB/s per direction; ``kind`` is in the legend beside it, ``description`` is of this line."""

    kind: str
    gbps: float
    points: tuple[Point, ...]
    description: str
    direct: bool = True
    chosen: bool = False
    degraded: bool = False


@dataclass(frozen=True)
class DrawnDevice:
    """A device. ``kind``: gpu, card or switch."""

    kind: str
    at: Point
    text: str
    description: str
    chosen: bool = False
    degraded: bool = False


@dataclass(frozen=True)
class Label:
    at: Point
    text: str
    quiet: bool = True


@dataclass(frozen=True)
class Box:
    """A NUMA node: the outline of its part of the ring."""

    outline: tuple[Point, ...]
    description: str


@dataclass(frozen=True)
class Picture:
    """``remarks`` tell what the drawing cannot show."""

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    devices: tuple[DrawnDevice, ...]
    labels: tuple[Label, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ring:
    """Where each GPU is, in turns; what each NUMA node and PCIe switch spans; the width of one GPU's place."""

    at: Mapping[int, float]
    numas: Mapping[int, tuple[float, float]]
    switches: Mapping[int, tuple[float, float]]
    width: float


def polar(turn: float, radius: float) -> Point:
    angle = 2 * math.pi * turn
    return (radius * math.sin(angle), radius * math.cos(angle))


def picture(
    node: NodeTopology, graph: DeviceGraph, chosen: Collection[int] = (), degraded: Sequence[DegradedPart] = ()
) -> Picture:
    """``graph`` is the node's, with the catalogue's speeds where tools were silent."""
    homes = _homes(graph, node)
    ring = _ring(homes)
    worn = _Worn(node, degraded)
    cards = lay_out_cards(node, ring.at, ring.numas, homes, ring.switches)
    wires = [*_pcie(graph, ring, homes), *_direct(graph, ring, frozenset(chosen), worn), *_card_wires(cards.beside)]
    devices = [*_gpus(node, ring, frozenset(chosen), worn), *_cards(cards.beside, worn), *_hub(graph, node)]
    labels = [*_card_labels(cards.beside), *_numa_labels(node, ring)]
    boxes = tuple(Box(_sector(*span), _numa_text(node, numa)) for numa, span in ring.numas.items())
    return Picture(boxes, tuple(wires), tuple(devices), tuple(labels), (*cards.remarks, *worn.remarks()))


class _Worn:
    """What is degraded, by GPU, pair of GPUs and card."""

    def __init__(self, node: NodeTopology, degraded: Sequence[DegradedPart]) -> None:
        gpus = {gpu.pci or f"GPU{gpu.index}": gpu.index for gpu in node.gpus}
        self.parts = tuple(degraded)
        self.gpus: dict[int, str] = {}
        self.pairs: dict[tuple[int, int], DegradedPart] = {}
        self.cards: dict[str, str] = {}
        for degraded_part in degraded:
            indexes = [gpus[name] for name in degraded_part.names if name in gpus]
            if degraded_part.kind == "link" and len(indexes) == 2:
                self.pairs[min(indexes), max(indexes)] = degraded_part
            elif indexes:
                self.gpus[indexes[0]] = degradation_text(degraded_part)
            elif degraded_part.names:
                self.cards[degraded_part.names[0]] = degradation_text(degraded_part)

    def remarks(self) -> list[str]:
        return [f"degraded: {degradation_text(part)}" for part in self.parts]


def degradation_text(part: DegradedPart) -> str:
    """``link A B: 1 of 2``."""
    return f"{part.part}: {part.now:g} of {part.was:g}"


def _homes(graph: DeviceGraph, node: NodeTopology) -> Homes:
    homes = {}
    for gpu in graph.gpus:
        way = graph.way_up(Device(DeviceKind.GPU, gpu))
        switch = next((device.index for device in way if device.kind is DeviceKind.PCIE_SWITCH), -1)
        homes[gpu] = (way[-1].index if way[-1].kind is DeviceKind.NUMA else -1, switch)
    # Where tools show NVLink between two GPUs in place of the way through PCIe, a card that both are beside tells it.
    for nic in node.nics:
        near, kind = nearest(node, nic.name)
        alike = {homes[gpu] for gpu in near}
        if kind in BEHIND_SWITCH and len(near) > 1 and len(alike) == 1:
            numa, switch = alike.pop()
            homes |= {gpu: (numa, min(near) if switch < 0 else switch) for gpu in near}
    return homes


def _ring(homes: Homes) -> _Ring:
    order = sorted(homes, key=lambda gpu: (homes[gpu][0], homes[gpu][1], gpu))
    places: dict[int, float] = {}
    at = 0.0
    for number, gpu in enumerate(order):
        if number:
            numa, switch = homes[order[number - 1]]
            at += 1 + (_NUMA_GAP if numa != homes[gpu][0] else _SWITCH_GAP if switch != homes[gpu][1] else 0)
        places[gpu] = at
    several = len({numa for numa, _ in homes.values()}) > 1
    whole = at + 1 + (_NUMA_GAP if several else 0.0)
    # The first gap is at the top, halved.
    first = (_NUMA_GAP if several else 0.0) / 2 + 0.5
    turns = {gpu: (position + first) / whole for gpu, position in places.items()}

    def spans(which: int, reach: float) -> dict[int, tuple[float, float]]:
        groups: dict[int, list[float]] = {}
        for gpu, home in homes.items():
            groups.setdefault(home[which], []).append(turns[gpu])
        return {key: (min(t) - reach / whole, max(t) + reach / whole) for key, t in groups.items()}

    switches = {key: span for key, span in spans(1, 0.3).items() if key >= 0}
    return _Ring(turns, dict(sorted(spans(0, 0.55).items())), switches, 1 / whole)


def _arc(start: float, end: float, radius: float) -> tuple[Point, ...]:
    steps = max(3, round(abs(end - start) * 96))
    return tuple(polar(start + (end - start) * step / steps, radius) for step in range(steps + 1))


def _sector(start: float, end: float) -> tuple[Point, ...]:
    outer = _arc(start, end, EDGE_R)
    return (*outer, *_arc(end, start, INNER_R), outer[0])


def _numa_text(node: NodeTopology, numa: int) -> str:
    return f"NUMA node {numa}" if any(gpu.numa is not None for gpu in node.gpus) else "NUMA node unknown"


def _numa_labels(node: NodeTopology, ring: _Ring) -> list[Label]:
    if all(gpu.numa is None for gpu in node.gpus):
        return []
    return [Label(polar(start + 0.006, LABEL_R), f"NUMA {numa}") for numa, (start, _) in ring.numas.items()]


def _pcie(graph: DeviceGraph, ring: _Ring, homes: Homes) -> list[Wire]:
    """From GPUs to their PCIe switch, or to the edge of the box, which is the host."""
    wires = []
    speeds: dict[int, float] = {}
    for gpu, turn in ring.at.items():
        edge = graph.parents.get(Device(DeviceKind.GPU, gpu))
        gbps, switch = edge.total_gbps if edge else 0.0, homes[gpu][1]
        top, where = (SWITCH_R, "its PCIe switch") if switch in ring.switches else (EDGE_R, "the host")
        speeds[switch] = max(gbps, speeds.get(switch, 0.0))
        description = f"GPU {gpu} to {where}: {gbps:.3g} GB/s"
        wires.append(Wire("PCIe", gbps, (polar(turn, GPU_R), polar(turn, top)), description, direct=False))
    for switch, (start, end) in ring.switches.items():
        middle, gbps = (start + end) / 2, speeds[switch]
        description = f"PCIe switch to the host: {gbps:.3g} GB/s"
        wires += [
            Wire("PCIe", gbps, _arc(start, end, SWITCH_R), "PCIe switch", direct=False),
            Wire("PCIe", gbps, (polar(middle, SWITCH_R), polar(middle, EDGE_R)), description, direct=False),
        ]
    return wires


def _direct(graph: DeviceGraph, ring: _Ring, selected: frozenset[int], worn: _Worn) -> list[Wire]:
    wires, drawn_pairs = [], set()
    for edge in graph.edges:
        if not edge.kind.direct:
            continue
        ends = [device.index for device in (edge.a, edge.b) if device.kind is DeviceKind.GPU]
        pair = (min(ends), max(ends))
        drawn_pairs.add(pair)
        part = worn.pairs.get(pair) if len(ends) == 2 else None
        wires.append(_wire(edge, ends, ring, selected, part))
    # A link that is down leaves no edge: where it was is shown all the same.
    for (a, b), part in worn.pairs.items():
        if (a, b) not in drawn_pairs and a in ring.at and b in ring.at and not graph.switched:
            points = (polar(ring.at[a], GPU_R), polar(ring.at[b], GPU_R))
            wires.append(Wire("link that is down", 0.0, points, degradation_text(part), degraded=True))
    return wires


def _wire(edge: Edge, ends: list[int], ring: _Ring, selected: frozenset[int], part: DegradedPart | None) -> Wire:
    points = tuple(polar(ring.at[gpu], GPU_R) for gpu in ends)
    between = f"GPU {ends[0]} to GPU {ends[-1]}" if len(ends) == 2 else f"GPU {ends[0]} to the switches"
    description = f"{between}: {edge.kind.value} {edge.total_gbps:.4g} GB/s" + (
        f", degraded: {degradation_text(part)}" if part else ""
    )
    whole = points if len(ends) == 2 else (*points, (0.0, 0.0))
    return Wire(edge.kind.value, edge.total_gbps, whole, description, True, selected >= set(ends), part is not None)


def _card_wires(cards: Sequence[Beside]) -> list[Wire]:
    """A card hangs at the PCIe switch of its GPUs, or at the host."""
    card_wires = []
    for beside in cards:
        end = polar(beside.turn, EDGE_R)
        if beside.foot is not None:
            end = polar(min(max(beside.turn, beside.foot[0]), beside.foot[1]), SWITCH_R)
        card_wires.append(Wire("PCIe", 0.0, (polar(beside.turn, CARD_R), end), beside.description, direct=False))
    return card_wires


def _gpus(node: NodeTopology, ring: _Ring, selected: frozenset[int], worn: _Worn) -> list[DrawnDevice]:
    gpus = []
    for gpu in node.gpus:
        details = [f"GPU {gpu.index}", gpu.name, gpu.pci, gpu.partition, worn.gpus.get(gpu.index, "")]
        description = ", ".join(filter(None, details))
        gpus.append(
            DrawnDevice(
                "gpu",
                polar(ring.at[gpu.index], GPU_R),
                str(gpu.index),
                description,
                gpu.index in selected,
                gpu.index in worn.gpus,
            )
        )
    return gpus


def _cards(cards: Sequence[Beside], worn: _Worn) -> list[DrawnDevice]:
    return [
        DrawnDevice(
            "card",
            polar(beside.turn, CARD_R),
            "",
            ", ".join(filter(None, [beside.description, _worn_card(beside, worn)])),
            degraded=bool(_worn_card(beside, worn)),
        )
        for beside in cards
    ]


def _worn_card(card: Beside, worn: _Worn) -> str:
    return worn.cards.get(card.name) or worn.cards.get(card.pci) or ""


def _hub(graph: DeviceGraph, node: NodeTopology) -> list[DrawnDevice]:
    if not graph.switched:
        return []
    kind = next(edge.kind.value for edge in graph.edges if edge.kind.direct)
    many = sum(device.kind == "switch" for device in node.devices)
    name = _SWITCH_NAMES.get(kind, "switch")
    label = f"{many}× {name}" if many > 1 else name
    return [DrawnDevice("switch", (0.0, 0.0), label, f"{name}: every GPU to every other")]


def _card_labels(cards: Sequence[Beside]) -> list[Label]:
    return [Label(polar(beside.turn, LABEL_R), beside.name) for beside in cards]
