"""``nvidia-smi --query-gpu=… --format=csv``: index, name, address and memory of each GPU.

Also with ``nounits``; the header must be there. Of samples over time (``-l``) the GPUs must stay the same.
"""

import csv
import re
from collections.abc import Mapping, Sequence

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import amount, indexes_follow, is_absent, pci_address

TOOL = "nvidia-smi --query-gpu"

_HEADING = re.compile(r"([a-zA-Z][\w.]*)(?:\s*\[([A-Za-z%/]+)\])?")
_NAMES = {"index", "name", "gpu_name", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"}
_TELLING = {*_NAMES, "memory.total", "memory.used", "timestamp", "driver_version", "count"}


def recognises(source: Source) -> bool:
    return _start(source) is not None


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    start = _start(source) or 0
    header = source.lines[start]
    names, units = _header(header)
    rows: list[tuple[Line, dict[str, str]]] = []
    for line in source.lines[start + 1 :]:
        cells = _cells(line) if line else []
        if not line or (rows and len(cells) < min(2, len(names))):
            continue
        if len(cells) != len(names):
            raise line.error(f"{len(cells)} cells where the header has {len(names)}")
        unbroken(line, "the last row")
        rows.append((line, dict(zip(names, cells, strict=True))))
    if not rows:
        raise header.error("there is no row below the header")
    gpus: dict[tuple[str, ...], TopologyGpu] = {}
    for line, row in rows:
        gpu = _gpu(line, row, units, len(gpus))
        key = (str(row.get("index", "")), gpu.uuid, gpu.pci)
        if not any(key):
            raise line.error("a row names neither index, uuid nor pci.bus_id of its GPU")
        if "timestamp" not in names and key in gpus:
            raise line.error("a GPU stands twice")
        gpus.setdefault(key, gpu)
    topology_gpus = sorted(gpus.values(), key=lambda gpu: gpu.index)
    _check(rows, topology_gpus, header.number)
    return NodeTopology("", tuple(topology_gpus), tool=TOOL, vendor="nvidia")


def _start(source: Source) -> int | None:
    for n, line in enumerate(source.lines):
        if "," in line.text or line.text.strip() in _NAMES:
            cells = [_HEADING.fullmatch(cell.strip()) for cell in line.text.split(",")]
            if all(cells) and sum(1 for cell in cells if cell and cell[1] in _TELLING) >= min(2, len(cells)):
                return n
    return None


def _header(line: Line) -> tuple[Sequence[str], Mapping[str, str]]:
    aliases = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}
    result = [_HEADING.fullmatch(cell.strip()) for cell in line.text.split(",")]
    pairs = [(aliases.get(match[1], match[1]), match[2] or "") for match in result if match]
    if len({name for name, _ in pairs}) != len(pairs):
        raise line.error("the header names a column twice")
    return [name for name, _ in pairs], dict(pairs)


def _cells(line: Line) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.text], skipinitialspace=True, strict=True))]
    except (csv.Error, StopIteration) as error:
        raise line.error(f"not CSV ({error})") from error


def _gpu(line: Line, row: Mapping[str, str], units: Mapping[str, str], count: int) -> TopologyGpu:
    index = row.get("index", "")
    if index and not re.fullmatch(r"\d{1,4}", index, re.ASCII):
        raise line.error(f"{index[:60]!r} is no number of a GPU")
    bus, memory = row.get("pci.bus_id", ""), row.get("memory.total", "")
    unit = units.get("memory.total", "") or "MiB"
    has_unit = memory.endswith("B")
    return TopologyGpu(
        int(index) if index else count,
        "" if is_absent(row.get("name", "")) else row.get("name", ""),
        "" if is_absent(bus) else pci_address(bus, line.number),
        memory_bytes=amount(memory, line.number, "" if has_unit else unit),
        partition="MIG" if row.get("mig.mode.current") == "Enabled" else "",
        uuid=_uuid(line, row.get("uuid", "")),
    )


def _uuid(line: Line, text: str) -> str:
    if is_absent(text) or not text.removeprefix("GPU-").strip("0-"):
        return ""
    if not re.fullmatch(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        raise line.error(f"{text[:60]!r} is no UUID of a GPU")
    return text


def _check(rows: Sequence[tuple[Line, dict[str, str]]], gpus: Sequence[TopologyGpu], line: int) -> None:
    for what in ("uuid", "pci"):
        values = [getattr(gpu, what) for gpu in gpus if getattr(gpu, what)]
        if len(set(values)) != len(values):
            raise FormatError(f"two GPUs have one {what}", line)
    indexes_follow([gpu.index for gpu in gpus], line)
    counts = {row["count"] for _, row in rows if "count" in row}
    if counts and counts != {str(len(gpus))}:
        raise FormatError(f"the tool counts {' or '.join(sorted(counts))[:40]} GPUs, but {len(gpus)} are listed", line)
    row_keys = [row.get("index", "") or row.get("uuid", "") or row.get("pci.bus_id", "") for _, row in rows]
    times = {row_keys.count(name) for name in set(row_keys)}
    if len(times) > 1:
        raise FormatError("not every GPU was sampled equally often: rows are missing", line)


PARSER = TextParser((TOOL,), recognises, parse)
