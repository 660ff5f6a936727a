"""Folders of ``/sys`` as a mapping of paths to contents: KFD's topology, InfiniBand's classes, PCI devices.

Also as one JSON object of the same, as folders are passed around flattened. Sources: the kernel's ``kfd_topology.c``
(link type 2 is PCIe, 11 XGMI) and ``Documentation/ABI`` for the others.
"""

import re
from collections.abc import Mapping

from kopt.core.hardware.node_topology import LinkType, NodeTopology, PciDevice, TopologyGpu, TopologyLink, TopologyNic
from kopt.core.units import Bytes
from kopt.formats.topology.parser import FolderParser
from kopt.formats.topology.text import FormatError
from kopt.formats.topology.values import pci_address

KFD_TOOL = "kfd sysfs"
IB_TOOL = "infiniband sysfs"
PCI_TOOL = "pci sysfs"

KFD_FILE = re.compile(
    r"(?:.*/)?nodes/(\d{1,4})/((?:io_links|p2p_links|mem_banks)/\d{1,4}/properties|properties|gpu_id|name)$"
)
IB_FILE = re.compile(r"(?:.*/)?([\w.-]+)/ports/(\d{1,3})/(rate|state|link_layer|phys_state)$")
PCI_FILE = re.compile(
    r"(?:.*/)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/(class|vendor|device|numa_node|current_link_speed|current_link_width)$"
)
_XGMI, _PCIE = 11, 2
_RATE = re.compile(r"([\d.]{1,12}) Gb/sec")


def recognises(tree: Mapping[str, str]) -> bool:
    return any(pattern.match(path) for path in tree for pattern in (KFD_FILE, IB_FILE, PCI_FILE))


def parse(tree: Mapping[str, str]) -> NodeTopology:
    """Raises FormatError, also when the tree holds none of the three, or more than one."""
    kinds = [
        (pattern, parser)
        for pattern, parser in ((KFD_FILE, _kfd), (IB_FILE, _infiniband), (PCI_FILE, _pci))
        if any(pattern.match(path) for path in tree)
    ]
    if not kinds:
        raise FormatError("a folder, but not one of /sys/class/kfd, /sys/class/infiniband or /sys/bus/pci/devices")
    if len(kinds) > 1:
        raise FormatError("several parts of /sys in one; give one of them at a time")
    return kinds[0][1](tree)


def _properties(path: str, text: str) -> dict[str, int]:
    properties: dict[str, int] = {}
    for line, row in enumerate(text.splitlines(), 1):
        fields = row.split()
        if not fields:
            continue
        if (
            len(fields) != 2
            or not fields[1].isascii()
            or not fields[1].isdigit()
            or len(fields[1]) > 20
            or fields[0] in properties
        ):
            raise FormatError(f"{path}: {row[:60]!r} is no property with its number, or stands twice", line)
        properties[fields[0]] = int(fields[1])
    return properties


def _kfd(tree: Mapping[str, str]) -> NodeTopology:
    nodes: dict[int, dict[str, int]] = {}
    links: dict[tuple[int, int], tuple[int, int, int]] = {}
    banks: dict[int, int] = {}
    counted: dict[int, dict[str, int]] = {}
    warnings: list[str] = []
    for path in sorted(tree):
        match = KFD_FILE.match(path)
        if match is None:
            continue
        node, kind = int(match[1]), match[2].split("/")[0]
        if match[2] == "properties":
            nodes[node] = _properties(path, tree[path])
        elif match[2].endswith("/properties"):
            values = _properties(path, tree[path])
            counted.setdefault(node, {}).setdefault(kind, 0)
            counted[node][kind] += 1
            if kind == "mem_banks":
                heap = values.get("heap_type") in (1, 2)
                banks[node] = banks.get(node, 0) + (values.get("size_in_bytes", 0) if heap else 0)
            else:
                _add_link(path, node, values, links, warnings)
    _check_nodes(nodes, counted)
    return _kfd_node(nodes, links, banks, warnings)


def _add_link(
    path: str,
    node: int,
    values: Mapping[str, int],
    links: dict[tuple[int, int], tuple[int, int, int]],
    warnings: list[str],
) -> None:
    target, kind = values.get("node_to"), values.get("type")
    if target is None or kind is None or "weight" not in values or target == node:
        raise FormatError(f"{path} does not say where it leads, or leads back")
    if values.get("node_from", node) != node:
        warnings.append(f"{path} says that it begins at node {values['node_from']}; taken for one of node {node}")
    if (node, target) in links:
        raise FormatError(f"{path}: a second link from node {node} to node {target}")
    links[node, target] = (kind, values["weight"], values.get("max_bandwidth", 0))


def _check_nodes(nodes: Mapping[int, Mapping[str, int]], counted: Mapping[int, Mapping[str, int]]) -> None:
    if sorted(nodes) != list(range(len(nodes))):
        missing = next(n for n in range(max([*nodes, *counted], default=0) + 2) if n not in nodes)
        raise FormatError(f"nodes/{missing}/properties is missing")
    for node, result in counted.items():
        if node not in nodes:
            raise FormatError(f"nodes/{node}/properties is missing")
        for kind in ("io_links", "p2p_links", *(("mem_banks",) if "mem_banks" in counted.get(0, {}) else ())):
            stated = nodes[node].get(f"{kind}_count")
            if stated is not None and stated != result.get(kind, 0):
                raise FormatError(f"node {node} says that it has {stated} {kind}, but {result.get(kind, 0)} are there")
    first = next((nodes[node] for node in sorted(nodes) if nodes[node].get("simd_count")), {})
    for node, properties in sorted(nodes.items()):
        odd = set(first) ^ set(properties)
        if properties.get("simd_count") and odd:
            raise FormatError(f"nodes/{node}/properties and that of another GPU differ in {min(odd)}")
        if "simd_count" not in properties:
            raise FormatError(f"nodes/{node}/properties does not say simd_count")
        if properties.get("io_links_count") and node not in counted:
            raise FormatError(f"the links of node {node} are missing")


def _kfd_node(
    nodes: Mapping[int, Mapping[str, int]],
    links: Mapping[tuple[int, int], tuple[int, int, int]],
    banks: Mapping[int, int],
    warnings: list[str],
) -> NodeTopology:
    gpus = [node for node in sorted(nodes) if nodes[node]["simd_count"]]
    for (a, b), properties in links.items():
        if b not in nodes:
            raise FormatError(f"a link of node {a} leads to node {b}, which is not there")
        back = links.get((b, a))
        if (back is not None and back[:2] != properties[:2]) or (back is None and properties[0] == _XGMI):
            raise FormatError(f"the link from node {a} to node {b} is {properties[:2]}, but {back and back[:2]} back")
    topology_links, core = [], []
    for index, node in enumerate(gpus):
        near = [
            other for other in nodes if other not in gpus and (node, other) in links and links[node, other][0] == _PCIE
        ]
        cpu = min(near, key=lambda other: links[node, other][1], default=None)
        core.append(TopologyGpu(index, _name(nodes[node]), _address(nodes[node]), cpu, Bytes(banks.get(node, 0))))
        for other in gpus[:index]:
            topology_links.append(_kfd_link(gpus.index(other), index, other, node, core, links))
    addresses = [gpu.pci for gpu in core]
    if len(set(addresses)) != len(addresses):
        warnings.append("two GPUs have one PCI address")
    ordered = tuple(
        sorted(
            (topology_link for topology_link in topology_links if topology_link is not None),
            key=lambda topology_link: (topology_link.a, topology_link.b),
        )
    )
    return NodeTopology("", tuple(core), ordered, tool=KFD_TOOL, vendor="amd", warnings=tuple(warnings))


def _kfd_link(
    a: int,
    b: int,
    node_a: int,
    node_b: int,
    gpus: list[TopologyGpu],
    links: Mapping[tuple[int, int], tuple[int, int, int]],
) -> TopologyLink | None:
    """Direct, or through the processors as ROCm SMI counts it: two hops within a NUMA node, three across."""
    cpu_a, cpu_b = gpus[a].numa, gpus[b].numa
    hops = 2 if cpu_a == cpu_b else 3
    direct = links.get((node_a, node_b)) or links.get((node_b, node_a))
    if direct is not None:
        kind, weight, speed = direct
        if kind not in (_XGMI, _PCIE):
            raise FormatError(f"the link from node {node_a} to node {node_b} has the unknown type {kind}")
        is_xgmi = kind == _XGMI
        return TopologyLink(
            a,
            b,
            LinkType.XGMI if is_xgmi else LinkType.PCIE,
            None,
            weight,
            1 if is_xgmi else hops,
            speed / 1000 if speed else None,
        )
    if cpu_a is None or cpu_b is None:
        return None
    between = 0 if cpu_a == cpu_b else links.get((cpu_a, cpu_b), (0, 0, 0))[1]
    weight = links[node_a, cpu_a][1] + between + links[node_b, cpu_b][1]
    return TopologyLink(a, b, LinkType.PCIE, None, weight, hops)


def _name(properties: Mapping[str, int]) -> str:
    version = properties.get("gfx_target_version", 0)
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else ""


def _address(properties: Mapping[str, int]) -> str:
    location = properties.get("location_id")
    if location is None:
        return ""
    return f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def _infiniband(tree: Mapping[str, str]) -> NodeTopology:
    ports: dict[tuple[str, int], dict[str, str]] = {}
    for path in sorted(tree):
        match = IB_FILE.match(path)
        if match:
            ports.setdefault((match[1], int(match[2])), {})[match[3]] = tree[path].strip()
    cards = [card for card, _ in ports]
    nics = []
    for (card, port), values in ports.items():
        if "rate" not in values or "state" not in values:
            raise FormatError(f"{card}/ports/{port} does not say its rate and state")
        rate = _RATE.match(values["rate"])
        state = values["state"].partition(":")[2].strip()
        if rate is None or not state:
            raise FormatError(
                f"{card}/ports/{port}: {values['rate'][:40]!r}, {values['state'][:40]!r} are no rate and state"
            )
        try:
            speed = float(rate[1])
        except ValueError as error:
            raise FormatError(f"{card}/ports/{port}: {rate[1]!r} is no rate") from error
        name = f"{card}:{port}" if cards.count(card) > 1 else card
        nics.append(TopologyNic(name, "", None, speed, state, values.get("link_layer", "")))
    return NodeTopology("", (), (), tuple(nics), tool=IB_TOOL)


def _pci(tree: Mapping[str, str]) -> NodeTopology:
    values: dict[str, dict[str, str]] = {}
    for path in sorted(tree):
        match = PCI_FILE.match(path)
        if match:
            values.setdefault(pci_address(match[1]), {})[match[2]] = tree[path].strip()
    devices, names = [], {"0x10de": "NVIDIA", "0x1002": "AMD"}
    for address, own in sorted(values.items()):
        if not re.fullmatch(r"0x[0-9a-f]{6}", own.get("class", "")):
            raise FormatError(f"{address}: class is {own.get('class', '')[:40]!r}, not that of a PCI device")
        numa = own.get("numa_node", "-1")
        if not re.fullmatch(r"-1|\d{1,4}", numa, re.ASCII):
            raise FormatError(f"{address}: numa_node is {numa[:40]!r}")
        maker = names.get(own.get("vendor", ""), own.get("vendor", ""))
        node = None if numa == "-1" else int(numa)
        devices.append(PciDevice(address, _pci_kind(own), f"{maker} {own.get('device', '')}".strip(), node))
    gpus = tuple(
        [
            TopologyGpu(n, "", pci_device.pci, pci_device.numa)
            for n, pci_device in enumerate(d for d in devices if d.kind == "gpu")
        ]
    )
    nics = tuple([TopologyNic(device.pci, device.pci, device.numa) for device in devices if device.kind == "nic"])
    return NodeTopology("", gpus, (), nics, tool=PCI_TOOL, devices=tuple(devices))


def _pci_kind(own: Mapping[str, str]) -> str:
    kind = own["class"]
    is_ours = own.get("vendor", "") in ("0x10de", "0x1002")
    if is_ours and kind[:6] in ("0x0300", "0x0302", "0x0380", "0x1200"):
        return "gpu"
    if kind[:6] == "0x0680" and own.get("vendor") == "0x10de":
        return "switch"
    return "nic" if kind[:4] == "0x02" else "bridge" if kind[:6] == "0x0604" else "other"


PARSER = FolderParser((KFD_TOOL, IB_TOOL, PCI_TOOL), recognises, parse)
