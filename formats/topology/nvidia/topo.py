"""``nvidia-smi topo -m``, ``nvidia-smi topo -p2p r|w|n|a|p``, and ``mx-smi topo -m`` of MetaX, which prints the same.

The matrix is read whole: a row for every column, in the same order, X on the diagonal, the two halves alike. Columns
for affinity come and go with driver versions. A header that the terminal underlined came straight from the tool, which
then always prints its legend; elsewhere the legend may be missing, as in what people paste. Rows that a terminal broke
at its width are put together where every cell then agrees.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from kopt.core.hardware.node_topology import (
    LinkType,
    NicAffinity,
    NodeTopology,
    PeerAccess,
    TopologyGpu,
    TopologyLink,
    TopologyNic,
)
from kopt.formats.topology.nvidia.wrapped import unwrapped
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, Word, unbroken

TOOL = "nvidia-smi topo -m"
P2P_TOOL = "nvidia-smi topo -p2p"
METAX_TOOL = "mx-smi topo -m"

_PATHS = {
    "PIX": LinkType.PIX,
    "PSB": LinkType.PIX,
    "PXB": LinkType.PXB,
    "PHB": LinkType.PHB,
    "NODE": LinkType.NODE,
    "SYS": LinkType.SYS,
    "SOC": LinkType.SOC,
    "C2C": LinkType.C2C,
    "MX": LinkType.METAXLINK,
}
_NVLINK = re.compile(r"NV([1-9]\d{0,2})")
_STATUS = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
_GPU = re.compile(r"GPU(\d{1,4})")
_DEVICE = re.compile(r"[A-Za-z][\w.:-]*\d[\w.:-]*")
_HEADINGS = re.compile(r"CPU Affinity|NUMA Affinity|Node Affinity|GPU NUMA ID|\S+")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "Node Affinity", "GPU NUMA ID")
_CELLS = {
    "CPU Affinity": re.compile(r"N/A|[-,\d]+"),
    "NUMA Affinity": re.compile(r"N/A|\d+(?:[-,]\d+)*"),
    "Node Affinity": re.compile(r"N/A|\d+(?:[-,]\d+)*"),
    "GPU NUMA ID": re.compile(r"N/A|-?\d+"),
}
_MESSAGE = re.compile(r"\s*(?:WARN(?:ING)?|INFO|NOTE|DEBUG)\b", re.IGNORECASE)
_LEGEND = re.compile(r"\s*Legend:\s*$")
_METAX = re.compile(r"=+ MetaX System Management Interface Log =+|\s*MX\s*=\s*Connection traversing MetaXLink")
_NIC_LEGEND = re.compile(r"\s*NIC Legend:\s*$")
_EXPLAINED = re.compile(r"\s*(X|NV#|[A-Z][A-Z0-9]{1,4})\s*=\s*\S")
_NIC_NAME = re.compile(r"\s*(NIC\d{1,4}):\s*(\S+)\s*$")


@dataclass(frozen=True)
class _Header:
    line: Line
    devices: tuple[str, ...]
    affinities: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return sum(1 for name in self.devices if _GPU.fullmatch(name))


@dataclass(frozen=True)
class _Row:
    line: Line
    label: str
    cells: tuple[Word, ...]
    rest: tuple[Word, ...]


@dataclass(frozen=True)
class _Matrix:
    header: _Header
    rows: tuple[_Row, ...]
    warnings: tuple[str, ...]
    after: int
    """Index of the first line behind it."""

    @property
    def is_p2p(self) -> bool:
        cells = [cell.text for row in self.rows for cell in row.cells]
        return any(cell in _STATUS for cell in cells)


def recognises(source: Source) -> bool:
    """A header of GPUs, or a row of one whose header is lost."""
    return any(_header(line) or _is_row(line, {"X", *_PATHS, *_STATUS}) for line in source.lines)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    try:
        return _parse(source)
    except FormatError:
        for whole, columns in unwrapped(source, _begins_header, _begins_row):
            with suppress(FormatError):
                node = _parse(whole)
                warning = f"lines were broken at {columns} columns; their pieces were put together"
                return replace(node, warnings=(*node.warnings, warning))
        raise


def _parse(source: Source) -> NodeTopology:
    matrixes = _matrices(source)
    linked = [matrix for matrix in matrixes if not matrix.is_p2p]
    peers = [matrix for matrix in matrixes if matrix.is_p2p]
    explained = _legend(source, matrixes[0])
    if linked and not peers and "OK" in explained and "PIX" not in explained and linked[0].header.gpus == 1:
        linked, peers = [], linked
    for kind in (linked, peers):
        if len(kind) > 1:
            raise kind[1].header.line.error("a second matrix begins here; give the output of one call")
    main = linked[0] if linked else peers[0]
    if linked and peers and peers[0].header.gpus != main.header.gpus:
        raise peers[0].header.line.error("a matrix of other GPUs than the first one's")
    return _links(source, main, peers) if linked else _peers_only(source, main)


def _matrices(source: Source) -> list[_Matrix]:
    matrices: list[_Matrix] = []
    at = 0
    while at < len(source.lines):
        header = _header(source.lines[at])
        if header is not None and (len(header.devices) > 1 or _followed(source.lines, at, header)):
            matrices.append(_matrix(source, header, at))
            at = matrices[-1].after
            continue
        if _is_row(source.lines[at], {"X", *_PATHS, *_STATUS}):
            message = (
                "a row of the matrix without a header" if not matrices else "one more row than the header has GPUs"
            )
            raise source.lines[at].error(message)
        at += 1
    if not matrices:
        raise FormatError("there is no matrix of GPUs")
    return matrices


def _followed(lines: Sequence[Line], at: int, header: _Header) -> bool:
    following = next((line for line in lines[at + 1 :] if line), None)
    return following is not None and following.tokens()[0].text == header.devices[0]


def _header(line: Line) -> _Header | None:
    if "GPU" not in line.text or "|" in line.text:
        return None
    tokens = [word.text for word in line.tokens(_HEADINGS)]
    if not tokens or not _GPU.fullmatch(tokens[0]):
        return None
    count = next((n for n, word in enumerate(tokens) if word in _AFFINITIES), len(tokens))
    devices, affinities = tokens[:count], tokens[count:]
    if not all(_DEVICE.fullmatch(name) and not _NVLINK.fullmatch(name) and name not in _PATHS for name in devices):
        return None
    for names in (devices, affinities):
        if len(set(names)) != len(names):
            raise line.error("the header names a column twice")
    if not set(affinities) <= set(_AFFINITIES):
        raise line.error(f"the header has an unknown column behind {affinities[0]!r}")
    return _Header(line, tuple(devices), tuple(affinities))


def _is_row(line: Line, cells: set[str]) -> bool:
    tokens = line.text.split(None, 2) if "GPU" in line.text else []
    return (
        len(tokens) > 1
        and bool(_GPU.fullmatch(tokens[0]))
        and (tokens[1] in cells or bool(_NVLINK.fullmatch(tokens[1])))
    )


def _begins_header(line: Line) -> bool:
    """A header or, of one that was broken, its first piece: the last name in it may be half of one."""
    tokens = line.text.split()
    return len(tokens) > 1 and all(_GPU.fullmatch(name) for name in tokens[:2])


def _begins_row(line: Line) -> bool:
    tokens = line.text.split(None, 2)
    return (
        len(tokens) > 1
        and bool(_DEVICE.fullmatch(tokens[0]))
        and (tokens[1] in {"X", *_PATHS, *_STATUS} or bool(_NVLINK.fullmatch(tokens[1])))
    )


def _matrix(source: Source, header: _Header, at: int) -> _Matrix:
    following = source.lines[at + 1 :]
    excerpt = _excerpt(header, following)
    names = (*header.devices, *excerpt)
    rows: list[_Row] = []
    missing = list(names)
    for offset, line in enumerate(following):
        tokens = line.tokens()
        if not tokens or (len(rows) < len(names) and _MESSAGE.match(line.text)):
            continue
        if len(rows) == len(names):
            end = at + 1 + offset
            break
        if tokens[0].text not in missing:
            raise tokens[0].error(f"the row of {missing[0]} is expected, not {tokens[0].text[:60]!r}")
        missing.remove(tokens[0].text)
        rows.append(_row(line, tokens, len(names)))
    else:
        end = len(source.lines)
    if len(rows) < len(names):
        raise header.line.error(f"{len(rows)} rows under a header of {len(names)}: the output ends too early")
    unbroken(rows[-1].line, "the last row of the matrix")
    more, end = _beyond(source.lines, end, header)
    if not any(_LEGEND.match(line.text) for line in source.lines[end:]) and header.line.underlined:
        raise rows[-1].line.error("the legend that the tool prints below the matrix is missing: the output is cut")
    rows.sort(key=lambda row: names.index(row.label))
    _check(rows, names)
    if excerpt:
        rows = [_Row(row.line, row.label, row.cells[: -len(excerpt)], row.rest) for row in rows[: -len(excerpt)]]
        more += (f"an excerpt: the header does not name {', '.join(excerpt)}, which was left out",)
    return _Matrix(header, tuple(rows), more, end)


def _excerpt(header: _Header, following: Sequence[Line]) -> tuple[str, ...]:
    """GPUs behind the last one of a header that somebody cut and moved to the left, where the row names stand.

    Only in text without a legend; elsewhere more rows than columns are an error.
    """
    first = header.line.tokens()[0].column
    labels = []
    if any(_LEGEND.match(line.text) for line in following):
        return ()
    for line in filter(None, following):
        tokens = line.tokens()
        if not _is_row(line, {"X", *_PATHS}) or tokens[0].column != first:
            break
        labels.append(tokens[0].text)
    count = len(header.devices)
    affinities = tuple(labels[count:])
    if header.line.underlined or tuple(labels[:count]) != header.devices or header.gpus != count or count < 2:
        return ()
    return affinities if len(set(labels)) == len(labels) else ()


def _row(line: Line, tokens: tuple[Word, ...], width: int) -> _Row:
    cells = tokens[1 : width + 1]
    for cell in cells:
        if (
            cell.text != "X"
            and cell.text not in _PATHS
            and cell.text not in _STATUS
            and not _NVLINK.fullmatch(cell.text)
        ):
            raise cell.error(f"{cell.text[:60]!r} in the row of {tokens[0].text} is no way between two devices")
    if len(cells) < width:
        raise line.error(f"the row of {tokens[0].text} has {len(cells)} of {width} cells")
    return _Row(line, tokens[0].text, cells, tokens[width + 1 :])


def _beyond(lines: Sequence[Line], at: int, header: _Header) -> tuple[tuple[str, ...], int]:
    """Rows of cards that have no column: seen in documents whose columns were cut. They are left out and told."""
    names: list[str] = []
    while at < len(lines):
        tokens = lines[at].tokens()
        is_row = len(tokens) > 1 and _DEVICE.fullmatch(tokens[0].text) and (tokens[1].text in {"X", *_PATHS})
        if not is_row:
            break
        cells = [word.text for word in tokens[1:]]
        repeats = tokens[0].text in {*header.devices, *names}
        if repeats or _GPU.fullmatch(tokens[0].text) or len(cells) != header.gpus or not set(cells) <= set(_PATHS):
            what = "a second row" if repeats else "a row without a column"
            raise tokens[0].error(f"{what} of {tokens[0].text}")
        if header.gpus != len(header.devices) or header.line.underlined:
            raise tokens[0].error(f"the header has no column for {tokens[0].text}")
        names.append(tokens[0].text)
        at += 1
    return ((f"{', '.join(names)}: rows without columns, left out",) if names else ()), at


def _check(rows: Sequence[_Row], names: Sequence[str]) -> None:
    for i, row in enumerate(rows):
        for j, cell in enumerate(row.cells):
            if (cell.text == "X") != (i == j):
                raise cell.error(f"{names[i]} to {names[j]} is {cell.text}; X stands for a device itself")
            if j < i and cell.text != rows[j].cells[i].text:
                opposite = rows[j].cells[i]
                raise cell.error(
                    f"{names[i]} to {names[j]} is {cell.text}, but {opposite.text} on line {opposite.line}"
                )
    kinds = {cell.text in _STATUS for row in rows for cell in row.cells if cell.text != "X"}
    if len(kinds) > 1:
        raise rows[0].line.error("ways between devices are mixed with states of peer access")


def _links(source: Source, matrix: _Matrix, peers: Sequence[_Matrix]) -> NodeTopology:
    header, warnings = matrix.header, list(matrix.warnings)
    _explained(source, matrix)
    titles = _nic_names(source, header, warnings)
    gpus, links, affinity = [], [], []
    present = any(row.rest for row in matrix.rows)
    for i, row in enumerate(matrix.rows):
        match = _GPU.fullmatch(row.label)
        if match is None:
            if row.rest:
                raise row.rest[0].error(f"{row.rest[0].text[:60]!r} is one cell too many in the row of {row.label}")
            continue
        index = int(match[1])
        gpus.append(TopologyGpu(index, numa=_numa(header, row, present, warnings)))
        for j, cell in enumerate(row.cells):
            other = _GPU.fullmatch(header.devices[j])
            if other is None:
                affinity.append(NicAffinity(index, titles[header.devices[j]], _type(cell.text)))
            elif j > i:
                links.append(TopologyLink(index, int(other[1]), _type(cell.text), _count(cell.text)))
    nics = tuple(TopologyNic(titles[name]) for name in header.devices if not _GPU.fullmatch(name))
    if peers:
        warnings.append(f"line {peers[0].header.line.number}: the matrix of peer access there was read, too")
    access = _access(peers[0]) if peers else ()
    is_metax = any(link.type is LinkType.METAXLINK for link in links) or _has_metax_legend(source)
    tool, vendor = (METAX_TOOL, "metax") if is_metax else (TOOL, "nvidia")
    return NodeTopology("", tuple(gpus), tuple(links), nics, tuple(affinity), (), tool, vendor, tuple(warnings), access)


def _has_metax_legend(source: Source) -> bool:
    """Also GPUs that are linked by PCIe alone are MetaX's where the tool names itself or explains MX."""
    return source.has(_METAX)


def _peers_only(source: Source, matrix: _Matrix) -> NodeTopology:
    _explained(source, matrix)
    for row in matrix.rows:
        if row.rest or not _GPU.fullmatch(row.label):
            raise row.line.error(f"the row of {row.label} does not belong to a matrix of peer access")
    gpus = tuple(TopologyGpu(_index(row.label)) for row in matrix.rows)
    warnings = (*matrix.warnings, "peer access only: it does not say what the GPUs are linked by")
    return NodeTopology("", gpus, tool=P2P_TOOL, vendor="nvidia", warnings=warnings, peers=_access(matrix))


def _access(matrix: _Matrix) -> tuple[PeerAccess, ...]:
    return tuple(
        [
            PeerAccess(_index(matrix.header.devices[i]), _index(matrix.header.devices[j]), cell.text)
            for i, row in enumerate(matrix.rows)
            for j, cell in enumerate(row.cells)
            if j > i
        ]
    )


def _index(label: str) -> int:
    return int(label.removeprefix("GPU"))


def _type(text: str) -> LinkType:
    return _PATHS.get(text, LinkType.NVLINK)


def _count(text: str) -> int | None:
    match = _NVLINK.fullmatch(text)
    return int(match[1]) if match else None


def _numa(header: _Header, row: _Row, present: bool, warnings: list[str]) -> int | None:
    """The one NUMA node that the row names. Raises FormatError for cells that are missing or too many."""
    if not present:
        return None
    cells = _affinity(header, row)
    for name, text in cells.items():
        if text and not _CELLS[name].fullmatch(text):
            raise row.line.error(f"{text[:60]!r} is no {name} of {row.label}")
    numa = cells.get("NUMA Affinity", "") or cells.get("Node Affinity", "")
    if numa in ("", "N/A"):
        return None
    if not numa.isdigit():
        warnings.append(f"{row.label} is near NUMA nodes {numa}; which of them is not known")
        return None
    if len(numa) > 4:
        raise row.line.error(f"{numa[:60]!r} is no NUMA node")
    return int(numa)


def _affinity(header: _Header, row: _Row) -> dict[str, str]:
    names = header.affinities
    if len(row.rest) == len(names):
        return dict(zip(names, [word.text for word in row.rest], strict=True))
    if row.rest and len(row.rest) < len(names) and all(word.text == "N/A" for word in row.rest):
        return {}
    fields = row.line.text[row.cells[-1].column - row.line.shift - 1 :].split("\t")[1:]
    if len(fields) == len(names) + 1 and names[-1:] == ("GPU NUMA ID",) and not fields[-2].strip():
        # The tool puts two tabs before the last column.
        del fields[-2]
    if len(fields) != len(names) or len(row.rest) > len(names):
        raise row.line.error(f"the row of {row.label} has {len(row.rest)} of {len(names)} cells of affinity")
    return dict(zip(names, [field.strip() for field in fields], strict=True))


def _legend(source: Source, matrix: _Matrix) -> set[str]:
    """What the legend behind a matrix explains; empty without one."""
    result: set[str] = set()
    inside = False
    for line in source.lines[matrix.after :]:
        if _LEGEND.match(line.text) and not inside:
            inside = True
        elif inside and (entry := _EXPLAINED.match(line.text)):
            result.add(entry[1])
        elif inside and line and not line.text[0].isspace():
            break
    return result


def _explained(source: Source, matrix: _Matrix) -> None:
    """The tool's legend explains every word that the matrix uses, and goes down to NV#. People shorten it."""
    legend = _legend(source, matrix)
    is_whole = {"X", "PHB", "PXB", "NV#"} <= legend or "OK" in legend
    for row in matrix.rows if is_whole else ():
        for cell in row.cells:
            if cell.text not in legend and not ("NV#" in legend and _NVLINK.fullmatch(cell.text)):
                raise cell.error(f"the legend does not explain {cell.text}: one of them is damaged")
    if matrix.header.line.underlined and not matrix.is_p2p and "NV#" not in legend:
        raise matrix.header.line.error("the legend below the matrix is cut")


def _nic_names(source: Source, header: _Header, warnings: list[str]) -> dict[str, str]:
    """Names of the cards by their columns."""
    cards = [name for name in header.devices if not _GPU.fullmatch(name)]
    legend = next((n for n, line in enumerate(source.lines) if _NIC_LEGEND.match(line.text)), None)
    numbered = [name for name in cards if re.fullmatch(r"NIC\d+", name)]
    if legend is None:
        if numbered and header.line.underlined:
            raise header.line.error("the legend of the network cards is missing: the output is cut")
        if numbered:
            warnings.append("the legend of the network cards is missing: they are named by their columns")
        return {name: name for name in cards}
    result: dict[str, str] = {}
    for line in source.lines[legend + 1 :]:
        entry = _NIC_NAME.match(line.text)
        if entry is None and line:
            break
        if entry is not None:
            if entry[1] in result or entry[2] in result.values():
                raise line.error(f"the legend names {entry[1]} or {entry[2]} twice")
            unbroken(line, "the legend of the network cards")
            result[entry[1]] = entry[2]
    missing = [name for name in numbered if name not in result]
    if missing:
        raise source.lines[legend].error(f"the legend of the network cards does not name {', '.join(missing)}")
    return {name: result.get(name, name) for name in cards}


PARSER = TextParser((TOOL, P2P_TOOL, METAX_TOOL), recognises, parse)
