"""What links the GPUs of one node to one another and to its network cards, as discovered on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kopt.core.units import Bytes

SCHEMA = "kopt/v1"


class LinkType(StrEnum):
    """How two devices reach each other; from PIX on as ``nvidia-smi topo -m`` names the way through PCIe."""

    NVLINK = "NVLINK"
    XGMI = "XGMI"
    C2C = "C2C"
    METAXLINK = "METAXLINK"
    PCIE = "PCIE"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SOC = "SOC"
    SYS = "SYS"

    @property
    def direct(self) -> bool:
        """A link of the GPUs' own, beside PCIe."""
        return self in (LinkType.NVLINK, LinkType.XGMI, LinkType.C2C, LinkType.METAXLINK)


class TopologyError(ValueError):
    """A topology that contradicts itself or is incomplete; the message names the part."""


@dataclass(frozen=True)
class TopologyGpu:
    """One GPU or partition of a node.

    ``partition`` says how an AMD GPU is divided (``CPX/NPS4``); ``instances`` are the MIG profiles on an NVIDIA one.
    ``ports`` counts its NVLink or XGMI links, ``port_gigabytes_per_s`` (1e9, per direction) is the speed of each.
    """

    index: int
    name: str = ""
    pci: str = ""
    numa: int | None = None
    memory_bytes: Bytes = Bytes(0)
    partition: str = ""
    uuid: str = ""
    instances: tuple[str, ...] = ()
    ports: int | None = None
    port_gigabytes_per_s: float | None = None


@dataclass(frozen=True)
class TopologyLink:
    """GPU ``a`` to GPU ``b``, one per pair. ``count`` parallel links; ``gigabytes_per_s`` (1e9) of all together, per
    direction; None where a tool does not say."""

    a: int
    b: int
    type: LinkType
    count: int | None = None
    weight: int | None = None
    hops: int | None = None
    gigabytes_per_s: float | None = None


@dataclass(frozen=True)
class TopologySwitch:
    """GPUs behind one switch."""

    name: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class TopologyNic:
    """One port of a network card. ``state`` and ``link_layer`` are in the tool's words: ACTIVE, InfiniBand."""

    name: str
    pci: str = ""
    numa: int | None = None
    gbit_per_s: float | None = None
    state: str = ""
    link_layer: str = ""
    interface: str = ""


@dataclass(frozen=True)
class NicAffinity:
    """The way from GPU ``gpu`` to the card ``nic``."""

    gpu: int
    nic: str
    type: LinkType


@dataclass(frozen=True)
class PeerAccess:
    """May GPU ``a`` reach the memory of GPU ``b``? ``status`` is the tool's word: OK, NS, ENABLED, DISABLED."""

    a: int
    b: int
    status: str


@dataclass(frozen=True)
class PciDevice:
    """A PCI function that is of interest here. ``kind``: gpu, nic, switch (NVSwitch), bridge or other; ``parent`` is
    the bridge above it."""

    pci: str
    kind: str
    name: str = ""
    numa: int | None = None
    parent: str = ""


@dataclass(frozen=True)
class DegradedPart:
    """A part of a node that is worse than the best seen of it: ``part`` is ``link A B``, ``ports A``, ``lanes A``,
    ``nic NAME`` and the like, with PCI addresses (``GPU3`` where none is known); it had ``was`` and has ``now``."""

    part: str
    was: float
    now: float

    @property
    def kind(self) -> str:
        return self.part.split(" ", 1)[0]

    @property
    def names(self) -> tuple[str, ...]:
        """What the part belongs to: PCI addresses, or a card's name."""
        return tuple(self.part.split()[1:])


@dataclass(frozen=True)
class NodeTopology:
    """One node, or the part of it that a tool shows. ``warnings`` say what is unknown or was left out.

    Raises TopologyError for links of unknown GPUs, to themselves, or twice for a pair.
    """

    node: str
    gpus: tuple[TopologyGpu, ...]
    links: tuple[TopologyLink, ...] = ()
    nics: tuple[TopologyNic, ...] = ()
    nic_affinity: tuple[NicAffinity, ...] = ()
    switches: tuple[TopologySwitch, ...] = ()
    tool: str = ""
    vendor: str = ""
    warnings: tuple[str, ...] = ()
    peers: tuple[PeerAccess, ...] = ()
    devices: tuple[PciDevice, ...] = ()

    def __post_init__(self) -> None:
        gpu_indexes = [gpu.index for gpu in self.gpus]
        if len(set(gpu_indexes)) != len(gpu_indexes) or min(gpu_indexes, default=0) < 0:
            raise TopologyError(f"node {self.node!r} names a GPU twice, or by a negative index")
        _pairs(self.node, self.links, set(gpu_indexes))
        _pairs(self.node, self.peers, set(gpu_indexes))
        behind = [gpu for switch in self.switches for gpu in switch.gpus]
        if not {*behind, *(nic_affinity.gpu for nic_affinity in self.nic_affinity)} <= set(gpu_indexes):
            raise TopologyError(f"node {self.node!r}: a switch or a network card names a GPU that is not there")

    def to_dict(self) -> dict[str, Any]:
        """The document of ``kopt topology parse``."""
        result = asdict(self)
        return {"schema": SCHEMA, "kind": "node", **{name: result[name] for name in _ORDER}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "NodeTopology":
        """From the document of ``kopt topology parse``. Raises TopologyError for anything else."""
        try:
            return cls(
                str(document.get("node", "")),
                tuple(_gpu(item) for item in _list(document, "gpus")),
                tuple(_link(item) for item in _list(document, "links")),
                tuple(_nic(item) for item in _list(document, "nics")),
                tuple(
                    NicAffinity(int(item["gpu"]), str(item["nic"]), LinkType(item["type"]))
                    for item in _list(document, "nic_affinity")
                ),
                tuple(
                    TopologySwitch(str(item.get("name") or ""), tuple(map(int, item["gpus"])))
                    for item in _list(document, "switches")
                ),
                str(document.get("tool") or ""),
                str(document.get("vendor") or ""),
                tuple(map(str, document.get("warnings") or ())),
                tuple(
                    PeerAccess(int(item["a"]), int(item["b"]), str(item["status"])) for item in _list(document, "peers")
                ),
                tuple(map(_device, _list(document, "devices"))),
            )
        except TopologyError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise TopologyError(f"node {document.get('node', '')!r}: not a topology ({error!r})") from error


_ORDER = ("node", "tool", "vendor", "gpus", "links", "nics", "nic_affinity", "switches", "peers", "devices", "warnings")


def _pairs(node: str, links: Sequence[TopologyLink | PeerAccess], gpu_indexes: set[int]) -> None:
    visited = set()
    for link in links:
        pair = (min(link.a, link.b), max(link.a, link.b))
        if link.a == link.b or pair in visited or not set(pair) <= gpu_indexes:
            raise TopologyError(f"node {node!r}: link {link.a}-{link.b} is a second one or of no known GPU")
        visited.add(pair)


def _gpu(item: Mapping[str, Any]) -> TopologyGpu:
    return TopologyGpu(
        int(item["index"]),
        str(item.get("name") or ""),
        str(item.get("pci") or ""),
        _whole(item, "numa"),
        Bytes(int(item.get("memory_bytes") or 0)),
        str(item.get("partition") or ""),
        str(item.get("uuid") or ""),
        tuple(map(str, item.get("instances") or ())),
        _whole(item, "ports"),
        _speed(item, "port_gigabytes_per_s"),
    )


def _nic(item: Mapping[str, Any]) -> TopologyNic:
    return TopologyNic(
        str(item["name"]),
        str(item.get("pci") or ""),
        _whole(item, "numa"),
        _speed(item, "gbit_per_s"),
        str(item.get("state") or ""),
        str(item.get("link_layer") or ""),
        str(item.get("interface") or ""),
    )


def _device(item: Mapping[str, Any]) -> PciDevice:
    name, parent = str(item.get("name") or ""), str(item.get("parent") or "")
    return PciDevice(str(item["pci"]), str(item["kind"]), name, _whole(item, "numa"), parent)


def _link(item: Mapping[str, Any]) -> TopologyLink:
    return TopologyLink(
        int(item["a"]),
        int(item["b"]),
        LinkType(item["type"]),
        _whole(item, "count"),
        _whole(item, "weight"),
        _whole(item, "hops"),
        _speed(item, "gigabytes_per_s"),
    )


def _whole(item: Mapping[str, Any], name: str) -> int | None:
    value = item.get(name)
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{name}: {str(value)[:40]!r} is not a whole number")
    return value


def _speed(item: Mapping[str, Any], name: str) -> float | None:
    value = item.get(name)
    if value is None:
        return None
    speed = float(value)
    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError(f"{name}: {speed} is no speed")
    return speed


def _list(document: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    result = document.get(name) or ()
    if not isinstance(result, list | tuple):
        raise TopologyError(f"{name} is not a list")
    return result
