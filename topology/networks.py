"""Networks between nodes and the software that uses them, as tables and people describe them in words."""

import re
from functools import lru_cache

from kopt.core.hardware.bandwidth import Software, Transport
from kopt.topology.graph import Network

GBIT = 1 / 8
NIC_GUESS_GBPS = 25.0
"""A card of 200 Gbit/s where nothing says more."""
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
