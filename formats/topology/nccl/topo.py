"""NCCL's and RCCL's topology XML (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``).

Source: ``src/graph/xml.cc`` and ``topo.cc`` of NCCL: processors hold PCI devices, PCI bridges hold more of them, a GPU
lists its NVLink or XGMI links by the address of the other end. A dump holds the GPUs of one job only: links may lead to
GPUs that are not in it, but a link between two that are must be there from both ends.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.hardware.node_topology import (
    LinkType,
    NicAffinity,
    NodeTopology,
    PciDevice,
    TopologyGpu,
    TopologyLink,
    TopologyNic,
    TopologySwitch,
)
from kopt.formats.topology.parser import XmlParser
from kopt.formats.topology.text import FormatError, Source
from kopt.formats.topology.xml import Element, begins, read

TOOL = "nccl topology xml"
ROOT = "system"

_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_LINKS = {"nvlink": LinkType.NVLINK, "xgmi": LinkType.XGMI}
_TAGS = {ROOT, "cpu", "pci", "gpu", "nic", "net", "c2c", "pcilink", *_LINKS}
_GPU_CLASS, _SWITCH_CLASS = ("0x03", "0x12"), "0x0680"


@dataclass(frozen=True)
class _Position:
    """Where an element hangs: its processor and the PCI functions above it, the nearest last."""

    cpu: Element
    above: tuple[Element, ...] = ()

    @property
    def pci(self) -> str:
        return _bus(self.above[-1]) if self.above else ""

    @property
    def numa(self) -> int | None:
        result = self.cpu.whole("numaid", -1, 4095)
        return None if result == -1 else result


@dataclass
class _Parts:
    gpus: list[tuple[Element, _Position]] = field(default_factory=list)
    nets: list[tuple[Element, _Position]] = field(default_factory=list)
    devices: list[PciDevice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def recognises(source: Source) -> bool:
    return begins(source, ROOT) and (begins(source, "cpu") or begins(source, "gpu"))


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    system = read(source, ROOT)
    parts = _Parts()
    _check_processors(system)
    for cpu in system.children:
        _collect(cpu, _Position(cpu), parts)
    gpus = _gpus(parts)
    by_bus = {gpu.pci: gpu.index for gpu in gpus}
    if len(by_bus) != len(gpus):
        raise system.error("holds a PCI address of a GPU twice")
    direct, switched = _direct(parts, by_bus), _switched(parts)
    links = tuple(_pairs(parts, gpus, direct, switched))
    nics = _nics(parts)
    affinity = tuple(
        [
            NicAffinity(gpu.index, nic.name, _way(position, nic_position))
            for gpu, (_, position) in zip(gpus, parts.gpus, strict=True)
            for nic, (_, nic_position) in zip(nics, parts.nets, strict=True)
        ]
    )
    switches = (TopologySwitch("NVSwitch", tuple(sorted(switched))),) if switched else ()
    vendor = "amd" if any("gcn" in element.attributes for element, _ in parts.gpus) else "nvidia" if parts.gpus else ""
    _devices_without_gpu(parts)
    return NodeTopology(
        "", gpus, links, nics, affinity, switches, TOOL, vendor, tuple(parts.warnings), (), tuple(parts.devices)
    )


def _check_processors(system: Element) -> None:
    hosts, numbers = set(), set()
    if not system.children:
        raise system.error("holds no processor")
    for cpu in system.children:
        if cpu.tag != "cpu":
            raise cpu.error("stands where a <cpu> is expected")
        hosts.add(cpu.attributes.get("host_hash", ""))
        number = cpu.whole("numaid", -1, 4095)
        if number is None or (number in numbers and len(hosts) == 1):
            raise cpu.error("has no numaid, or the one of another")
        numbers.add(number)
    if len(hosts) > 1:
        raise system.error(f"holds the processors of {len(hosts)} hosts; give the file of one")


def _collect(element: Element, position: _Position, parts: _Parts) -> None:
    for child in element.children:
        if child.tag not in _TAGS:
            parts.warnings.append(f"line {child.line}: <{child.tag[:40]}> is unknown and was left out")
        elif child.tag == "pci":
            if element.tag not in ("cpu", "pci"):
                raise child.error(f"stands in a <{element.tag}>")
            below = _Position(position.cpu, (*position.above, child))
            parts.devices.append(PciDevice(_bus(child), _kind(child), "", position.numa, position.pci))
            _collect(child, below, parts)
        elif child.tag == "gpu":
            if element.tag != "pci" or sum(1 for item in element.children if item.tag == "gpu") > 1:
                raise child.error("does not stand alone in a <pci>")
            parts.gpus.append((child, position))
        elif child.tag == "nic":
            if not any(item.tag == "net" for item in child.children):
                raise child.error("holds no <net>")
            _collect(child, position, parts)
        elif child.tag == "net":
            if element.tag != "nic":
                raise child.error(f"stands in a <{element.tag}>")
            parts.nets.append((child, position))
        elif child.tag not in ("pcilink", "c2c"):
            raise child.error(f"stands in a <{element.tag}>")


def _bus(pci: Element, name: str = "busid") -> str:
    text = pci.attributes.get(name, "")
    if not _BUS.fullmatch(text):
        raise pci.error(f"{name}={text[:60]!r} is no PCI address")
    return text.lower()


def _kind(pci: Element) -> str:
    kind = pci.attributes.get("class", "")
    if kind.startswith(_GPU_CLASS):
        return "gpu"
    names = {"0x02": "nic", "0x0604": "bridge", _SWITCH_CLASS: "switch"}
    return next((name for prefix, name in names.items() if kind.startswith(prefix)), "other")


def _gpus(parts: _Parts) -> tuple[TopologyGpu, ...]:
    topology_gpus, ranks = [], []
    for number, (gpu, position) in enumerate(parts.gpus):
        index = gpu.whole("dev", 0, 4095)
        rank = gpu.whole("rank", -1)
        if rank is not None and rank >= 0:
            ranks.append(rank)
        gcn, sm = gpu.attributes.get("gcn"), gpu.attributes.get("sm")
        name = (gcn if gcn.startswith("gfx") else f"gfx{gcn}") if gcn else f"sm_{sm}" if sm else ""
        ports = sum(_count(link) for link in gpu.children if link.tag in _LINKS) or None
        topology_gpus.append(
            TopologyGpu(number if index is None else index, name, position.pci, position.numa, ports=ports)
        )
    if len({gpu.index for gpu in topology_gpus}) != len(topology_gpus):
        raise FormatError("two GPUs have one dev number", parts.gpus[0][0].line)
    addresses = [(device.kind, device.pci) for device in parts.devices]
    if len(set(addresses)) != len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise FormatError(f"the {twice[0]} at {twice[1]} stands twice")
    _check_ranks(sorted(ranks))
    return tuple(topology_gpus)


def _check_ranks(ranks: Sequence[int]) -> None:
    """Ranks of a job on one node follow each other, or leave gaps where nodes take turns; one alone is a loss."""
    gaps = ranks[-1] - ranks[0] + 1 - len(ranks) if ranks else 0
    if len(set(ranks)) != len(ranks) or (gaps == 1 and len(ranks) > 2):
        raise FormatError(f"the ranks of the GPUs are {list(ranks)}: one is missing or stands twice")


def _count(link: Element) -> int:
    result = link.whole("count", 1, 256)
    if result is None:
        raise link.error("has no count")
    return result


def _direct(parts: _Parts, by_bus: Mapping[str, int]) -> dict[tuple[int, int], tuple[LinkType, int]]:
    """Links between two GPUs by (from, to), the same from both ends."""
    result: dict[tuple[int, int], tuple[LinkType, int]] = {}
    outside: set[str] = set()
    for gpu, position in parts.gpus:
        here = by_bus[position.pci]
        targets = set()
        for link in gpu.children:
            if link.tag not in _LINKS:
                continue
            target = _bus(link, "target")
            if target in targets:
                raise link.error(f"leads to {target} a second time")
            targets.add(target)
            if not link.attributes.get("tclass", "").startswith(_GPU_CLASS):
                continue
            if target == position.pci:
                parts.warnings.append(f"GPU {here} names itself as the end of its {link.tag}: not taken for a link")
            elif target not in by_bus:
                outside.add(target)
            else:
                result[here, by_bus[target]] = (_LINKS[link.tag], _count(link))
    for (a, b), kind_and_count in result.items():
        if result.get((b, a)) != kind_and_count:
            opposite = result.get((b, a))
            raise FormatError(
                f"GPU {a} to GPU {b} is {_link_text(kind_and_count)}, but {_link_text(opposite)} the other way"
            )
    _check_outside(outside, parts, by_bus)
    return result


def _link_text(kind_and_count: tuple[LinkType, int] | None) -> str:
    return f"{kind_and_count[1]} {kind_and_count[0].value}" if kind_and_count else "nothing"


def _check_outside(outside: set[str], parts: _Parts, by_bus: Mapping[str, int]) -> None:
    """Ends that are not in the file: other GPUs of the node, which a job did not use."""
    if not outside:
        return
    if any(device.pci in outside for device in parts.devices):
        raise FormatError(
            f"a link leads to {min(outside & {pci_device.pci for pci_device in parts.devices})}, which is no GPU here"
        )
    ranks = sorted(rank for gpu, _ in parts.gpus if (rank := gpu.whole("rank", -1)) is not None)
    has_gap = bool(ranks) and ranks[-1] - ranks[0] >= len(ranks)
    if (len(outside) == 1 and len(by_bus) > 2) or (len(outside) <= 3 and has_gap):
        raise FormatError(f"links of GPUs lead to {min(outside)}, which is not in the file: a GPU is missing")
    parts.warnings.append(
        f"links lead to {len(outside)} more GPUs that are not in the file: it shows a part of the node"
    )


def _switched(parts: _Parts) -> dict[int, int]:
    """Links into NVSwitches by GPU."""
    result = {}
    for number, (gpu, _) in enumerate(parts.gpus):
        index = gpu.whole("dev", 0, 4095)
        links = [link for link in gpu.children if link.tag == "nvlink"]
        count = sum(_count(link) for link in links if link.attributes.get("tclass", "").startswith(_SWITCH_CLASS))
        if count:
            result[number if index is None else index] = count
        for link in gpu.children:
            is_named_class = link.attributes.get("tclass", "").startswith((*_GPU_CLASS, _SWITCH_CLASS))
            if link.tag in _LINKS and not is_named_class:
                parts.warnings.append(f"line {link.line}: a link to neither GPU nor NVSwitch was left out")
    if len(set(result.values())) > 1 or (result and len(result) != len(parts.gpus)):
        counts = ", ".join(f"GPU {gpu}: {count}" for gpu, count in sorted(result.items()))
        raise FormatError(f"the GPUs have different numbers of links into NVSwitches ({counts}): some are missing")
    return result


def _pairs(
    parts: _Parts,
    gpus: Sequence[TopologyGpu],
    direct: Mapping[tuple[int, int], tuple[LinkType, int]],
    switched: Mapping[int, int],
) -> Iterator[TopologyLink]:
    for i, topology_gpu in enumerate(gpus):
        for j in range(i + 1, len(gpus)):
            a, b = topology_gpu.index, gpus[j].index
            if kind_and_count := direct.get((a, b)):
                yield TopologyLink(a, b, *kind_and_count)
            elif a in switched and b in switched:
                yield TopologyLink(a, b, LinkType.NVLINK, min(switched[a], switched[b]))
            else:
                yield TopologyLink(a, b, _way(parts.gpus[i][1], parts.gpus[j][1]))


def _way(a: _Position, b: _Position) -> LinkType:
    """The way through PCIe, in NCCL's terms: one bridge, several, the processor, or two of them."""
    if a.cpu is not b.cpu:
        return LinkType.SYS
    path_a, path_b = a.above[:-1], b.above[:-1]
    common = sum(1 for x, y in zip(path_a, path_b, strict=False) if x is y)
    if not common:
        return LinkType.PHB
    return LinkType.PIX if len(path_a) == len(path_b) == common else LinkType.PXB


def _nics(parts: _Parts) -> tuple[TopologyNic, ...]:
    names = [net.attributes.get("name", "") for net, _ in parts.nets]
    numbers = {number for net, _ in parts.nets if (number := net.whole("dev")) is not None}
    if numbers and max(numbers) >= len(numbers):
        raise FormatError(f"the network devices are numbered {sorted(numbers)[:32]}: one is missing")
    topology_nics: list[TopologyNic] = []
    positions: dict[str, list[_Position]] = {}
    for (net, position), name in zip(parts.nets, names, strict=True):
        if not name:
            raise net.error("has no name")
        speed = net.whole("speed", -1)
        unique_name = f"{name}:{net.attributes.get('port', '')}" if names.count(name) > 1 else name
        before = positions.setdefault(unique_name, [])
        before.append(position)
        if len(before) > 1:
            # A card without a PCI address stands under every processor, in containers.
            if any(item.above for item in before) or any(item.cpu is position.cpu for item in before[:-1]):
                raise net.error(f"{unique_name} stands twice")
            unique_name = f"{unique_name}@{position.numa}"
            parts.warnings.append(f"{name} stands under several processors")
        topology_nics.append(
            TopologyNic(unique_name, position.pci, position.numa, speed / 1000 if speed and speed > 0 else None)
        )
    return tuple(topology_nics)


def _devices_without_gpu(parts: _Parts) -> None:
    held = {position.pci for _, position in parts.gpus}
    bare = [device.pci for device in parts.devices if device.kind == "gpu" and device.pci not in held]
    if bare and held:
        raise FormatError(f"the PCI device {bare[0]} is a GPU, but holds no <gpu>")
    if bare:
        parts.warnings.append(
            f"{len(bare)} GPUs are given as PCI devices only, without <gpu>: nothing is known of links"
        )


PARSER = XmlParser((TOOL,), recognises, parse)
