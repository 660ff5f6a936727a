"""``nvidia-smi mig -lgi`` (GPU instances) and ``-lci`` (compute instances)."""

import re

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import Line, Source

TOOL = "nvidia-smi mig"

_TITLE = re.compile(r"\s*\|\s*(GPU|Compute) instances:\s*\|\s*$")
_RULE = re.compile(r"\s*\+-+\+\s*$")
_HEAD = re.compile(r"\s*\|=+\|\s*$")
_GPU_ROW = re.compile(r"\s*\|\s+(\d{1,4})\s+MIG\s+(\S+)\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,3}):(\d{1,3})\s+\|\s*$")
_COMPUTE_ROW = re.compile(
    r"\s*\|\s+(\d{1,4})\s+(\d{1,4})\s+MIG\s+(\S+)\s+(\d{1,4})\*?\s+(\d{1,4})\s+(\d{1,3}):(\d{1,3})\s+\|\s*$"
)


def recognises(source: Source) -> bool:
    return source.has(_TITLE)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    lines = source.lines
    start = next(n for n, line in enumerate(lines) if _TITLE.match(line.text))
    title = _TITLE.match(lines[start].text)
    is_gpu = bool(title and title[1] == "GPU")
    at = next((n for n in range(start, len(lines)) if _HEAD.match(lines[n].text)), None)
    if at is None:
        raise lines[start].error("the table has no head: the output is cut")
    result: dict[int, list[tuple[str, str, range]]] = {}
    closed = False
    for line in lines[at + 1 :]:
        if _RULE.match(line.text):
            if closed:
                raise line.error("a row is missing between two rules")
            closed = True
        elif line.text.lstrip().startswith("|"):
            if not closed and result:
                raise line.error("a rule is missing between two rows")
            _add(line, is_gpu, result)
            closed = False
        elif line:
            break
    if not closed or not result:
        raise lines[-1].error("the table is not closed: the output is cut")
    if sum(1 for line in lines if _TITLE.match(line.text)) > 1:
        raise lines[start].error("several tables; give the output of one call")
    gpus = tuple(
        [
            TopologyGpu(index, partition="MIG", instances=tuple(name for name, _, _ in rows))
            for index, rows in sorted(result.items())
        ]
    )
    return NodeTopology("", gpus, tool=TOOL, vendor="nvidia")


def _add(line: Line, is_gpu: bool, result: dict[int, list[tuple[str, str, range]]]) -> None:
    match = (_GPU_ROW if is_gpu else _COMPUTE_ROW).match(line.text)
    if match is None:
        raise line.error("this is no row of the table")
    gpu, start, size = int(match[1]), int(match[match.re.groups - 1]), int(match[match.re.groups])
    name, instance = (match[2], match[4]) if is_gpu else (match[3], f"{match[2]}/{match[5]}")
    rows = result.setdefault(gpu, [])
    slices = range(start, start + size)
    overlaps = is_gpu and any(set(slices) & set(other) for _, _, other in rows)
    if any(instance == other_instance for _, other_instance, _ in rows) or overlaps:
        raise line.error(f"instance {instance} of GPU {gpu} stands twice, or in the place of another")
    rows.append((name, instance, slices))


PARSER = TextParser((TOOL,), recognises, parse)
