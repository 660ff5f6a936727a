"""``lspci``, with ``-nn``, ``-D``, ``-v``, and ``-tv``: the GPUs, network cards and NVSwitches on the PCI buses.

The numbers of GPUs here are the order of their addresses, which is that of nvidia-smi; links are not told.
"""

import re
from dataclasses import replace

from kopt.core.hardware.node_topology import NodeTopology, PciDevice, TopologyGpu, TopologyNic
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import pci_address

TOOL = "lspci"
TREE_TOOL = "lspci -tv"

_DEVICE = re.compile(
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) \"?([A-Z0-9][^:\"]{2,60}?)(?: \[([0-9a-f]{4})\])?: (\S.*)$"
)
_DEVICE_LIKE = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
_NUMA = re.compile(r"\s+NUMA node: (\d{1,4})\s*$")
_TREE = re.compile(r"\s*-\+?-?\[[0-9a-f]{4,8}:[0-9a-f]{2}\]-")
_ROOT = re.compile(r"\[([0-9a-f]{4,8}):([0-9a-f]{2})\]")
_LEAF = re.compile(r"([\s|+\\\-\[\]0-9a-f:.]*?)([0-9a-f]{2}\.[0-7])  (\S.*)$")
_ART = re.compile(r"[\s|+\\\-\[\]0-9a-f:.]+$")
_PART = re.compile(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]|([0-9a-f]{2}\.[0-7])")
_GPU_CLASSES = {"VGA compatible controller", "3D controller", "Display controller", "Processing accelerators"}
_NIC_CLASSES = {"Ethernet controller", "Infiniband controller", "InfiniBand controller", "Network controller"}
_IDS = re.compile(r"(?: \[[0-9a-f]{4}:[0-9a-f]{4}\])?(?: \(rev [0-9a-f]{2}\))?(?: \(prog-if .*\))?$")
_MAKERS = re.compile(r"NVIDIA|Advanced Micro Devices|AMD/ATI")
_GPU_NAMES = re.compile(
    r"\[(?:Tesla|GeForce|Quadro|RTX|TITAN|[AHBLVPTM]\d{1,3}\b|GH200|GB\d+)|Instinct|Radeon|GeForce|Aldebaran"
)
_NIC_NAMES = re.compile(
    r"ConnectX|BlueField|Ethernet|Infini[bB]and|Pensando|NetXtreme|Elastic Fabric Adapter|I?X?[GLX]7\d\d "
)


def recognises(source: Source) -> bool:
    return source.has(_TREE) or sum(1 for _ in source.matching(_DEVICE)) > 0


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    is_tree = source.has(_TREE)
    devices = _tree(source) if is_tree else _list(source)
    addresses = [device.pci for device in devices]
    if len(set(addresses)) != len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise FormatError(f"{twice} stands twice")
    gpus = tuple(
        [
            TopologyGpu(n, _IDS.sub("", pci_device.name), pci_device.pci, pci_device.numa)
            for n, pci_device in enumerate(pci_device for pci_device in devices if pci_device.kind == "gpu")
        ]
    )
    nics = tuple(
        [
            TopologyNic(pci_device.pci, pci_device.pci, pci_device.numa)
            for pci_device in devices
            if pci_device.kind == "nic"
        ]
    )
    makers = {"nvidia" if "NVIDIA" in gpu.name else "amd" for gpu in gpus}
    return NodeTopology(
        "",
        gpus,
        (),
        nics,
        tool=TREE_TOOL if is_tree else TOOL,
        vendor=next(iter(makers)) if len(makers) == 1 else "",
        devices=tuple(devices),
    )


def _list(source: Source) -> list[PciDevice]:
    pci_devices: list[PciDevice] = []
    last: Line | None = None
    odd: Line | None = None
    for line in source.lines:
        match = _DEVICE.match(line.text)
        if match:
            if odd is not None:
                raise odd.error("this line belongs to no PCI device")
            pci_devices.append(PciDevice(pci_address(match[1], line.number), _kind(match[2], match[4]), match[4]))
            last = line
        elif pci_devices and (numa := _NUMA.match(line.text)):
            pci_devices[-1] = replace(pci_devices[-1], numa=int(numa[1]))
        elif _DEVICE_LIKE.match(line.text):
            raise line.error("this is no whole line of a PCI device")
        elif pci_devices and line and not line.text[0].isspace() and odd is None:
            odd = line
    if last is not None:
        unbroken(last, "the last PCI device")
    return pci_devices


def _kind(title: str, name: str) -> str:
    if title in _GPU_CLASSES and _MAKERS.search(name):
        return "gpu"
    if title in _NIC_CLASSES:
        return "nic"
    if title == "Bridge" and "NVIDIA" in name:
        return "switch"
    return "bridge" if title == "PCI bridge" else "other"


def _tree(source: Source) -> list[PciDevice]:
    """Buses open in brackets and hold what stands to the right of them, on this line and below it."""
    pci_devices: list[PciDevice] = []
    buses: list[tuple[int, str, str]] = []
    ended = False
    for line in source.lines:
        leaf = _LEAF.match(line.text)
        art = leaf[1] + leaf[2] if leaf else line.text if _ART.match(line.text) and "-" in line.text else ""
        if not art or not (buses or _ROOT.search(art)):
            ended = bool(buses and line)
            continue
        if ended:
            raise line.error("the tree goes on behind a line that is not of it")
        unbroken(line, "the last line of the tree")
        _branch(line, art, leaf[3] if leaf else "", buses, pci_devices)
    return pci_devices


def _branch(line: Line, art: str, name: str, buses: list[tuple[int, str, str]], pci_devices: list[PciDevice]) -> None:
    parts = list(_PART.finditer(art))
    if not parts:
        return
    while buses and buses[-1][0] >= parts[0].start():
        buses.pop()
    for n, part in enumerate(parts):
        if part[3] is None:
            domain = part[1] or (buses[-1][1].split(":")[0] if buses else "")
            if not domain:
                raise line.error("a bus outside of the tree")
            above = "" if part[1] else (pci_devices[-1].pci if pci_devices else "")
            buses.append((part.start(), f"{domain}:{part[2]}", above))
            continue
        if not buses:
            raise line.error("a device outside of the tree")
        is_last = n == len(parts) - 1
        address = pci_address(f"{buses[-1][1]}:{part[3]}", line.number)
        kind = _named(name) if is_last and name else "bridge"
        pci_devices.append(PciDevice(address, kind, name if is_last else "", None, buses[-1][2]))


def _named(name: str) -> str:
    """What a device is, of whose class the tree says nothing."""
    if _MAKERS.search(name) and _GPU_NAMES.search(name) and not re.search(r"Audio|USB|UCSI", name):
        return "gpu"
    return "nic" if _NIC_NAMES.search(name) else "other"


PARSER = TextParser((TOOL, TREE_TOOL), recognises, parse)
