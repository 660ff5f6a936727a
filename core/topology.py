"""What links the GPUs of one node to one another and to its network cards, as discovered on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.units import Bytes


class LinkType(StrEnum):
    """How two devices reach each other; from PIX on as ``nvidia-smi topo -m`` names the way through PCIe."""

    NVLINK = "NVLINK"
    XGMI = "XGMI"
    C2C = "C2C"
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
        return self in (LinkType.NVLINK, LinkType.XGMI, LinkType.C2C)


class TopologyError(ValueError):
    """A topology that contradicts itself or is incomplete; the message names the part."""


@dataclass(frozen=True)
class TopologyGpu:
    """One GPU or partition of a node."""

    index: int
    name: str = ""
    pci: str = ""
    numa: int | None = None
    memory_bytes: Bytes = Bytes(0)
    partition: str = ""


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
    name: str
    pci: str = ""
    numa: int | None = None
    gbit_per_s: float | None = None


@dataclass(frozen=True)
class NicAffinity:
    """The way from GPU ``gpu`` to the card ``nic``."""

    gpu: int
    nic: str
    type: LinkType


@dataclass(frozen=True)
class NodeTopology:
    """One node. Raises TopologyError for links of unknown GPUs, to themselves, or twice for a pair."""

    node: str
    gpus: tuple[TopologyGpu, ...]
    links: tuple[TopologyLink, ...] = ()
    nics: tuple[TopologyNic, ...] = ()
    nic_affinity: tuple[NicAffinity, ...] = ()
    switches: tuple[TopologySwitch, ...] = ()
    tool: str = ""
    vendor: str = ""

    def __post_init__(self) -> None:
        known = [gpu.index for gpu in self.gpus]
        if len(set(known)) != len(known) or min(known, default=0) < 0:
            raise TopologyError(f"node {self.node!r} names a GPU twice, or by a negative index")
        pairs = set()
        for link in self.links:
            pair = (min(link.a, link.b), max(link.a, link.b))
            if link.a == link.b or pair in pairs or not set(pair) <= set(known):
                raise TopologyError(f"node {self.node!r}: link {link.a}-{link.b} is a second one or of no known GPU")
            pairs.add(pair)
        behind = [gpu for switch in self.switches for gpu in switch.gpus]
        if not {*behind, *(one.gpu for one in self.nic_affinity)} <= set(known):
            raise TopologyError(f"node {self.node!r}: a switch or a network card names a GPU that is not there")

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "NodeTopology":
        """From the document of ``kopt topology parse``. Raises TopologyError for anything else."""
        try:
            return cls(
                str(document.get("node", "")),
                tuple(_gpu(one) for one in _list(document, "gpus")),
                tuple(_link(one) for one in _list(document, "links")),
                tuple(TopologyNic(str(one["name"]), str(one.get("pci") or ""), one.get("numa"), one.get("gbit_per_s"))
                      for one in _list(document, "nics")),
                tuple(NicAffinity(int(one["gpu"]), str(one["nic"]), LinkType(one["type"]))
                      for one in _list(document, "nic_affinity")),
                tuple(TopologySwitch(str(one.get("name") or ""), tuple(map(int, one["gpus"])))
                      for one in _list(document, "switches")),
                str(document.get("tool") or ""), str(document.get("vendor") or ""),
            )  # fmt: skip
        except TopologyError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TopologyError(f"node {document.get('node', '')!r}: not a topology ({error!r})") from error


def _gpu(one: Mapping[str, Any]) -> TopologyGpu:
    return TopologyGpu(int(one["index"]), str(one.get("name") or ""), str(one.get("pci") or ""), one.get("numa"),
                       Bytes(int(one.get("memory_bytes") or 0)), str(one.get("partition") or ""))  # fmt: skip


def _link(one: Mapping[str, Any]) -> TopologyLink:
    speed = one.get("gigabytes_per_s")
    return TopologyLink(int(one["a"]), int(one["b"]), LinkType(one["type"]), one.get("count"), one.get("weight"),
                        one.get("hops"), None if speed is None else float(speed))  # fmt: skip


def _list(document: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = document.get(name) or ()
    if not isinstance(found, list | tuple):
        raise TopologyError(f"{name} is not a list")
    return found
