"""``nvidia-smi -L`` with MIG devices, and ``nvidia-smi nvlink --status``, which lists links below the same lines.

A list that leaves something out says so (``...``, ``[...]``): it is read as an excerpt and told as one.
"""

import re
from dataclasses import dataclass, field

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import indexes_follow, number_of

TOOL = "nvidia-smi -L"
NVLINK_TOOL = "nvidia-smi nvlink --status"

_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_GPU = re.compile(r"\s*GPU (\d{1,4}): (\S[^()]*?(?: \([^()]*\))?) \(UUID: ((?:GPU|MIG)-[^\s()]+)\)\s*$")
_UUID = re.compile(rf"GPU-{_ID}")
_NAMED = re.compile(r"\s*GPU (\d{1,4}): ([A-Z][^(),:=|]*?)\s*$")
"""A line of which somebody took the UUID."""
_GPU_LIKE = re.compile(r"\s*GPU \d{1,4}:(?! \(Topology\))\s*\S.*UUID|\s*GPU \d{1,4}: \S.*[^)\s]\s*$")
_MIG = re.compile(
    rf"\s*MIG (\d+[a-z]\.[\w.+]*)\s+Device\s+(\d{{1,3}}):\s*\(UUID: (MIG-(?:GPU-)?{_ID}(?:/\d+/\d+)?)\)\s*$"
)
_MIG_LIKE = re.compile(r"\s*MIG\s+\d+\w?\.|.*\bDevice\s+\d+:\s*\(UUID")
_LINK = re.compile(r"\s*Link (\d{1,3}):\s*(?:([\d.]{1,10}) GB/s|<?(inactive)>?)\s*$", re.IGNORECASE)
_LINK_LIKE = re.compile(r"\s*Link\s*\d")
_NO_LINKS = re.compile(r".*(?:Unable to retrieve Nvlink information|does not have or support Nvlink)", re.IGNORECASE)
_EXCERPT = re.compile(r"\s*(?:\.\.\.|\[\.\.\.\]|…|\[output truncated\])\s*$")


@dataclass
class _Gpu:
    line: Line
    index: int
    name: str
    uuid: str
    instances: list[str] = field(default_factory=list)
    links: dict[int, float] = field(default_factory=dict)
    """Speed in GB/s by number, 0 where inactive."""
    has_none: bool = False
    """The tool says that no link is active, and lists none."""


def recognises(source: Source) -> bool:
    return source.has(_GPU) or source.has(_LINK) or source.has(_MIG)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    gpus: list[_Gpu] = []
    excerpts: list[Line] = []
    last, linked, may_lack_uuid = source.lines[0], False, source.has(_LINK)
    for line in source.lines:
        if match := _GPU.match(line.text):
            gpus.append(_Gpu(line, int(match[1]), match[2], match[3]))
        elif (match := _NAMED.match(line.text)) and may_lack_uuid:
            gpus.append(_Gpu(line, int(match[1]), match[2], ""))
        elif match := _LINK.match(line.text):
            linked = True
            _add_link(gpus, line, match, [*excerpts])
        elif match := _MIG.match(line.text):
            _add_instance(gpus, line, match)
        elif gpus and _NO_LINKS.match(line.text):
            linked = gpus[-1].has_none = True
        elif _EXCERPT.match(line.text):
            excerpts.append(line)
            continue
        elif gpus and (_GPU_LIKE.match(line.text) or _MIG_LIKE.match(line.text) or _LINK_LIKE.match(line.text)):
            raise line.error("this is no whole line of a GPU, a MIG device or a link")
        else:
            continue
        last = line
    unbroken(last, "the last line of the list")
    if not gpus:
        raise source.lines[0].error("links or MIG devices without the GPU that they belong to")
    if not excerpts:
        indexes_follow([gpu.index for gpu in gpus], gpus[0].line.number)
        _same_links(gpus)
    uuids = [gpu.uuid for gpu in gpus if not _is_blank(gpu.uuid)]
    if len(set(uuids)) != len(uuids):
        raise gpus[0].line.error("two GPUs have one UUID")
    warnings = tuple(f"an excerpt: line {line.number} says that something was left out" for line in excerpts)
    masked = tuple(f"the UUID of GPU {gpu.index} is not whole" for gpu in gpus if not _UUID.fullmatch(gpu.uuid))
    topology_gpus = tuple([_core(gpu, linked) for gpu in gpus])
    return NodeTopology(
        "", topology_gpus, tool=NVLINK_TOOL if linked else TOOL, vendor="nvidia", warnings=(*warnings, *masked)
    )


def instance_gpus(text: str) -> dict[str, int]:
    """The GPU's index by the UUID of each MIG device in the output of ``nvidia-smi -L``; empty for any other text."""
    result: dict[str, int] = {}
    index: int | None = None
    for line in text.splitlines():
        if match := _GPU.match(line):
            index = int(match[1])
        elif (match := _MIG.match(line)) and index is not None:
            result[match[2]] = index
    return result


def _is_blank(uuid: str) -> bool:
    """Anonymous, or masked by somebody."""
    return not uuid.removeprefix("GPU-").strip("0-") or not _UUID.fullmatch(uuid)


def _add_link(gpus: list[_Gpu], line: Line, match: "re.Match[str]", excerpts: list[Line]) -> None:
    if not gpus:
        raise line.error("a link without its GPU above it")
    links, number = gpus[-1].links, int(match[1])
    is_excerpt = any(excerpt.number > gpus[-1].line.number for excerpt in excerpts)
    if number in links or (number != len(links) and not is_excerpt):
        raise line.error(f"link {len(links)} of GPU {gpus[-1].index} is expected, not {number}")
    links[number] = number_of(match[2], "a speed", line.number) if match[2] else 0.0


def _add_instance(gpus: list[_Gpu], line: Line, match: "re.Match[str]") -> None:
    if not gpus:
        raise line.error("a MIG device without its GPU above it")
    if int(match[2]) != len(gpus[-1].instances):
        raise line.error(f"MIG device {len(gpus[-1].instances)} of GPU {gpus[-1].index} is expected, not {match[2]}")
    gpus[-1].instances.append(match[1])


def _same_links(gpus: list[_Gpu]) -> None:
    """GPUs of one product have equally many links, also where some are inactive."""
    counts: dict[str, _Gpu] = {}
    for gpu in gpus:
        if gpu.has_none and not gpu.links:
            continue
        first = counts.setdefault(gpu.name, gpu)
        if len(first.links) != len(gpu.links):
            message = f"GPU {gpu.index} has {len(gpu.links)} links and GPU {first.index} {len(first.links)}"
            raise FormatError(f"{message}: lines are missing", gpu.line.number)


def _core(gpu: _Gpu, linked: bool) -> TopologyGpu:
    active = [speed for speed in gpu.links.values() if speed]
    linked = linked and list(gpu.links) == list(range(len(gpu.links)))
    speed = active[0] if active and len(set(active)) == 1 else None
    return TopologyGpu(
        gpu.index,
        gpu.name,
        uuid="" if _is_blank(gpu.uuid) else gpu.uuid,
        instances=tuple(gpu.instances),
        partition="MIG" if gpu.instances else "",
        ports=len(active) if linked else None,
        port_gigabytes_per_s=speed,
    )


PARSER = TextParser((TOOL, NVLINK_TOOL), recognises, parse)
