"""``nvidia-smi`` without arguments: three lines per GPU in a box."""

import re

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import Line, Source
from kopt.formats.topology.values import amount, indexes_follow, pci_address

TOOL = "nvidia-smi"

_VERSION = re.compile(r"\s*\|\s*NVIDIA-SMI\s+\S+.*\|\s*$")
_HEAD = re.compile(r"\s*\|=+[+|]=+[+|]=+\|\s*$")
_RULE = re.compile(r"\s*\+-+\+-+\+-+\+\s*$")
_FIRST = re.compile(
    r"\s*\|\s+(\d{1,4})\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*\|\s+([0-9A-Fa-f:.]{7,16})\s+(?:On|Off|N/A)\s*\|.*\|\s*$"
)
_SECOND = re.compile(r"\s*\|[^|]*\|\s*(?:(\d{1,9}MiB)\s*/\s*(\d{1,9}MiB)|Not Supported|N/A|Unknown Error)\s*\|.*\|\s*$")
_THIRD = re.compile(r"\s*\|[^|]*\|[^|]*\|\s*(N/A|Enabled\*?|Disabled\*?|ERR!)?\s*\|\s*$")


def recognises(source: Source) -> bool:
    return source.has(_VERSION) and source.has(_HEAD)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    heads = [n for n, line in enumerate(source.lines) if _HEAD.match(line.text)]
    versions = [line for line, _ in source.matching(_VERSION)]
    if len(versions) > 1:
        raise versions[1].error("a second output begins here; give the output of one call")
    rows: list[list[Line]] = [[]]
    closed = False
    for line in source.lines[heads[0] + 1 :]:
        if _RULE.match(line.text):
            closed = True
            rows.append([])
        elif line.text.lstrip().startswith("|"):
            if closed and len(rows) < 2:
                break
            closed = False
            rows[-1].append(line)
        else:
            break
    if not closed or not rows[0]:
        raise source.lines[heads[0]].error("the box of GPUs below is not closed: the output is cut")
    gpus = tuple([_gpu(row) for row in rows if row])
    indexes_follow([gpu.index for gpu in gpus], heads[0] + 1)
    if len({gpu.pci for gpu in gpus}) != len(gpus):
        raise source.lines[heads[0]].error("two GPUs below have one address")
    warnings = tuple(f"the name of GPU {gpu.index} is shortened" for gpu in gpus if gpu.name.endswith("..."))
    return NodeTopology("", gpus, tool=TOOL, vendor="nvidia", warnings=warnings)


def _gpu(lines: list[Line]) -> TopologyGpu:
    first = _FIRST.match(lines[0].text)
    second = _SECOND.match(lines[1].text) if len(lines) > 1 else None
    if first is None or second is None or len(lines) not in (2, 3):
        raise lines[0].error("these are not the lines of one GPU")
    third = _THIRD.match(lines[2].text) if len(lines) == 3 else None
    if len(lines) == 3 and third is None:
        raise lines[2].error("this is no line of a GPU's MIG mode")
    memory = amount(second[2], lines[1].number) if second[2] else amount("", lines[1].number)
    if second[1] and amount(second[1]) > memory:
        raise lines[1].error("more memory is used than there is")
    enabled = third is not None and (third[1] or "").startswith("Enabled")
    return TopologyGpu(
        int(first[1]),
        first[2],
        pci_address(first[3], lines[0].number),
        memory_bytes=memory,
        partition="MIG" if enabled else "",
    )


PARSER = TextParser((TOOL,), recognises, parse)
