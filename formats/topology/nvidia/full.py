"""``nvidia-smi -q`` as text: an indented section per GPU."""

import re

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import amount, is_absent, pci_address

TOOL = "nvidia-smi -q"

_TITLE = re.compile(r"\s*=+NVSMI LOG=+\s*$")
_ATTACHED = re.compile(r"\s*Attached GPUs\s*:\s*(\d{1,4})\s*$")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_GPU_LIKE = re.compile(r"GPU [0-9A-Fa-f]{2}")
_ENTRY = re.compile(r"( +)(\S.*?)\s*:(?: (.*?))?\s*$")
_SECTION = re.compile(r"( +)(\S[^:]*?)\s*$")
_WANTED = {
    "Product Name": "name",
    "GPU UUID": "uuid",
    "MIG Mode/Current": "mig",
    "FB Memory Usage/Total": "memory",
    "PCI/Bus Id": "bus",
    "Minor Number": "minor",
}


def recognises(source: Source) -> bool:
    return source.has(_TITLE) or (source.has(_ATTACHED) and source.has(_GPU))


def parse(source: Source) -> NodeTopology:
    """Raises FormatError, also when there are not as many GPUs as the tool says are attached."""
    attached, sections = None, list[tuple[Line, dict[str, str]]]()
    path: list[tuple[int, str]] = []
    for line in source.lines:
        if match := _ATTACHED.match(line.text):
            if attached is not None:
                raise line.error("a second output begins here; give the output of one call")
            attached = int(match[1])
        elif gpu := _GPU.match(line.text):
            sections.append((line, {"address": pci_address(gpu[1], line.number)}))
            path = []
        elif _GPU_LIKE.match(line.text):
            raise line.error("this is no address of a GPU")
        elif sections and line.text.startswith(" "):
            _read(line, path, sections[-1][1])
        elif line and sections:
            break
    if attached is None or attached != len(sections):
        message = f"{attached} GPUs are attached, but {len(sections)} are described: the output is cut"
        raise FormatError(message, len(source.lines))
    _check(sections)
    gpus = tuple([_gpu(index, line, properties) for index, (line, properties) in enumerate(sections)])
    return NodeTopology("", gpus, tool=TOOL, vendor="nvidia")


def _read(line: Line, path: list[tuple[int, str]], properties: dict[str, str]) -> None:
    entry = _ENTRY.match(line.text)
    section = None if entry else _SECTION.match(line.text)
    indent = len((entry or section)[1]) if entry or section else 0  # type: ignore[index]
    while path and path[-1][0] >= indent:
        path.pop()
    if section:
        path.append((indent, section[2]))
    elif entry:
        name = _WANTED.get("/".join([part for _, part in path] + [entry[2]]))
        if name:
            unbroken(line, f"the line of {entry[2]}")
            if name in properties:
                raise line.error(f"{entry[2]} stands twice in the section of one GPU")
            properties[name] = entry[3] or ""


def _check(sections: list[tuple[Line, dict[str, str]]]) -> None:
    if not sections:
        raise FormatError("no GPU is described")
    for line, properties in sections:
        missing = set(sections[0][1]) ^ set(properties)
        if missing:
            raise line.error(f"the sections of the GPUs differ in {', '.join(sorted(missing))}: lines are missing")
        if "name" in properties and (lacks := sorted({"uuid", "bus", "memory"} - set(properties))):
            raise line.error(f"the section of {properties['address']} does not tell its {lacks[0]}: the output is cut")
        if "bus" in properties and pci_address(properties["bus"], line.number) != properties["address"]:
            raise line.error(f"the section of {properties['address']} says that it is at {properties['bus']}")
    for what in ("address", "uuid"):
        values = [
            properties[what] for _, properties in sections if properties.get(what) and properties[what].strip("GPU-0")
        ]
        if len(set(values)) != len(values):
            raise FormatError(f"two GPUs have one {what}")


def _gpu(index: int, line: Line, properties: dict[str, str]) -> TopologyGpu:
    uuid = properties.get("uuid", "")
    return TopologyGpu(
        index,
        "" if is_absent(properties.get("name", "")) else properties["name"],
        properties["address"],
        memory_bytes=amount(properties.get("memory", ""), line.number),
        partition="MIG" if properties.get("mig") == "Enabled" else "",
        uuid="" if is_absent(uuid) or not uuid.strip("GPU-0") else uuid,
    )


PARSER = TextParser((TOOL,), recognises, parse)
