"""Cluster models of NVIDIA's topograph: a tree of switches, and blocks of nodes below them.

YAML is decoded by the caller; this takes the mapping. Names of nodes are host lists: ``node[01-04,07]``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopt.core.hardware.fabric import Cable, Fabric, FabricHost, FabricSwitch
from kopt.formats.topology.parser import YamlParser
from kopt.formats.topology.text import FormatError, Source

TOOL = "topograph model"

_SECTION = re.compile(r"(switches|blocks):\s*(?:#.*)?$")
_LINE = re.compile(r"\s|#|- |-$|[A-Za-z_][\w-]*:(?:\s|$)")
_LIST = re.compile(r"([^\[\],\s]*)\[([\d,\-]+)\]([^\[\],\s]*)$")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?$")
_MOST = 100_000
_DOMAIN = re.compile(r".*/domain$|.*nvlink.*", re.IGNORECASE)


def recognises(source: Source) -> bool:
    return {match[1] for _, match in source.matching(_SECTION)} == {"switches", "blocks"}


def document(source: Source) -> str:
    """The lines of the model, without messages around them."""
    start = next((n for n, line in enumerate(source.lines) if _SECTION.match(line.text)), 0)
    end = start
    while end < len(source.lines) and (not source.lines[end] or _LINE.match(source.lines[end].text)):
        end += 1
    return "\n".join([""] * start + [line.text for line in source.lines[start:end]]) + "\n"


def parse(model: Any) -> Fabric:
    """Raises FormatError, also for a switch that hangs below two others and for a node in two blocks."""
    if not isinstance(model, Mapping) or not isinstance(model.get("switches"), Mapping):
        raise FormatError("the model has no switches")
    blocks = model.get("blocks")
    if not isinstance(blocks, list) or not blocks:
        raise FormatError("the model has no blocks")
    switches, cables, parents = _switches(model["switches"])
    hosts: dict[str, FabricHost] = {}
    block_switches: set[str] = set()
    for block in blocks:
        switch = _name(block.get("switch") if isinstance(block, Mapping) else None, "a block's switch")
        if switch in block_switches or (parents and switch not in switches):
            raise FormatError(f"a block is below {switch!r}, which is no switch of the model or has one already")
        block_switches.add(switch)
        switches.setdefault(switch, FabricSwitch(switch, switch))
        domain = _domain(block.get("annotations"))
        for name in _nodes(block.get("nodes"), switch):
            if name in hosts or name in switches or len(hosts) >= _MOST:
                raise FormatError(f"the node {name!r} stands in two blocks, or there are too many")
            hosts[name] = FabricHost(name, name, name, domain)
            cables.append(Cable(switch, name))
    _check_roots(switches, parents)
    unknown = sorted(str(key)[:40] for key in set(model) - {"switches", "blocks"})
    warnings = (f"left out: {', '.join(unknown)}",) if unknown else ()
    return Fabric(TOOL, tuple(switches.values()), tuple(hosts.values()), tuple(cables), warnings)


def _switches(tree: Mapping[str, Any]) -> tuple[dict[str, FabricSwitch], list[Cable], dict[str, str]]:
    fabric_switches_by_name: dict[str, FabricSwitch] = {}
    cables: list[Cable] = []
    parents: dict[str, str] = {}
    for key, value in tree.items():
        name = _name(key, "a switch")
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise FormatError(f"the switch {name!r} is no mapping")
        labels = value.get("labels") or {}
        children = value.get("switches") or []
        if not isinstance(labels, Mapping) or not isinstance(children, list):
            raise FormatError(f"labels or switches of {name!r} are not what they should be")
        fabric_switches_by_name[name] = FabricSwitch(
            name, name, None, tuple((str(k), str(v)) for k, v in labels.items())
        )
        for child in children:
            below = _name(child, f"a switch below {name!r}")
            if below in parents or below == name:
                raise FormatError(f"the switch {below!r} hangs below {parents.get(below, name)!r} and {name!r}")
            parents[below] = name
            cables.append(Cable(name, below))
    for below in parents:
        fabric_switches_by_name.setdefault(below, FabricSwitch(below, below))
    return fabric_switches_by_name, cables, parents


def _check_roots(switches: Mapping[str, FabricSwitch], parents: Mapping[str, str]) -> None:
    for name in switches:
        steps, above = 0, name
        while above in parents:
            above, steps = parents[above], steps + 1
            if steps > 64:
                raise FormatError(f"the switches around {name!r} hang in a circle, or too deep")


def _name(value: Any, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip() or len(str(value)) > 253:
        raise FormatError(f"{what} is {str(value)[:40]!r}, not a name")
    return str(value)


def _domain(annotations: Any) -> str:
    if not isinstance(annotations, Mapping):
        return ""
    return next((str(value) for key, value in annotations.items() if _DOMAIN.match(str(key))), "")


def _nodes(value: Any, switch: str) -> Iterator[str]:
    if not isinstance(value, list) or not value:
        raise FormatError(f"the block of {switch!r} has no list of nodes")
    for item in value:
        name = _name(item, f"a node of {switch!r}")
        match = _LIST.fullmatch(name)
        if match is None:
            if re.search(r"[\[\],\s]", name):
                raise FormatError(f"{name[:60]!r} is no list of hosts")
            yield name
            continue
        for part in match[2].split(","):
            yield from (f"{match[1]}{number}{match[3]}" for number in _numbers(part, name))


def _numbers(part: str, name: str) -> Iterator[str]:
    match = _RANGE.fullmatch(part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or not first <= last < first + _MOST:
        raise FormatError(f"{name[:60]!r} is no list of hosts")
    yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


PARSER = YamlParser((TOOL,), recognises, document, parse)
