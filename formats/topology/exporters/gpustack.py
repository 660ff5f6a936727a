"""``gpustack-runtime detect`` and ``topology`` as JSON.

Source: gpustack-runtime's ``detector/__types__.py``: distances are 0 (the device itself, also two MIG devices on one
GPU), 5 (a direct link), 10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS, 100 unknown. A direct link is NVLink, XGMI or
MetaXLink on the GPUs of the makers that have them; of other makers it is not known what it is.
"""

from collections.abc import Mapping
from typing import Any

from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.formats.topology.documents import Document, text_of, whole
from kopt.formats.topology.parser import JsonParser
from kopt.formats.topology.values import amount_of, pci_address

TOOL = "gpustack-runtime"

_WAYS = {10: LinkType.PIX, 20: LinkType.PXB, 30: LinkType.PHB, 40: LinkType.NODE, 50: LinkType.SYS}
_DIRECT = {"nvidia": LinkType.NVLINK, "amd": LinkType.XGMI, "hygon": LinkType.XGMI, "metax": LinkType.METAXLINK}
_DISTANCES = {0, 5, 100, *_WAYS}


def recognises(document: Document) -> bool:
    value = document.value
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and "manufacturer" in item for item in value)
    )


def parse(document: Document) -> NodeTopology:
    """Raises FormatError."""
    entries: list[dict[str, Any]] = document.value
    if not all(isinstance(entry["manufacturer"], str) and entry["manufacturer"] for entry in entries):
        raise document.error("a GPU has no manufacturer")
    if all("devices_distances" in entry for entry in entries):
        if len(entries) != 1:
            raise document.error("GPUs of several makers; give one at a time")
        return _topology(document, entries[0])
    if any("devices_distances" in entry for entry in entries):
        raise document.error("detected GPUs are mixed with a topology")
    gpus = tuple([_gpu(document, entry) for entry in entries])
    vendors = {str(entry["manufacturer"]) for entry in entries}
    indexes = [gpu.index for gpu in gpus]
    if len(set(indexes)) != len(indexes) or (len(indexes) > 1 and sorted(indexes) != list(range(len(indexes)))):
        raise document.error(f"the GPUs are numbered {indexes[:32]}: one is missing or stands twice")
    return NodeTopology("", gpus, tool=f"{TOOL} detect", vendor="/".join(sorted(vendors)))


def _gpu(document: Document, item: Mapping[str, Any]) -> TopologyGpu:
    index = whole(item.get("index"), "the index of a GPU", document.line, 4095)
    if index is None:
        raise document.error("a GPU has no index")
    appendix = item.get("appendix")
    appendix = appendix if isinstance(appendix, dict) else {}
    devices = appendix.get("mig_devices") or []
    if not isinstance(devices, list) or not all(isinstance(part, dict) for part in devices):
        raise document.error(f"the MIG devices of GPU {index} are no list")
    memory = whole(item.get("memory"), f"the memory of GPU {index}", document.line)
    bus = text_of(appendix.get("bdf"))
    return TopologyGpu(
        index,
        text_of(item.get("name")),
        pci_address(bus, document.line) if bus else "",
        _node(appendix.get("numa")),
        amount_of(memory or 0, "MiB", document.line),
        "MIG" if appendix.get("mig") else "",
        text_of(item.get("uuid")),
        tuple([text_of(part.get("name")) for part in devices]),
    )


def _node(value: Any) -> int | None:
    """A single NUMA node; a range of them says nothing."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None


def _topology(document: Document, item: Mapping[str, Any]) -> NodeTopology:
    matrix, vendor = item["devices_distances"], str(item["manufacturer"])
    count = _square(document, matrix)
    numa = item.get("devices_numa_affinities")
    for name in ("devices_cpu_affinities", "devices_numa_affinities", "appendices"):
        value = item.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise document.error(f"{name} does not have an entry for each of the {count} GPUs")
    links, warnings = [], []
    for a in range(count):
        for b in range(a + 1, count):
            kind = _DIRECT.get(vendor) if matrix[a][b] == 5 else _WAYS.get(matrix[a][b])
            if kind is None:
                warnings.append(_unknown(a, b, matrix[a][b], vendor))
            else:
                links.append(TopologyLink(a, b, kind))
    ports = [_ports(document, extra) for extra in item["appendices"]]
    gpus = tuple(
        [TopologyGpu(n, numa=_node(numa[n] if isinstance(numa, list) else None), ports=ports[n]) for n in range(count)]
    )
    return NodeTopology("", gpus, tuple(links), tool=f"{TOOL} topology", vendor=vendor, warnings=tuple(warnings))


def _square(document: Document, matrix: Any) -> int:
    if not isinstance(matrix, list) or not matrix or not all(isinstance(row, list) for row in matrix):
        raise document.error("devices_distances is no table")
    count = len(matrix)
    for a, row in enumerate(matrix):
        if len(row) != count:
            raise document.error(f"row {a} of devices_distances has {len(row)} of {count} entries")
        for b, value in enumerate(row):
            if isinstance(value, bool) or not isinstance(value, int) or value not in _DISTANCES:
                raise document.error(f"the distance {str(value)[:40]!r} from {a} to {b} is unknown")
            if (a == b and value != 0) or (b < a and value != matrix[b][a]):
                raise document.error(f"the distance from {a} to {b} is {value}, but {matrix[b][a]} back")
    return count


def _unknown(a: int, b: int, distance: int, vendor: str) -> str:
    if distance == 0:
        return f"{a} and {b} are parts of one GPU"
    return f"what links {a} and {b} is unknown" + (f": a direct link of {vendor}" if distance == 5 else "")


def _ports(document: Document, extra: Any) -> int | None:
    value = extra.get("links_active_count") if isinstance(extra, dict) else None
    return whole(value, "links_active_count", document.line, 256)


PARSER = JsonParser((TOOL,), recognises, parse)
