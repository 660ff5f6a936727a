"""``amd-smi list``, ``static``, ``metric`` and ``partition``, as text and as JSON: what they say of each GPU.

As text a GPU is a block of indented ``KEY: value`` lines. Blocks and objects of one output have the same entries; where
one lacks an entry that the others have, the output is damaged.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.core.units import Bytes
from kopt.formats.topology.documents import Document
from kopt.formats.topology.parser import JsonParser, TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import amount, indexes_follow, is_absent, pci_address

TOOL = "amd-smi"

_BLOCK = re.compile(r"(\s*)GPU:\s*(\d{1,4})\s*$")
_ENTRY = re.compile(r"(\s+)([A-Z][A-Z0-9_]*):(?:\s+(.*?))?\s*$")
_EXCERPT = re.compile(r"\s*(?:\.\.\.|\[\.\.\.\]|…|\[?output truncated\]?)\s*$", re.IGNORECASE)
_SET = re.compile(r"Successfully set|Failed to set", re.IGNORECASE)
_CURRENT = re.compile(r"\s*CURRENT_PARTITION:\s*$")
_CURRENT_HEAD = re.compile(r"\s*GPU_ID\s+MEMORY\s+ACCELERATOR_TYPE\s+ACCELERATOR_PROFILE_INDEX\s+PARTITION_ID\s*$")
_CURRENT_ROW = re.compile(r"\s*(\d{1,4})\s+(NPS\d|N/A)\s+([A-Z]{2,4}|N/A)\s+(\d{1,3}|N/A)\s+([\d,]+|N/A)\s*$")
_PATHS = {
    "bdf": ("bdf", "bus/bdf"),
    "uuid": ("uuid",),
    "name": ("asic/market_name", "board/product_name"),
    "numa": ("numa/node",),
    "memory": ("vram/size", "mem_usage/total_vram"),
    "compute": ("partition/accelerator_partition", "partition/compute_partition"),
    "nps": ("partition/memory_partition",),
}


@dataclass
class _Gpu:
    index: int
    line: int
    properties: dict[str, str]


def recognises(source: Source) -> bool:
    return source.has(_BLOCK) or source.has(_CURRENT)


def recognises_json(document: Document) -> bool:
    entries = _entries(document)
    return bool(entries) and all(isinstance(entry, dict) and "gpu" in entry for entry in entries)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    if source.has(_CURRENT):
        return _current(source)
    gpus: list[_Gpu] = []
    path: list[tuple[int, str]] = []
    warnings: list[str] = []
    indent, last = 0, source.lines[0]
    for line in source.lines:
        if block := _BLOCK.match(line.text):
            gpus.append(_Gpu(int(block[2]), line.number, {}))
            indent, path, last = len(block[1]), [], line
        elif gpus and (entry := _ENTRY.match(line.text)) and len(entry[1]) > indent:
            _add(line, entry, path, gpus[-1].properties)
            last = line
        elif _EXCERPT.match(line.text):
            warnings.append(f"an excerpt: line {line.number} says that something was left out")
        elif gpus and re.match(r"\s*GPU\s*:", line.text):
            raise line.error("this is no number of a GPU")
    unbroken(last, "the last line of a GPU")
    return _node(gpus, warnings, TOOL)


def _add(line: Line, entry: "re.Match[str]", path: list[tuple[int, str]], properties: dict[str, str]) -> None:
    indent, key, value = len(entry[1].expandtabs()), entry[2].lower(), entry[3]
    while path and path[-1][0] >= indent:
        path.pop()
    name = "/".join([part for _, part in path] + [key])
    if not value:
        path.append((indent, key))
        return
    if name in properties:
        raise line.error(f"{entry[2]} stands twice in the block of one GPU")
    properties[name] = value


def parse_json(document: Document) -> NodeTopology:
    """Raises FormatError."""
    gpus = []
    for entry in _entries(document):
        index = entry.get("gpu")
        if (
            isinstance(index, bool)
            or not isinstance(index, int | str)
            or not str(index).isdigit()
            or len(str(index)) > 4
        ):
            raise document.error(f"{str(index)[:40]!r} is no number of a GPU")
        gpus.append(_Gpu(int(index), document.line, dict(_flat(entry))))
    return _node(gpus, [], f"{TOOL} --json")


def _entries(document: Document) -> list[Any]:
    value = document.value
    if isinstance(value, dict):
        value = value.get("gpu_data", value.get("current_partition"))
    return value if isinstance(value, list) else []


def _flat(value: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{above}{key}".lower()
        if isinstance(item, dict) and {"value", "unit"} >= set(item) and "value" in item:
            result.append((name, f"{item['value']} {item.get('unit', '')}".strip()))
        elif isinstance(item, dict) and above.count("/") < 8:
            result += _flat(item, f"{name}/")
        elif isinstance(item, str | int | float):
            result.append((name, str(item)))
    return result


def _node(gpus: list[_Gpu], warnings: list[str], tool: str) -> NodeTopology:
    if not gpus:
        raise FormatError("no GPU is described")
    indexes_follow([gpu.index for gpu in gpus], gpus[0].line)
    fields_of = {
        gpu.index: {name for name, paths in _PATHS.items() if any(path in gpu.properties for path in paths)}
        for gpu in gpus
    }
    excerpt = bool(warnings)
    for gpu in gpus:
        missing = fields_of[gpus[0].index] ^ fields_of[gpu.index]
        if missing and not (excerpt and gpu is gpus[-1]):
            raise FormatError(
                f"GPU {gpu.index} and GPU {gpus[0].index} differ in {min(missing)}: something is missing", gpu.line
            )
        if not gpu.properties:
            raise FormatError(f"nothing is said of GPU {gpu.index}", gpu.line)
    if any(_SET.search(value) for gpu in gpus for value in gpu.properties.values()):
        warnings.append(
            "the answer to a command that sets partitions: ask amd-smi static --partition for how they are now"
        )
    topology_gpus = tuple([_core(gpu) for gpu in gpus])
    addresses = [gpu.pci for gpu in topology_gpus if gpu.pci]
    if len(set(addresses)) != len(addresses):
        raise FormatError("two GPUs have one address")
    return NodeTopology("", topology_gpus, tool=tool, vendor="amd", warnings=tuple(warnings))


def _core(gpu: _Gpu) -> TopologyGpu:
    def fact(name: str) -> str:
        text = next((gpu.properties[path] for path in _PATHS[name] if path in gpu.properties), "")
        return "" if is_absent(text) else text

    numa = fact("numa")
    if numa and not re.fullmatch(r"-1|\d{1,4}", numa, re.ASCII):
        raise FormatError(f"{numa[:40]!r} is no NUMA node of GPU {gpu.index}", gpu.line)
    memory = fact("memory")
    return TopologyGpu(
        gpu.index,
        fact("name"),
        pci_address(fact("bdf"), gpu.line) if fact("bdf") else "",
        int(numa) if numa not in ("", "-1") else None,
        amount(memory, gpu.line, "MB" if memory.isdigit() else "") if memory else Bytes(0),
        "/".join(part for part in (fact("compute"), fact("nps")) if part),
        fact("uuid"),
    )


def _current(source: Source) -> NodeTopology:
    """The first table of ``amd-smi partition``."""
    lines = source.lines
    at = next(n for n, line in enumerate(lines) if _CURRENT.match(line.text))
    at += 1
    if at >= len(lines) or not _CURRENT_HEAD.match(lines[at].text):
        raise lines[at - 1].error("the head of the table CURRENT_PARTITION is expected below")
    gpus = []
    for line in lines[at + 1 :]:
        if not line:
            break
        row = _CURRENT_ROW.match(line.text)
        if row is None:
            raise line.error("this is no row of the table CURRENT_PARTITION")
        unbroken(line, "the last row of the table")
        parts = [part for part in (row[3], row[2]) if part != "N/A"]
        gpus.append(TopologyGpu(int(row[1]), partition="/".join(parts)))
    if not gpus:
        raise lines[at].error("the table CURRENT_PARTITION has no row")
    indexes_follow([gpu.index for gpu in gpus], lines[at].number)
    return NodeTopology("", tuple(gpus), tool=f"{TOOL} partition", vendor="amd")


PARSER = TextParser((TOOL,), recognises, parse)
JSON_PARSER = JsonParser((f"{TOOL} --json",), recognises_json, parse_json)
