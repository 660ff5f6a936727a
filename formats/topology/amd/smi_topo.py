"""``amd-smi topology`` as text and as JSON.

Source: amd-smi's ``amdsmi_cli``, ``subcommands``: one table per question, each with the same BDFs in the header and
before the rows. In JSON every GPU lists its links to all of them. There is no last line, so the table of link types
has to be there; a remark that the output was truncated is taken at its word.
"""

import re
from collections.abc import Mapping
from typing import Any

from kopt.core.hardware.node_topology import LinkType, NodeTopology, PeerAccess, TopologyGpu, TopologyLink
from kopt.formats.topology.documents import Document, text_of, whole
from kopt.formats.topology.matrix import Table, table
from kopt.formats.topology.matrix import whole as whole_word
from kopt.formats.topology.parser import JsonParser, TextParser
from kopt.formats.topology.text import FormatError, Source, Word

TOOL = "amd-smi topology"
TYPES = {"XGMI": LinkType.XGMI, "PCIE": LinkType.PCIE}

_TITLE = re.compile(r"\s*([A-Z][A-Z -]{2,40} TABLE):\s*$")
_BDF = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_ROW = re.compile(r"\s*[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?:\s|$)")
_TRUNCATED = re.compile(r"\s*(?:\[?\(?(?:output )?truncated\)?\]?|\[?\.\.\.\]?|…|\[\.\.\.\])\s*$", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_UNKNOWN = {"N/A", "UNKNOWN", "XXXX"}
_LINKS = {"ACCESS TABLE", "WEIGHT TABLE", "HOPS TABLE", "LINK TYPE TABLE"}


def recognises(source: Source) -> bool:
    return source.has(_TITLE)


def recognises_json(document: Document) -> bool:
    entries = _entries(document)
    return any(isinstance(entry, dict) and "links" in entry for entry in entries)


def parse(source: Source) -> NodeTopology:
    """Raises FormatError."""
    tables: dict[str, Table] = {}
    at = 0
    while at < len(source.lines):
        line = source.lines[at]
        at += 1
        if title := _TITLE.match(line.text):
            if title[1] in tables:
                raise line.error(f"a second {title[1]}; give the output of one call")
            tables[title[1]] = table(source.lines, at, line, _BDF)
            at = tables[title[1]].after
        elif _TRUNCATED.match(line.text):
            raise line.error("the output says itself that it was truncated here")
        elif _ROW.match(line.text):
            raise line.error("this row belongs to no table")
    first = next(iter(tables.values()))
    for item in tables.values():
        if item.names != first.names:
            raise item.title.error("this table has other GPUs than the first one")
    if "LINK TYPE TABLE" not in tables:
        raise FormatError("the LINK TYPE TABLE is missing: the output is cut, or a part of it", len(source.lines))
    if len(_LINKS & set(tables)) not in (1, len(_LINKS)):
        raise FormatError(f"the {min(_LINKS - set(tables))} is missing, which belongs to amd-smi topology")
    return _node(first.names, tables)


def _node(names: tuple[str, ...], tables: Mapping[str, Table]) -> NodeTopology:
    types = tables["LINK TYPE TABLE"].pairs(_type, ("SELF", "0"))
    weights = tables["WEIGHT TABLE"].pairs(_number, ("0",)) if "WEIGHT TABLE" in tables else {}
    hops = tables["HOPS TABLE"].pairs(_number, ("0",)) if "HOPS TABLE" in tables else {}
    access = tables["ACCESS TABLE"].pairs(_status, ("ENABLED", "DISABLED")) if "ACCESS TABLE" in tables else {}
    speeds = tables["NUMA BW TABLE"].pairs(_speed, ("N/A",)) if "NUMA BW TABLE" in tables else {}
    warnings, links = [], []
    for (a, b), kind in types.items():
        if kind is None:
            warnings.append(f"what links GPU {a} and GPU {b} is unknown to the tool")
        else:
            links.append(TopologyLink(a, b, kind, None, weights.get((a, b)), hops.get((a, b)), speeds.get((a, b))))
    gpus = tuple([TopologyGpu(index, pci=name.lower()) for index, name in enumerate(names)])
    peers = tuple([PeerAccess(a, b, status) for (a, b), status in access.items()])
    return NodeTopology("", gpus, tuple(links), tool=TOOL, vendor="amd", warnings=tuple(warnings), peers=peers)


def _number(word: Word) -> int | None:
    return None if word.text in _UNKNOWN else whole_word(word, "number")


def _type(word: Word) -> LinkType | None:
    if word.text not in TYPES and word.text not in _UNKNOWN:
        raise word.error(f"{word.text[:60]!r} is no type of a link")
    return TYPES.get(word.text)


def _status(word: Word) -> str:
    if word.text not in ("ENABLED", "DISABLED", "N/A"):
        raise word.error(f"{word.text[:60]!r} is neither ENABLED nor DISABLED")
    return word.text


def _speed(word: Word) -> float | None:
    result = _range(word.text)
    if result is None and word.text not in _UNKNOWN:
        raise word.error(f"{word.text[:60]!r} is no range of bandwidth")
    return result


def _range(text: str) -> float | None:
    """Upper end of ``min-max`` in MB/s, as GB/s; 0-0 is unknown."""
    match = _RANGE.fullmatch(text)
    return int(match[2]) / 1000 if match and int(match[2]) else None


def _entries(document: Document) -> list[Any]:
    value = document.value
    for key in ("gpu_data", "topology"):
        value = value.get(key, value) if isinstance(value, dict) else value
    return value if isinstance(value, list) else []


def parse_json(document: Document) -> NodeTopology:
    """Raises FormatError."""
    gpus: dict[int, str] = {}
    for entry in _entries(document):
        if not isinstance(entry, dict) or not isinstance(entry.get("links"), list):
            raise document.error(f"GPU {len(gpus)} has no list of links")
        index = whole(entry.get("gpu"), "the number of a GPU", document.line, 4095)
        bdf = text_of(entry.get("bdf")).lower()
        if index is None or index in gpus or (bdf and (bdf in gpus.values() or not _BDF.fullmatch(bdf))):
            raise document.error(
                f"GPU {entry.get('gpu')!r} at {str(entry.get('bdf'))[:40]!r} stands twice or is not named"
            )
        gpus[index] = bdf
    if sorted(gpus) != list(range(len(gpus))) and len(gpus) > 1:
        raise document.error(f"the GPUs are {sorted(gpus)}: one is missing")
    links_by_pair: dict[tuple[int, int], tuple[Any, ...]] = {}
    for entry in _entries(document):
        _links_of(entry, gpus, links_by_pair, document)
    return _of_pairs(gpus, links_by_pair)


def _links_of(
    item: Mapping[str, Any],
    gpus: Mapping[int, str],
    links_by_pair: dict[tuple[int, int], tuple[Any, ...]],
    document: Document,
) -> None:
    source = int(item["gpu"])
    targets = set()
    for link in item["links"]:
        target = whole(link.get("gpu"), f"a link of GPU {source}", document.line) if isinstance(link, dict) else None
        if target is None or target not in gpus or target in targets:
            raise document.error(f"a link of GPU {source} leads to no GPU here, or a second one to the same")
        if gpus[target] and text_of(link.get("bdf")).lower() not in ("", gpus[target]):
            raise document.error(f"GPU {target} has two addresses")
        targets.add(target)
        properties = _properties(link, source, target, document)
        if source == target:
            if properties[0] not in ("SELF", None):
                raise document.error(f"GPU {source} is linked to itself by {properties[0]!r}")
            continue
        pair = (min(source, target), max(source, target))
        if links_by_pair.setdefault(pair, properties) != properties:
            raise document.error(
                f"GPU {pair[0]} to GPU {pair[1]} is {links_by_pair[pair]} one way and {properties} the other"
            )
    if targets != set(gpus):
        missing = min(set(gpus) - targets)
        raise document.error(f"GPU {source} does not say how it is linked to GPU {missing}")


def _properties(link: Mapping[str, Any], source: int, target: int, document: Document) -> tuple[Any, ...]:
    what = f"of GPU {source} to GPU {target}"
    kind, status = link.get("link_type"), link.get("link_status")
    if kind is not None and kind not in ("SELF", *TYPES, *_UNKNOWN):
        raise document.error(f"the link type {what} is {str(kind)[:60]!r}")
    if status is not None and status not in ("ENABLED", "DISABLED", "N/A"):
        raise document.error(f"the link status {what} is {str(status)[:60]!r}")
    speed = str(link.get("bandwidth", "N/A"))
    if speed not in _UNKNOWN and not _RANGE.fullmatch(speed):
        raise document.error(f"the bandwidth {what} is {speed[:60]!r}")
    return (
        kind,
        whole(link.get("weight"), f"the weight {what}", document.line),
        whole(link.get("num_hops"), f"the hops {what}", document.line),
        speed,
        status,
    )


def _of_pairs(gpus: Mapping[int, str], links_by_pair: Mapping[tuple[int, int], tuple[Any, ...]]) -> NodeTopology:
    links, warnings, peers = [], [], []
    for (a, b), (kind, weight, hops, speed, status) in sorted(links_by_pair.items()):
        if kind in TYPES:
            links.append(TopologyLink(a, b, TYPES[kind], None, weight, hops, _range(speed)))
        else:
            warnings.append(f"what links GPU {a} and GPU {b} is unknown to the tool")
        if status is not None:
            peers.append(PeerAccess(a, b, status))
    topology_gpus = tuple([TopologyGpu(index, pci=bdf) for index, bdf in sorted(gpus.items())])
    return NodeTopology(
        "", topology_gpus, tuple(links), (), (), (), f"{TOOL} --json", "amd", tuple(warnings), tuple(peers)
    )


PARSER = TextParser((TOOL,), recognises, parse)
JSON_PARSER = JsonParser((f"{TOOL} --json",), recognises_json, parse_json)
