"""``rocm-smi`` as text: its table of all GPUs, and lines ``GPU[0] : VRAM Total Memory (B): …`` of its other answers.

Several answers in one file are read together; what they say of a GPU must agree.
"""

import re

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.core.units import Bytes
from kopt.formats.gpu_metrics import rocm_smi
from kopt.formats.gpu_metrics.samples import MetricsError
from kopt.formats.topology.documents import Document
from kopt.formats.topology.parser import JsonParser, TextParser
from kopt.formats.topology.text import FormatError, Line, Source
from kopt.formats.topology.values import amount_of, indexes_follow, number_of, pci_address

TOOL = "rocm-smi"

_BEGIN = re.compile(r"\s*=+\s*ROCm System Management Interface\s*=+\s*$")
_END = re.compile(r"\s*=+\s*End of ROCm SMI Log\s*=+\s*$")
_FACT = re.compile(r"\s*GPU\s?\[?(\d{1,4})\]?\s*:\s*(\S[^:]*?)\s*:\s*(.*?)\s*$")
_HEAD = re.compile(r"\s*(?:Device\s+(?:\[Model\s*:\s*Revision\]\s+|Node\s+)|GPU\s+Temp)")
_CONCISE = re.compile(r"\s*=+\s*Concise (?:Info|Hardware Info)\s*=+\s*$")
_RULE = re.compile(r"\s*=+\s*$")
_ROW = re.compile(r"\s*(\d{1,4})\s+\S")
_PARTITION = re.compile(r"\b(NPS\d),\s*([A-Z]{2,4}),\s*\d+")
_WANTED = {
    "VRAM Total Memory (B)": "memory",
    "PCI Bus": "pci",
    "Card series": "name",
    "Card Series": "name",
    "Unique ID": "uuid",
    "Compute Partition": "compute",
    "Memory Partition": "nps",
}


def recognises(source: Source) -> bool:
    return source.has(_BEGIN) or source.has(_END)


def recognises_json(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and any(re.fullmatch(r"card\d{1,3}", str(key)) for key in value)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    begins, ends = (sum(1 for _ in source.matching(pattern)) for pattern in (_BEGIN, _END))
    if begins > ends or not ends:
        raise FormatError("the line 'End of ROCm SMI Log' is missing: the output is cut", len(source.lines))
    properties: dict[int, dict[str, str]] = {}
    for line, match in source.matching(_FACT):
        gpu = properties.setdefault(int(match[1]), {})
        name = _WANTED.get(match[2])
        if name and gpu.setdefault(name, match[3]) != match[3]:
            raise line.error(f"{match[2]} of GPU {match[1]} is {match[3][:60]!r}, but was {gpu[name][:60]!r} above")
    rows = _rows(source)
    if properties and rows and set(properties) != set(rows):
        raise FormatError(f"GPU {min(set(properties) ^ set(rows))} is in only one of the table and the lines")
    indexes = sorted(properties or rows)
    if not indexes:
        raise FormatError("no GPU in it; did rocm-smi find one?")
    indexes_follow(indexes, 0)
    for index in properties:
        if missing := set(properties[index]) ^ set(properties[indexes[0]]):
            raise FormatError(f"GPU {index} and GPU {indexes[0]} differ in {min(missing)}: a line is missing")
    gpus = tuple([_gpu(index, properties.get(index, {}), rows.get(index, "")) for index in indexes])
    return NodeTopology("", gpus, tool=TOOL, vendor="amd")


def parse_json(document: Document) -> NodeTopology:
    """``rocm-smi --json`` with the memory of each card. Raises FormatError."""
    import json

    try:
        samples, _ = rocm_smi.parse(json.dumps(document.value))
    except MetricsError as error:
        raise document.error(str(error)) from error
    gpus = tuple(
        [TopologyGpu(int(sample.gpu), sample.name, memory_bytes=sample.total_bytes or Bytes(0)) for sample in samples]
    )
    indexes_follow([gpu.index for gpu in gpus], document.line)
    return NodeTopology("", gpus, tool=f"{TOOL} --json", vendor="amd")


def _rows(source: Source) -> dict[int, str]:
    """Rows of the table of all GPUs by their number, with the partition that they tell."""
    rows: dict[int, str] = {}
    inside = False
    head: Line | None = None
    width, count = 0, 0
    for line in source.lines:
        if _CONCISE.match(line.text) or _HEAD.match(line.text):
            if head is not None and inside:
                raise line.error("the table above is not closed")
            head = line if _HEAD.match(line.text) else head
            inside, count = False, 0
        elif _RULE.match(line.text) and head:
            if inside and not count:
                raise line.error("the table has no row")
            inside, head = not inside, head if not inside else None
        elif inside and line and head:
            row = _ROW.match(line.text)
            partition = _PARTITION.search(line.text)
            text = f"{partition[2]}/{partition[1]}" if partition else ""
            width = width if count else len(line.tokens())
            count += 1
            lacks = len(line.tokens()) != width or ("Partitions" in head.text and not partition)
            if row is None or lacks or rows.setdefault(int(row[1]), text) != text:
                raise line.error("this is no row of a GPU, or contradicts another one")
    if head is not None:
        raise head.error("the table below is not closed: the output is cut")
    if not rows and source.has(_CONCISE):
        raise FormatError("the head of the table of all GPUs is missing")
    return rows


def _gpu(index: int, properties: dict[str, str], partition: str) -> TopologyGpu:
    parts = [properties[name] for name in ("compute", "nps") if properties.get(name, "N/A") != "N/A"]
    memory = (
        amount_of(number_of(properties["memory"], f"VRAM of GPU {index}"), "B") if "memory" in properties else Bytes(0)
    )
    return TopologyGpu(
        index,
        properties.get("name", ""),
        pci_address(properties["pci"]) if "pci" in properties else "",
        None,
        memory,
        "/".join(parts) or partition,
        properties.get("uuid", ""),
    )


PARSER = TextParser((TOOL,), recognises, parse, is_expected=True)
JSON_PARSER = JsonParser((f"{TOOL} --json",), recognises_json, parse_json)
