"""A machine described in words, as tables of measurements describe it, becomes the graph that a tool's output does."""

import re
from dataclasses import dataclass
from functools import lru_cache

from kopt.core.hardware.bandwidth import Software, Transport
from kopt.topology.gpu_facts import NO_PEERS, NVLINK_GBPS, gpu_specs, xgmi_gbps
from kopt.topology.graph import Device, DeviceGraph, DeviceKind, Edge, EdgeKind, GpuSpecs, Machine, Network

_GPU, _SWITCH, _NUMA = DeviceKind.GPU, DeviceKind.LINK_SWITCH, DeviceKind.NUMA
GBIT = 1 / 8
SOCKET_GBPS = 40.0
"""GB/s per direction between two sockets; two or three UPI or xGMI-2 links."""
NIC_GUESS_GBPS = 25.0
"""A card of 200 Gbit/s where nothing says more."""
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
    node = _node(specs, row.intra_link, installed)
    network = network_of(row.nic_config, installed) if row.n_nodes > 1 else None
    return Machine(node, network, software_of(row, network), installed)


def _installed(row: HardwareRow) -> int:
    """GPUs in a node: what the link says, else eight on a board and four on a tray of a superchip."""
    match = re.search(r"(?:mesh|cube|x)-?(\d{1,2})\b", row.intra_link, re.IGNORECASE)
    if match:
        return int(match[1])
    if re.search(r"GB200|GB300|GH200|NVL72", row.gpu + row.intra_link):
        return 4
    return 8 if re.search(r"NVSwitch|XGMI|mesh", row.intra_link, re.IGNORECASE) else row.gpus_per_node


def _node(specs: GpuSpecs, link: str, count: int) -> DeviceGraph:
    gpus = tuple(range(count))
    pcie, unknown = _pcie(specs, link, count), [] if specs.known else [f"GPU {specs.name!r}"]
    lower = link.lower()
    if "cube" in lower:
        direct = _mesh(CUBE_MESH, EdgeKind.NVLINK, NVLINK_GBPS[specs.generation or 2], count)
    elif "bridge" in lower or "pairs" in lower:
        match = re.search(r"nv(\d{1,2})\b", lower)
        gbps = NVLINK_GBPS[specs.generation or 3] * (int(match[1]) if match else 4)
        direct = _mesh([(a, a + 1, 1) for a in gpus[::2]], EdgeKind.NVLINK, gbps, count)
    elif "xgmi" in lower or "infinity" in lower or ("mi2" in specs.name.lower() and "pcie" not in lower):
        gbps = xgmi_gbps(specs.name)
        unknown += [] if gbps else [f"link {link!r}"]
        if "250" in specs.name or "1/2/4" in link:
            direct = _mesh(MI250X_NODE, EdgeKind.XGMI, gbps or 50.0, count)
        else:
            direct = _mesh([(a, b, 1) for a in gpus for b in gpus[a + 1 :]], EdgeKind.XGMI, gbps or 50.0, count)
    elif "nvswitch" in lower or "nvl72" in lower or (lower.startswith("nvlink") and specs.link_gbps):
        direct = _switched(specs, link, gpus)
        unknown += [] if specs.generation else [f"speed of link {link!r}"]
    elif match := re.search(r"nv(\d{1,2})\b", lower):
        gbps = NVLINK_GBPS[specs.generation or 3]
        direct = _mesh([(a, b, int(match[1])) for a in gpus for b in gpus[a + 1 :]], EdgeKind.NVLINK, gbps, count)
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


_SPEEDS = (
    ("NDR200", 200),
    ("NDR400", 400),
    ("XDR", 800),
    ("NDR", 400),
    ("HDR100", 100),
    ("HDR", 200),
    ("EDR", 100),
    ("FDR", 56),
    ("QDR", 40),
    ("Slingshot-11", 200),
    ("Slingshot", 200),
    ("CX7", 400),
    ("CX-7", 400),
    ("ConnectX-7", 400),
    ("ConnectX-6", 200),
    ("Pollara", 400),
    ("Thor", 400),
)


@lru_cache(maxsize=1024)
def network_of(text: str, installed: int = 8) -> Network:
    """``8x HDR200 IB``, ``32x100G EFA``, ``2x Slingshot-11 200Gb``, ``GPUDirect-TCPX 1Tbps`` (the sum), ``100G Eth``.

    Where no speed stands it is 200 Gbit/s a GPU, and the network is not known.
    """
    total = re.search(r"(\d+(?:\.\d+)?) ?Tb(?:it)?(?:/s|ps)", text)
    if total and float(total[1]) > 0:
        cards = installed if installed else 1
        gbit = float(total[1]) * 1000
        # A3 instances count the host's own card of 200 Gbit/s with those of the GPUs.
        return Network(cards, (gbit - 200 if "tcpx" in text.lower() and gbit > 400 else gbit) * GBIT / cards, text)
    many = re.search(r"\b(\d{1,2}) ?[x×]", text)
    used = re.search(r"\((\d{1,2}) used", text)
    cards = (int(used[1]) if used else 0) or (int(many[1]) if many else 0)
    stated = re.search(r"(?:[x×] ?|\b|HDR|NDR|EDR)(\d{2,3}) ?(?:G|Gb|Gbps|Gbit)?\b(?!GB)", _without_count(text))
    named = next((gbit for abbreviation, gbit in _SPEEDS if abbreviation.lower() in text.lower()), 0)
    gbit = named or (int(stated[1]) if stated and int(stated[1]) in _GBITS else 0)
    if not gbit:
        return Network(cards or installed, (2 if "roce" in text.lower() else 1) * NIC_GUESS_GBPS, text, known=False)
    return Network(cards or (1 if re.search(r"\bEth|ENA", text) else installed), gbit * GBIT, text)


_GBITS = {10, 25, 40, 50, 56, 100, 200, 400, 800}


def _without_count(text: str) -> str:
    return re.sub(r"\b\d{1,2} ?[x×] ?", "", text)


def software_of(row: HardwareRow, network: Network | None) -> Software:
    """What settings, versions and remarks say; a fabric without its plugin is reached through sockets."""
    remarks = f"{row.software} {row.condition}"
    match = re.search(r"v?(\d+)\.(\d+)(?:\.\d+)?", row.software)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    algorithm = next((item for item in ("ring", "tree") if re.search(rf"\b{item}\b", remarks, re.IGNORECASE)), "")
    tuned = True if re.search(r"optimal|tuner|tuned|infnet", remarks, re.IGNORECASE) else None
    tuned = False if re.search(r"low performance|suboptimal|anomal", remarks, re.IGNORECASE) else tuned
    in_process = bool(re.search(r"in-process|single process|multi-GPU \(", remarks, re.IGNORECASE))
    transport = Transport.UNKNOWN if network is None else _transport(network.name, remarks)
    direct = bool(re.search(r"\bGDR\b|gpudirect", remarks, re.IGNORECASE))
    return Software(transport, tuned, version, algorithm, in_process, direct)


def _transport(network: str, remarks: str) -> Transport:
    fabric = bool(re.search(r"slingshot|efa|\bena\b|cxi|omni", network, re.IGNORECASE))
    plugin = re.search(r"\bofi|-ofi-|cxi|plugin|tuner|\befa\b|libfabric|infnet", f"{remarks} {network}", re.IGNORECASE)
    if re.search(r"tcpx", network + remarks, re.IGNORECASE):
        return Transport.TCPX
    if re.search(r"sockets|tcp default|\bTCP\b", remarks) and (fabric or not _verbs(network)):
        return Transport.SOCKETS
    if re.search(r"\bENA\b", network) and not re.search(r"infnet|plugin|\bofi|\befa\b", remarks, re.IGNORECASE):
        return Transport.SOCKETS
    if fabric:
        return Transport.PLUGIN if plugin else Transport.SOCKETS
    if _verbs(network):
        return Transport.RDMA
    return Transport.SOCKETS if re.search(r"\beth", network, re.IGNORECASE) else Transport.UNKNOWN


def _verbs(network: str) -> bool:
    return bool(re.search(r"\bIB\b|infiniband|roce|[ehnfqx]dr\d*|cx-?[67]|connectx", network, re.IGNORECASE))
