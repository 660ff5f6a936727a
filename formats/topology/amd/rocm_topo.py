"""``rocm-smi --showtopo`` as text, also one of its parts (``--showtopoweight``, ``--showtopohops``, ``--showtopotype``,
``--showtoponuma``, ``--showtopoaccess``, ``--shownodesbw``).

Source: rocm_smi_lib's ``python_smi_tools/rocm_smi.py``. Every call ends with a line "End of ROCm SMI Log"; without it
all parts of ``--showtopo`` have to be there. Hops are 1 inside of an XGMI fabric, however wide its links are.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kopt.core.hardware.node_topology import LinkType, NodeTopology, PeerAccess, TopologyGpu, TopologyLink
from kopt.formats.topology.matrix import Table, table, whole
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, Word, unbroken

TOOL = "rocm-smi --showtopo"
TYPES = {"XGMI": LinkType.XGMI, "PCIE": LinkType.PCIE}
UNKNOWN = {"XXXX", "N/A", "UNKNOWN"}
"""Words for what the library could not tell."""

_TITLE = re.compile(
    r"\s*=+\s*(Weight between two GPUs|Hops between two GPUs|Link Type between two GPUs"
    r"|Link accessibility between two GPUs|Bandwidth|Numa Nodes)\s*=+\s*$"
)
_ANY_TITLE = re.compile(r"\s*=*\s*(Weight|Hops|Link Type|Link accessibility) between two GPUs")
_NUMA_LINE = re.compile(r"\s*GPU\s?\[?(\d{1,4})\]?\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d{1,10})\s*$")
_NUMA = re.compile(r".*\(Topology\)")
_END = re.compile(r"\s*=+\s*End of ROCm SMI Log\s*=+\s*$")
_NAME = re.compile(r"GPU\d{1,4}")
_CELL = re.compile(r"\d+(?:-\d+)?|GPU\d{1,4}|True|False|[A-Z/]{3,7}")
_RANGE = re.compile(r"\d{1,9}-(\d{1,9})")

_PARTS = ("Weight between two GPUs", "Hops between two GPUs", "Link Type between two GPUs")

T = TypeVar("T")


def recognises(source: Source) -> bool:
    return source.has(_ANY_TITLE) or source.has(_NUMA_LINE)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    tables, end = _tables(source)
    numa = _numa(source)
    parts = [part for part in _PARTS if part in tables]
    missing = [part for part in _PARTS if part not in tables] + ([] if numa else ["Numa Nodes"])
    if end is None and missing:
        raise FormatError("the line 'End of ROCm SMI Log' is missing: the output is cut", len(source.lines))
    if missing and len(parts) > 1:
        raise FormatError(f"{missing[0]!r} is missing, which belongs to --showtopo")
    names = next(iter(tables.values())).names if tables else tuple(f"GPU{index}" for index in sorted(numa))
    for item in tables.values():
        if item.names != names:
            raise item.title.error(f"this table has the GPUs {' '.join(item.names)}, the first one {' '.join(names)}")
    indexes = [int(name.removeprefix("GPU")) for name in names]
    if numa and set(numa) != set(indexes):
        odd = min(set(numa) ^ set(indexes))
        raise FormatError(f"GPU{odd} is in only one of the tables and the NUMA nodes", len(source.lines))
    return topology(TOOL, indexes, numa, tables)


def topology(
    tool: str, indexes: Sequence[int], numa: Mapping[int, int | None], tables: Mapping[str, Table]
) -> NodeTopology:
    """The node of tables that have the same GPUs in the same order."""
    weights = _pairs(tables, "Weight between two GPUs", lambda word: _number(word, "weight"))
    hops = _pairs(tables, "Hops between two GPUs", lambda word: _number(word, "number of hops"))
    types = _pairs(tables, "Link Type between two GPUs", _type)
    access = _pairs(tables, "Link accessibility between two GPUs", _access, ("True", "False"))
    speeds = _pairs(tables, "Bandwidth", _speed, ("N/A",))
    warnings, links = [], []
    for i, j in types:
        kind, (a, b) = types[i, j], (indexes[i], indexes[j])
        if kind is None:
            warnings.append(f"what links GPU {a} and GPU {b} is unknown to the tool")
            continue
        links.append(TopologyLink(a, b, kind, None, weights.get((i, j)), hops.get((i, j)), speeds.get((i, j))))
    if not types and len(indexes) > 1:
        warnings.append("the types of the links are not in this output; run rocm-smi --showtopo")
    peers = tuple([PeerAccess(indexes[i], indexes[j], status) for (i, j), status in access.items()])
    gpus = tuple([TopologyGpu(index, numa=numa.get(index)) for index in indexes])
    return NodeTopology("", gpus, tuple(links), tool=tool, vendor="amd", warnings=tuple(warnings), peers=peers)


def _pairs(
    tables: Mapping[str, Table], name: str, convert: Callable[[Word], T], diagonal: Sequence[str] = ("0",)
) -> dict[tuple[int, int], T]:
    return tables[name].pairs(convert, diagonal) if name in tables else {}


def _tables(source: Source) -> tuple[dict[str, Table], int | None]:
    tables_by_name: dict[str, Table] = {}
    at, end = 0, None
    while at < len(source.lines):
        line = source.lines[at]
        at += 1
        title = _TITLE.match(line.text)
        if title and title[1] != "Numa Nodes":
            if title[1] in tables_by_name:
                raise line.error(f"a second table {title[1]!r}; give the output of one call")
            tables_by_name[title[1]] = table(source.lines, at, line, _NAME)
            at = tables_by_name[title[1]].after
        elif _END.match(line.text):
            if end is not None:
                raise line.error("a second output ends here; give the output of one call")
            end = at
        elif title is None and (_stray(line) or _ANY_TITLE.match(line.text)):
            raise line.error("this line belongs to no table")
    return tables_by_name, end


def _stray(line: Line) -> bool:
    tokens = line.text.split(None, 2)[:2] if "GPU" in line.text else []
    return len(tokens) == 2 and all(item.fullmatch(word) for item, word in zip((_NAME, _CELL), tokens, strict=True))


def _numa(source: Source) -> dict[int, int | None]:
    result: dict[str, dict[int, int | None]] = {"Node": {}, "Affinity": {}}
    last = None
    for line, _ in source.matching(_NUMA):
        entry = _NUMA_LINE.match(line.text)
        if entry is None:
            raise line.error("this is no line of NUMA nodes")
        index, value = int(entry[1]), int(entry[3])
        if index in result[entry[2]]:
            raise line.error(f"a second NUMA {entry[2].lower()} of GPU {index}")
        # The library's -1, also as it looks without its sign.
        result[entry[2]][index] = None if value in (-1, (1 << 32) - 1) else value
        last = line
    if last is not None:
        unbroken(last, "the last NUMA node")
    nodes, affinities = result["Node"], result["Affinity"]
    if affinities and nodes and set(nodes) != set(affinities):
        odd = min(set(nodes) ^ set(affinities))
        raise FormatError(f"GPU {odd} has only one of NUMA node and NUMA affinity", last.number if last else 0)
    if any(not 0 <= (value or 0) <= 4095 for value in nodes.values()):
        raise FormatError("a NUMA node is out of range", last.number if last else 0)
    return nodes


def _number(word: Word, what: str) -> int | None:
    return None if word.text in UNKNOWN else whole(word, what)


def _type(word: Word) -> LinkType | None:
    if word.text not in TYPES and word.text not in UNKNOWN:
        raise word.error(f"{word.text[:60]!r} is no type of a link")
    return TYPES.get(word.text)


def _access(word: Word) -> str:
    if word.text not in ("True", "False"):
        raise word.error(f"{word.text[:60]!r} is neither True nor False")
    return "ENABLED" if word.text == "True" else "DISABLED"


def _speed(word: Word) -> float | None:
    """Upper end of a range in MB/s; 0-0 says that there is no link."""
    match = _RANGE.fullmatch(word.text)
    if match is None and word.text not in UNKNOWN:
        raise word.error(f"{word.text[:60]!r} is no range of bandwidth")
    return int(match[1]) / 1000 if match and int(match[1]) else None


PARSER = TextParser((TOOL,), recognises, parse, expects_others=True)
