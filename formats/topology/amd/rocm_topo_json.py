"""``rocm-smi --showtopo --json``: under ``system`` one entry per pair and part, under ``cardN`` its NUMA node.

Source: ``formatMatrixToJSON`` of rocm_smi_lib's ``python_smi_tools/rocm_smi.py``, which prints the upper half only.
"""

import re
from typing import Any

from kopt.core.hardware.node_topology import LinkType, NodeTopology, PeerAccess, TopologyGpu, TopologyLink
from kopt.formats.topology.amd.rocm_topo import TYPES, UNKNOWN
from kopt.formats.topology.documents import Document, whole
from kopt.formats.topology.parser import JsonParser

TOOL = "rocm-smi --showtopo --json"

_PAIR = re.compile(
    r"\(Topology\) (Weight|Hops|Link type|Link accessibility) between DRM devices (\d{1,4}) and (\d{1,4})",
    re.IGNORECASE,
)
_CARD = re.compile(r"card(\d{1,4})")
_PARTS = ("weight", "hops", "link type")


def recognises(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and any(
        isinstance(part, dict) and any(str(key).startswith("(Topology)") for key in part) for part in value.values()
    )


def parse(document: Document) -> NodeTopology:
    """Raises FormatError."""
    parts = _parts(document)
    numa = _numa(document)
    indexes = sorted({index for pairs in parts.values() for pair in pairs for index in pair} or set(numa))
    if numa and len(indexes) > 1 and sorted(numa) != indexes:
        odd = min(set(numa) ^ set(indexes))
        raise document.error(f"GPU {odd} is in only one of the pairs and the cards")
    indexes = sorted(numa) if len(indexes) <= 1 and numa else indexes
    wanted = {(a, b) for a in indexes for b in indexes if a < b}
    for name, pairs in parts.items():
        if missing := sorted(wanted - set(pairs)):
            raise document.error(f"the {name} between {missing[0][0]} and {missing[0][1]} is missing")
    present = [name for name in _PARTS if name in parts]
    if (len(present) > 1 and (len(present) < len(_PARTS) or not numa)) or (
        not present and len(indexes) > 1 and not parts
    ):
        part = next((name for name in _PARTS if name not in parts), "NUMA node")
        raise document.error(f"the {part} is missing, which belongs to --showtopo")
    types = {pair: _type(value, pair, document) for pair, value in parts.get("link type", {}).items()}
    links = tuple(
        [
            TopologyLink(*pair, kind, None, *(_number(parts, name, pair, document) for name in ("weight", "hops")))
            for pair, kind in sorted(types.items())
            if kind is not None
        ]
    )
    warnings = tuple(
        f"what links GPU {a} and GPU {b} is unknown to the tool" for (a, b), kind in types.items() if kind is None
    )
    peers = tuple(
        [
            PeerAccess(*pair, "ENABLED" if _truth(value, document) else "DISABLED")
            for pair, value in parts.get("link accessibility", {}).items()
        ]
    )
    gpus = tuple([TopologyGpu(index, numa=numa.get(index)) for index in indexes])
    return NodeTopology("", gpus, links, tool=TOOL, vendor="amd", warnings=warnings, peers=peers)


def _parts(document: Document) -> dict[str, dict[tuple[int, int], Any]]:
    parts: dict[str, dict[tuple[int, int], Any]] = {}
    system = document.value.get("system", {})
    if not isinstance(system, dict):
        raise document.error("'system' is no object")
    for key, value in system.items():
        match = _PAIR.fullmatch(key)
        if match is None:
            if key.startswith("(Topology)"):
                raise document.error(f"{key[:80]!r} is unknown")
            continue
        a, b = sorted((int(match[2]), int(match[3])))
        pairs = parts.setdefault(match[1].lower(), {})
        if a == b or pairs.get((a, b), value) != value:
            raise document.error(f"{key[:80]!r} contradicts another entry or names one GPU twice")
        pairs[a, b] = value
    return parts


def _numa(document: Document) -> dict[int, int | None]:
    result: dict[int, int | None] = {}
    for key, card in document.value.items():
        match = _CARD.fullmatch(key)
        if match is None:
            continue
        if not isinstance(card, dict) or not any(str(name).startswith("(Topology)") for name in card):
            raise document.error(f"{key} does not say where it is")
        node = card.get("(Topology) Numa Node", card.get("(Topology) Numa Affinity"))
        number = None if str(node) == "4294967295" else whole(node, f"the NUMA node of {key}", document.line, 4095)
        if int(match[1]) in result:
            raise document.error(f"{key} stands twice")
        result[int(match[1])] = number
    return result


def _type(value: Any, pair: tuple[int, int], document: Document) -> LinkType | None:
    if not isinstance(value, str) or (value not in TYPES and value not in UNKNOWN):
        raise document.error(f"the link type between {pair[0]} and {pair[1]} is {str(value)[:60]!r}")
    return TYPES.get(value)


def _number(
    parts: dict[str, dict[tuple[int, int], Any]], name: str, pair: tuple[int, int], document: Document
) -> int | None:
    value = parts.get(name, {}).get(pair)
    return whole(value, f"the {name} between {pair[0]} and {pair[1]}", document.line)


def _truth(value: Any, document: Document) -> bool:
    if str(value) not in ("True", "False"):
        raise document.error(f"link accessibility is {str(value)[:60]!r}, neither True nor False")
    return str(value) == "True"


PARSER = JsonParser((TOOL,), recognises, parse)
