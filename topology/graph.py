"""The typed multigraph of a node, and the machine of such nodes."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from kopt.core.hardware.bandwidth import Software


class DeviceKind(StrEnum):
    GPU = "gpu"
    LINK_SWITCH = "link switch"
    """NVSwitch."""
    PCIE_SWITCH = "pcie switch"
    NUMA = "numa"
    NIC = "nic"


class EdgeKind(StrEnum):
    NVLINK = "NVLINK"
    XGMI = "XGMI"
    C2C = "C2C"
    METAXLINK = "METAXLINK"
    PCIE = "PCIE"
    SOCKET = "SOCKET"
    """Between the sockets of a node."""

    @property
    def direct(self) -> bool:
        """The GPUs' own links."""
        return self in (EdgeKind.NVLINK, EdgeKind.XGMI, EdgeKind.C2C, EdgeKind.METAXLINK)


@dataclass(frozen=True, order=True)
class Device:
    kind: DeviceKind
    index: int


@dataclass(frozen=True)
class Edge:
    """``count`` parallel links of ``gbps`` GB/s per direction each."""

    a: Device
    b: Device
    kind: EdgeKind
    gbps: float
    count: int = 1

    @property
    def total_gbps(self) -> float:
        return self.gbps * self.count


@dataclass(frozen=True)
class GpuSpecs:
    """What the catalogue or the links say of the GPUs of a node. ``link_gbps`` per GPU and direction, all links
    together; 0 where a figure is not known. ``generation`` of NVLink or Infinity Fabric, 0 without."""

    name: str
    vendor: str
    link_gbps: float = 0.0
    pcie_gbps: float = 0.0
    memory_gbps: float = 0.0
    compute_units: int = 0
    generation: int = 0
    known: bool = True


@dataclass(frozen=True, eq=False)
class DeviceGraph:
    """GPUs, switches, NUMA nodes and network cards of one node. Compared by identity: a graph is built once and asked
    often. ``unknown`` names what could not be told."""

    gpu: GpuSpecs
    gpus: tuple[int, ...]
    edges: tuple[Edge, ...]
    peer_access: bool = True
    """May GPUs read each other's memory over PCIe? Consumer cards may not and go through the host's."""
    unknown: tuple[str, ...] = ()

    @cached_property
    def between(self) -> Mapping[tuple[int, int], float]:
        """GB/s per direction of the GPUs' own links between a pair, both orders."""
        result: dict[tuple[int, int], float] = defaultdict(float)
        for edge in self.edges:
            if edge.kind.direct and edge.a.kind == edge.b.kind == DeviceKind.GPU:
                result[edge.a.index, edge.b.index] += edge.total_gbps
                result[edge.b.index, edge.a.index] += edge.total_gbps
        return dict(result)

    @cached_property
    def switched(self) -> Mapping[int, float]:
        """GB/s per direction from each GPU into link switches."""
        result: dict[int, float] = defaultdict(float)
        for edge in self.edges:
            ends = {edge.a.kind: edge.a, edge.b.kind: edge.b}
            if edge.kind.direct and set(ends) == {DeviceKind.GPU, DeviceKind.LINK_SWITCH}:
                result[ends[DeviceKind.GPU].index] += edge.total_gbps
        return dict(result)

    @cached_property
    def parents(self) -> Mapping[Device, Edge]:
        """The PCIe way up from each GPU, switch and card."""
        parents = {}
        for edge in self.edges:
            if edge.kind is EdgeKind.PCIE:
                parents[edge.a] = edge
        return parents

    def without_peers(self) -> "DeviceGraph":
        """The same where GPUs may not read each other's memory: their links carry nothing, and all passes the host."""
        edges = tuple(edge for edge in self.edges if not edge.kind.direct)
        return replace(self, edges=edges, peer_access=False, unknown=(*self.unknown, "what the host's memory carries"))

    def way_up(self, device: Device) -> list[Device]:
        """From a device to its NUMA node."""
        way = [device]
        while way[-1] in self.parents and len(way) < 16:
            way.append(self.parents[way[-1]].b)
        return way


@dataclass(frozen=True)
class Network:
    """What links nodes: ``cards`` of ``card_gbps`` GB/s per direction in each node. ``name`` as it was described."""

    cards: int
    card_gbps: float
    name: str = ""
    known: bool = True
    fabric: bool = False
    """One of its own (Slingshot, EFA, Omni-Path) that needs a plugin; without, sockets are slow on it."""

    @property
    def total_gbps(self) -> float:
        return self.cards * self.card_gbps


@dataclass(frozen=True)
class Card:
    """One network card of every node. ``gpus``: those that no other card is nearer to; None where that is unknown, and
    any of them may use it."""

    name: str
    gbps: float
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Machine:
    """Nodes that are alike, the network between them (None: one node alone) and the software profile."""

    node: DeviceGraph
    network: Network | None = None
    software: Software = field(default_factory=Software)
    installed: int = 0
    """GPUs in a node, whether they are asked about or not."""
    domain_nodes: int = 1
    """Nodes whose GPUs the same link switches join: 18 trays of an NVL72 rack."""
    domain_known: bool = True
    cards: tuple[Card, ...] = ()
    """Those of the network by name, where a tool names them."""
    card_shares: Mapping[int, float] = field(default_factory=dict)
    """What other jobs leave of the cards that each GPU uses; all of them where a GPU is not named."""
    network_limit_gbps: float = math.inf
    """What a node may put on the network beyond its cards, as switches above it are shared."""
