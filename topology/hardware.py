"""A machine described in words, as tables of measurements describe it, becomes the graph that a tool's output does."""

import re
from dataclasses import dataclass
from functools import lru_cache

from kopt.topology.gpu_facts import NO_PEERS, NVLINK_GBPS, RACK_GPUS, SUPERCHIP_RACK, gpu_specs, nvlink_gbps, xgmi_gbps
from kopt.topology.graph import Device, DeviceGraph, DeviceKind, Edge, EdgeKind, GpuSpecs, Machine
from kopt.topology.networks import network_of, peers_off, software_of

_GPU, _SWITCH, _NUMA = DeviceKind.GPU, DeviceKind.LINK_SWITCH, DeviceKind.NUMA
SOCKET_GBPS = 40.0
"""GB/s per direction between two sockets; two or three UPI or xGMI-2 links."""
CUBE_MESH = (
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
)
"""Links between the eight V100 of a DGX-1 or p3.16xlarge."""
MI250X_NODE = (
    (0, 1, 4),
    (2, 3, 4),
    (4, 5, 4),
    (6, 7, 4),
    (0, 6, 2),
    (1, 7, 1),
    (2, 4, 2),
    (3, 5, 1),
    (0, 2, 1),
    (1, 3, 1),
    (4, 6, 1),
    (5, 7, 1),
    (1, 5, 1),
    (3, 7, 1),
)
"""Links between the eight GCDs of four MI250X, as ``rocm-smi --showtopo`` weighs them on Frontier-like nodes."""


@dataclass(frozen=True)
class HardwareRow:
    """``gpus_per_node`` counts the GPUs used. Texts as found: ``NVSwitch-NV18``, ``8x HDR200 IB``, ``nccl 2.29.2``."""

    gpu: str
    vendor: str
    intra_link: str
    n_nodes: int
    gpus_per_node: int
    nic_config: str = ""
    software: str = ""
    condition: str = ""


@lru_cache(maxsize=4096)
def machine_of(row: HardwareRow) -> Machine:
    """The machine and, by their indexes 0 .. gpus_per_node-1, the GPUs used."""
    specs = gpu_specs(row.gpu, row.vendor, row.intra_link)
    installed = max(row.gpus_per_node, _installed(row))
    node = _node(specs, row.intra_link or _usual_link(specs, installed), installed)
    if peers_off(f"{row.software} {row.condition}"):
        node = node.without_peers()
    domain_nodes, domain_known = _domain_nodes(row, installed)
    network = None
    if row.n_nodes > domain_nodes or (row.n_nodes > 1 and row.nic_config):
        network = network_of(row.nic_config, installed, specs)
    return Machine(
        node, network, software_of(row.software, row.condition, network), installed, domain_nodes, domain_known
    )


_NO_DOMAIN = re.compile(
    r"MNNVL_ENABLE=0|MNNVL (?:off|disabled)|(?:distinct|different) NVLink domains|no IMEX"
    r"|NET/Socket|\bsockets\b|\bTCP\b",
    re.IGNORECASE,
)


def _domain_nodes(row: HardwareRow, installed: int) -> tuple[int, bool]:
    """Nodes in one NVLink domain, and whether that is known: the trays of a rack share one, as a rule."""
    if _NO_DOMAIN.search(f"{row.software} {row.condition} {row.nic_config}"):
        return 1, True
    links = f"{row.intra_link} {row.nic_config}"
    size = re.search(r"partition of (\d{1,3}) GPUs", links) or re.search(r"NVL-?(\d{2,3})\b", links, re.IGNORECASE)
    stated = re.search(r"MNNVL|NVLink|NVL-?\d{2}|IMEX", f"{row.nic_config} {row.condition}", re.IGNORECASE)
    if not (size or stated or SUPERCHIP_RACK.search(row.gpu)):
        return 1, True
    nodes = max(1, (int(size[1]) if size else RACK_GPUS) // max(1, installed))
    return nodes, bool(stated) or not row.nic_config


def _installed(row: HardwareRow) -> int:
    """GPUs in a node: what the link says, else eight on a board and four on a tray of a superchip."""
    match = re.search(r"(?:mesh|cube|x)-?(\d{1,2})\b", row.intra_link, re.IGNORECASE)
    if match:
        return int(match[1])
    if re.search(r"GB200|GB300|GH200|NVL72|MI300A", row.gpu + row.intra_link):
        return 4
    return 8 if re.search(r"NVSwitch|XGMI|mesh", row.intra_link, re.IGNORECASE) else row.gpus_per_node


_BRIDGED = re.compile(r"\bNVL\b", re.IGNORECASE)
"""PCIe cards that bridges join (H100 NVL, H200 NVL)."""
_METAX_GROUP = 4
_LINK_GUESS_GBPS = 50.0


def _usual_link(specs: GpuSpecs, count: int) -> str:
    """How GPUs with links of their own are joined where nothing says it; nothing for others."""
    if not specs.link_gbps:
        return ""
    if specs.vendor == "amd":
        return "XGMI"
    if specs.generation <= 2:
        return "HybridCubeMesh" if count == 8 else ""
    if _BRIDGED.search(specs.name):
        return f"NV{round(specs.link_gbps / nvlink_gbps(specs))} bridges"
    return "NVSwitch" if re.search(r"SXM|HGX|DGX|H[128]00|GB|B[123]00", specs.name) and count > 1 else ""


def _node(specs: GpuSpecs, link: str, count: int) -> DeviceGraph:
    gpus = tuple(range(count))
    pcie, unknown = _pcie(specs, link, count), [] if specs.known else [f"GPU {specs.name!r}"]
    lower = link.lower()
    if "cube" in lower:
        direct = _mesh(CUBE_MESH, EdgeKind.NVLINK, NVLINK_GBPS[specs.generation or 2], count)
    elif "bridge" in lower or "pairs" in lower:
        match = re.search(r"nv(\d{1,2})\b", lower)
        gbps = nvlink_gbps(specs) * (int(match[1]) if match else 4)
        direct = _mesh([(a, a + 1, 1) for a in gpus[::2]], EdgeKind.NVLINK, gbps, count)
    elif "xgmi" in lower or "infinity" in lower or ("mi2" in specs.name.lower() and "pcie" not in lower):
        gbps = xgmi_gbps(specs.name)
        unknown += [] if gbps else [f"link {link!r}"]
        if "250" in specs.name or "1/2/4" in link:
            direct = _mesh(MI250X_NODE, EdgeKind.XGMI, gbps or 50.0, count)
        else:
            # Four MI300A have two links between every two, eight MI300X one.
            links = max(1, round(specs.link_gbps / max(1, count - 1) / gbps)) if gbps else 1
            direct = _mesh([(a, b, links) for a in gpus for b in gpus[a + 1 :]], EdgeKind.XGMI, gbps or 50.0, count)
    elif (
        "nvswitch" in lower
        or re.search(r"\bnvl(?:\d{2}|\b)", lower)
        or (lower.startswith("nvlink") and specs.link_gbps)
    ):
        direct = _switched(specs, link, gpus)
        unknown += [] if specs.generation else [f"speed of link {link!r}"]
    elif match := re.search(r"nv(\d{1,2})\b", lower):
        gbps = nvlink_gbps(specs)
        direct = _mesh([(a, b, int(match[1])) for a in gpus for b in gpus[a + 1 :]], EdgeKind.NVLINK, gbps, count)
    elif re.search(r"link|hccs", lower) and "pcie" not in lower:
        # Links of other makers: of MetaX in fours; their speed is not published, and more than that of cards.
        many = _METAX_GROUP if "metax" in lower else count
        direct = _mesh(
            [(a, b, 1) for a in gpus for b in gpus[a + 1 :] if a // many == b // many],
            EdgeKind.METAXLINK,
            _LINK_GUESS_GBPS,
            count,
        )
        unknown.append(f"speed of link {link!r}")
    else:
        direct = ()
        unknown += [] if re.search(r"pcie|phb|pix|sys|node", lower) else [f"link {link!r}"]
    return DeviceGraph(specs, gpus, (*direct, *pcie), not NO_PEERS.search(specs.name), tuple(unknown))


def _switched(specs: GpuSpecs, link: str, gpus: tuple[int, ...]) -> tuple[Edge, ...]:
    match = re.search(r"NV(\d{1,2})\b", link)
    count = int(match[1]) if match else 0
    total = count * NVLINK_GBPS.get(specs.generation, 25.0) or specs.link_gbps
    if not total:
        return ()
    return tuple(Edge(Device(_GPU, gpu), Device(_SWITCH, 0), EdgeKind.NVLINK, total) for gpu in gpus)


def _mesh(links: object, kind: EdgeKind, gbps: float, count: int) -> tuple[Edge, ...]:
    assert isinstance(links, list | tuple)
    return tuple(Edge(Device(_GPU, a), Device(_GPU, b), kind, gbps, many) for a, b, many in links if max(a, b) < count)


def _pcie(specs: GpuSpecs, link: str, count: int) -> tuple[Edge, ...]:
    """Two sockets from three GPUs on, each GPU at its socket's root."""
    match = re.search(r"pcie ?(\d)", link.lower())
    gbps = specs.pcie_gbps if not match else {3: 16.0, 4: 32.0, 5: 64.0, 6: 128.0}.get(int(match[1]), specs.pcie_gbps)
    half = count if count <= 2 else (count + 1) // 2
    up = [Edge(Device(_GPU, index), Device(_NUMA, index // half), EdgeKind.PCIE, gbps) for index in range(count)]
    return (*up, Edge(Device(_NUMA, 0), Device(_NUMA, 1), EdgeKind.SOCKET, SOCKET_GBPS))
