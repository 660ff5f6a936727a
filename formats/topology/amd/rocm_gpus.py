"""``rocm-smi`` as text: its table of all GPUs, and lines ``GPU[0] : VRAM Total Memory (B): …`` of its other answers.

Several answers in one file are read together; what they say of a GPU must agree.
"""

import re

from kopt.core.topology import NodeTopology, TopologyGpu
from kopt.core.units import Bytes
from kopt.formats.gpu_metrics import rocm_smi
from kopt.formats.gpu_metrics.samples import MetricsError
from kopt.formats.topology.documents import Document
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
_WANTED = {"VRAM Total Memory (B)": "memory", "PCI Bus": "pci", "Card series": "name", "Card Series": "name",
           "Unique ID": "uuid", "Compute Partition": "compute", "Memory Partition": "nps"}  # fmt: skip


def recognises(source: Source) -> bool:
    return source.has(_BEGIN) or source.has(_END)


def recognises_json(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and any(re.fullmatch(r"card\d{1,3}", str(key)) for key in value)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    begins, ends = (sum(1 for _ in source.matching(mark)) for mark in (_BEGIN, _END))
    if begins > ends or not ends:
        raise FormatError("the line 'End of ROCm SMI Log' is missing: the output is cut", len(source.lines))
    facts: dict[int, dict[str, str]] = {}
    for line, found in source.matching(_FACT):
        gpu = facts.setdefault(int(found[1]), {})
        name = _WANTED.get(found[2])
        if name and gpu.setdefault(name, found[3]) != found[3]:
            raise line.error(f"{found[2]} of GPU {found[1]} is {found[3][:60]!r}, but was {gpu[name][:60]!r} above")
    rows = _rows(source)
    if facts and rows and set(facts) != set(rows):
        raise FormatError(f"GPU {min(set(facts) ^ set(rows))} is in only one of the table and the lines")
    indexes = sorted(facts or rows)
    if not indexes:
        raise FormatError("no GPU in it; did rocm-smi find one?")
    indexes_follow(indexes, 0)
    for index in facts:
        if missing := set(facts[index]) ^ set(facts[indexes[0]]):
            raise FormatError(f"GPU {index} and GPU {indexes[0]} differ in {min(missing)}: a line is missing")
    gpus = tuple([_gpu(index, facts.get(index, {}), rows.get(index, "")) for index in indexes])
    return NodeTopology("", gpus, tool=TOOL, vendor="amd")


def parse_json(document: Document) -> NodeTopology:
    """``rocm-smi --json`` with the memory of each card. Raises FormatError."""
    import json

    try:
        samples, _ = rocm_smi.parse(json.dumps(document.value))
    except MetricsError as error:
        raise document.error(str(error)) from error
    gpus = tuple([TopologyGpu(int(one.gpu), one.name, memory_bytes=one.total_bytes or Bytes(0)) for one in samples])
    indexes_follow([gpu.index for gpu in gpus], document.line)
    return NodeTopology("", gpus, tool=f"{TOOL} --json", vendor="amd")


def _rows(source: Source) -> dict[int, str]:
    """Rows of the table of all GPUs by their number, with the partition that they tell."""
    found: dict[int, str] = {}
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
            width = width if count else len(line.words())
            count += 1
            lacks = len(line.words()) != width or ("Partitions" in head.text and not partition)
            if row is None or lacks or found.setdefault(int(row[1]), text) != text:
                raise line.error("this is no row of a GPU, or contradicts another one")
    if head is not None:
        raise head.error("the table below is not closed: the output is cut")
    if not found and source.has(_CONCISE):
        raise FormatError("the head of the table of all GPUs is missing")
    return found


def _gpu(index: int, facts: dict[str, str], partition: str) -> TopologyGpu:
    parts = [facts[name] for name in ("compute", "nps") if facts.get(name, "N/A") != "N/A"]
    memory = amount_of(number_of(facts["memory"], f"VRAM of GPU {index}"), "B") if "memory" in facts else Bytes(0)
    return TopologyGpu(
        index, facts.get("name", ""), pci_address(facts["pci"]) if "pci" in facts else "", None, memory,
        "/".join(parts) or partition, facts.get("uuid", ""),
    )  # fmt: skip
