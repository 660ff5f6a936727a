"""Networks between nodes and the software that uses them, as tables and people describe them in words."""

import re
from functools import lru_cache

from kopt.core.hardware.bandwidth import Software, Transport
from kopt.topology.graph import GpuSpecs, Network

GBIT = 1 / 8

_NAMED_GBIT = (
    ("NDR200", 200),
    ("NDR400", 400),
    ("XDR", 800),
    ("NDR", 400),
    ("HDR100", 100),
    ("HDR", 200),
    ("EDR", 100),
    ("FDR", 56),
    ("QDR", 40),
    ("Slingshot-10", 100),
    ("Slingshot", 200),
    ("Omni-Path", 100),
    ("CX8", 800),
    ("CX-8", 800),
    ("ConnectX-8", 800),
    ("CX7", 400),
    ("CX-7", 400),
    ("ConnectX-7", 400),
    ("BlueField-3", 400),
    ("ConnectX-6", 200),
    ("ConnectX-5", 100),
    ("ConnectX-4", 100),
    ("Pollara", 400),
    ("AINIC", 400),
    ("Thor", 400),
    ("GigE", 1),
    ("Gigabit Ethernet", 1),
)
_GBIT_OF_CARD = re.compile(
    r"(?:[x×] ?|\b|[HNE]DR)(\d{1,3}(?:\.\d)?) ?(?:[Gg](?:b|bit|bps|be|bE|E|BE|BASE)?(?:/s)?\b|[Gg]igabit)(?!/)"
)
_MEGABIT = re.compile(r"\b(\d{2,4}) ?Mb(?:it|ps)?\b")
_BARE_GBIT = re.compile(r"(?:[x×] ?|\b)(10|25|40|50|56|100|200|400|800)\b(?! ?GB)")
_GIGABYTES = re.compile(r"\b(\d{1,3}(?:\.\d+)?) ?GB(?:/s|ps)", re.ASCII)
_TOTAL = re.compile(r"(\d+(?:\.\d+)?) ?Tb(?:it)?(?:/s|ps)")
_ETHERNET = re.compile(
    r"\beth|ethernet|\d ?G(?:b?E|BASE)\b|GigE|\btcp\b|socket|\bIPoIB\b|\bIP over IB|\bvirtio|\bVPC\b|gVNIC"
    r"|\bEN[AS]\d*\b",
    re.IGNORECASE,
)
_VERBS = re.compile(
    r"\bIB\b|\bgIB\b|infiniband|roce|\bRDMA\b|[ehnfqx]dr\d*\b|cx-?[5678]\b|connectx|mlx5|bluefield|ainic|pollara|bnxt",
    re.IGNORECASE,
)
_STAGED = re.compile(
    r"\b(?:no|without) (?:GDR|GPUDirect)|(?:GDR|GPUDirect)\S*(?: RDMA)? (?:is )?(?:off|disabled)|GDR_LEVEL=(?:0|LOC)\b"
    r"|staged through (?:the )?host",
    re.IGNORECASE,
)
_HOPPER_BOARD = 4
_NO_PEERS = re.compile(
    r"P2P_DISABLE=1|(?:P2P|peer access) (?:is |was )?(?:off|disabled)|(?:no|without) (?:P2P|peer access)",
    re.IGNORECASE,
)
_VERBS_GBIT = 100
"""Cards so fast are bought for verbs, where nothing says what they speak."""
_FABRIC = re.compile(r"slingshot|efa\b|cxi|omni", re.IGNORECASE)


@lru_cache(maxsize=1024)
def network_of(text: str, installed: int = 8, gpu: GpuSpecs | None = None) -> Network:
    """``8x HDR200 IB``, ``32x100G EFA``, ``2x Slingshot-11 200Gb``, ``GPUDirect-TCPX 1Tbps`` (the sum), ``25GbE``.

    Where no speed stands, it is what such GPUs are sold with, and the network is not known.
    """
    total = _TOTAL.search(text)
    if total and float(total[1]) > 0:
        cards = installed if installed else 1
        gbit = float(total[1]) * 1000
        # A3 instances count the host's own card of 200 Gbit/s with those of the GPUs.
        return Network(cards, (gbit - 200 if "tcpx" in text.lower() and gbit > 400 else gbit) * GBIT / cards, text)
    cards = _stated_cards(text)
    gbit = _gbit(re.sub(r"\b\d{1,2} ?[x×] ?", "", text))
    ethernet, fabric = _over_ip(text, gbit), bool(_FABRIC.search(text))
    if not gbit:
        usual_cards, usual_gbit = _usual(installed, gpu, ethernet=ethernet)
        usual_gbit = min(usual_gbit, 100.0) if re.search(r"\bEFA\b", text) else usual_gbit
        usual_gbit = min(usual_gbit, 200.0) if re.search(r"tcpxo?", text, re.IGNORECASE) else usual_gbit
        return Network(cards or usual_cards, usual_gbit * GBIT, text, known=False, fabric=fabric)
    if cards or ethernet:
        return Network(cards or 1, gbit * GBIT, text, fabric=fabric)
    # Slow cards without a number are one in a node, as a rule; fast ones are one per GPU.
    return Network(1 if gbit <= 100 else installed, gbit * GBIT, text, known=False, fabric=fabric)


def _stated_cards(text: str) -> int:
    used = re.search(r"\((\d{1,2}) (?:NICs? |cards? )?used", text, re.IGNORECASE)
    many = re.search(r"\b(\d{1,2}) ?(?:[x×]|(?:NIC|HCA|rail|port|card|adapter)s?\b)", text, re.IGNORECASE)
    stated = (int(used[1]) if used else 0) or (int(many[1]) if many else 0)
    return stated or (2 if re.search(r"\bdual\b", text, re.IGNORECASE) else 0)


def _gbit(text: str) -> float:
    """Of one card; 0 where no speed stands."""
    named = next((gbit for name, gbit in _NAMED_GBIT if name.lower() in text.lower()), 0)
    if "slingshot" in text.lower() and re.search(r"verbs", text, re.IGNORECASE):
        named = 100  # Only the cards of its first generation speak verbs.
    stated = _GBIT_OF_CARD.search(text) or _BARE_GBIT.search(text)
    if stated and float(stated[1]) > 0 and (not named or re.search(r"slingshot|efa|thor", text, re.IGNORECASE)):
        return float(stated[1])
    gigabytes, megabit = _GIGABYTES.search(text), _MEGABIT.search(text)
    return named or (float(gigabytes[1]) * 8 if gigabytes else 0.0) or (int(megabit[1]) / 1000 if megabit else 0.0)


def _over_ip(text: str, gbit: float) -> bool:
    """Ethernet without RDMA; of what has no name, that which is too slow for anything else."""
    if _VERBS.search(text) or _FABRIC.search(text) or "tcpx" in text.lower():
        return False
    return bool(_ETHERNET.search(text)) or 0 < gbit <= 25


def _usual(installed: int, gpu: GpuSpecs | None, *, ethernet: bool) -> tuple[int, float]:
    """Cards of a node and Gbit/s of each, as nodes of such GPUs are sold: DGX and HGX have a card per GPU of the
    generation of their time (V100 one per two; boards of four Hopper GPUs are those of supercomputers, whose cards are
    of 200 Gbit/s), boxes of PCIe cards one for all."""
    if ethernet:
        return 1, {0: 10.0, 1: 10.0, 2: 25.0, 3: 100.0}.get(gpu.generation if gpu else 0, 200.0)
    if gpu is not None and gpu.generation == 4 and installed == _HOPPER_BOARD:
        return installed, 200.0
    if gpu is None or (gpu.vendor == "amd" and gpu.link_gbps >= 400) or gpu.generation >= 4:
        return max(1, installed), 400.0
    if gpu.generation >= 3 or gpu.vendor == "amd":
        return max(1, installed), 200.0
    if gpu.generation:
        return max(1, installed // 2), 100.0
    return 1, 100.0 if gpu.pcie_gbps > 16 else 25.0


def software_of(software: str, condition: str, network: Network | None) -> Software:
    """What settings, versions and remarks say; a fabric without its plugin is reached through sockets."""
    remarks = f"{software} {condition}"
    match = re.search(r"v?(\d+)\.(\d+)(?:\.\d+)?", software)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    algorithm = next((item for item in ("ring", "tree") if re.search(rf"\b{item}\b", remarks, re.IGNORECASE)), "")
    tuned = True if re.search(r"optimal|tuner|tuned|infnet", remarks, re.IGNORECASE) else None
    tuned = False if re.search(r"low performance|suboptimal|anomal", remarks, re.IGNORECASE) else tuned
    in_process = bool(re.search(r"in-process|single process|multi-GPU \(", remarks, re.IGNORECASE))
    transport = Transport.UNKNOWN if network is None else _transport(network.name, remarks)
    direct = bool(re.search(r"\bGDR\b|gpudirect", remarks, re.IGNORECASE))
    sharp = bool(re.search(r"\bSHARP\b|COLLNET_ENABLE=1", remarks)) and transport is Transport.RDMA
    staged = transport is Transport.RDMA and bool(_STAGED.search(remarks))
    return Software(transport, tuned, version, algorithm, in_process, direct, sharp, staged)


def peers_off(remarks: str) -> bool:
    """Do settings send what GPUs of a node exchange through the host's memory (``NCCL_P2P_DISABLE=1``)? Where they
    forbid that as well (``NCCL_SHM_DISABLE=1``), the network cards carry it."""
    return bool(_NO_PEERS.search(remarks)) and "SHM_DISABLE=1" not in remarks


def _transport(network: str, remarks: str) -> Transport:
    fabric = bool(_FABRIC.search(network))
    plugin = re.search(r"\bofi|-ofi-|cxi|plugin|tuner|\befa\b|libfabric|infnet", f"{remarks} {network}", re.IGNORECASE)
    if re.search(r"tcpx", re.sub(r"(?i)\b(?:no|without) (?:gpudirect-)?tcpx", "", network + remarks), re.IGNORECASE):
        return Transport.TCPX
    if re.search(r"IB_DISABLE=1|\bno \S*(?:ofi|plugin)|without \S*(?:ofi|plugin)", remarks, re.IGNORECASE):
        return Transport.SOCKETS
    if re.search(r"sockets|tcp default|\bTCP\b", remarks) and (fabric or not _VERBS.search(network)):
        return Transport.SOCKETS
    if re.search(r"\bENA\b", network) and not re.search(r"infnet|plugin|\bofi|\befa\b", remarks, re.IGNORECASE):
        return Transport.SOCKETS
    if fabric and re.search(r"verbs", remarks + network, re.IGNORECASE):
        return Transport.RDMA
    if fabric:
        sockets = re.search(r"socket|\bTCP\b|\bENA\b", f"{remarks} {network}", re.IGNORECASE)
        return Transport.SOCKETS if sockets and not plugin else Transport.PLUGIN
    if _VERBS.search(network):
        return Transport.RDMA
    gbit = _gbit(network)
    if _over_ip(network, gbit):
        return Transport.SOCKETS
    return Transport.RDMA if gbit >= _VERBS_GBIT else Transport.UNKNOWN
