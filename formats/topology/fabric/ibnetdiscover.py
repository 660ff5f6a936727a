"""``ibnetdiscover``: the switches of an InfiniBand fabric, the cards in its nodes, and the cables, told from both ends.

Source: infiniband-diags' ``ibnetdiscover.c``. There is no last line; a cut shows in cables whose other end is missing.
"""

import re

from kopt.core.hardware.fabric import Cable, Fabric, FabricHost, FabricSwitch
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import Line, Source, unbroken

TOOL = "ibnetdiscover"

_NODE = re.compile(r'\s*(Switch|Ca|Rt)\s+(\d{1,4})\s+"([SHR]-[0-9a-f]{1,16})"\s*#\s*"(.*?)"')
_NODE_LIKE = re.compile(r"\s*(?:Switch|Ca|Rt)\s+\d")
_PORT = re.compile(
    r'\s*\[(\d{1,4})\](?:\[ext \d+\])?(?:\([0-9a-f]{1,16}\))?\s+"([SHR]-[0-9a-f]{1,16})"\[(\d{1,4})\](?:\[ext \d+\])?'
    r"(?:\([0-9a-f]{1,16}\))?\s*#.*?(?:\b(\d{1,2})x([A-Z]+\d*))?\s*$"
)
_PORT_LIKE = re.compile(r"\s*\[\d+\]")
_MOST_NODES = 200_000


def recognises(source: Source) -> bool:
    return source.has(_NODE)


def parse(source: Source) -> Fabric:
    """Raises FormatError."""
    nodes: dict[str, tuple[str, int, str, Line]] = {}
    ends: dict[tuple[str, int], tuple[str, int, str, str, Line]] = {}
    key, last = "", source.lines[0]
    for line in source.lines:
        if _NODE_LIKE.match(line.text):
            node = _NODE.match(line.text)
            if node is None or node[3] in nodes or len(nodes) >= _MOST_NODES:
                raise line.error("this is no whole line of a switch or a card, or one that stands twice")
            key = node[3]
            nodes[key] = (node[1], int(node[2]), node[4], line)
        elif _PORT_LIKE.match(line.text) and key:
            port = _PORT.match(line.text)
            if port is None:
                raise line.error("this is no whole line of a port")
            number = int(port[1])
            if (key, number) in ends or not 0 <= number <= nodes[key][1]:
                raise line.error(f"port {number} of {key} stands twice, or is one too many")
            ends[key, number] = (port[2], int(port[3]), port[4] or "", port[5] or "", line)
        else:
            continue
        last = line
    unbroken(last, "the last port")
    return Fabric(TOOL, *_devices(nodes), tuple(_cables(nodes, ends)))


def _devices(nodes: dict[str, tuple[str, int, str, Line]]) -> tuple[tuple[FabricSwitch, ...], tuple[FabricHost, ...]]:
    switches = [FabricSwitch(key, name, ports) for key, (kind, ports, name, _) in nodes.items() if kind != "Ca"]
    hosts = [FabricHost(key, name, _node_of(name)) for key, (kind, _, name, _) in nodes.items() if kind == "Ca"]
    return tuple(switches), tuple(hosts)


def _node_of(description: str) -> str:
    """Cards that a node has named describe themselves as ``node card``; others by their product."""
    tokens = description.split()
    is_named = len(tokens) == 2 and re.match(r"(?:mlx|HCA-|hfi|ib|qib|bnxt|roce)", tokens[1])
    return tokens[0] if is_named else ""


def _cables(
    nodes: dict[str, tuple[str, int, str, Line]], ends: dict[tuple[str, int], tuple[str, int, str, str, Line]]
) -> list[Cable]:
    cables = []
    joined = {key for key, _ in ends}
    for key, (_, _, _, line) in nodes.items():
        if key not in joined:
            raise line.error(f"{key} has no port: lines are missing")
    for (a, a_port), (b, b_port, lanes, speed, line) in ends.items():
        if b not in nodes:
            raise line.error(f"a cable leads to {b}, which is not in the output: it is cut")
        back = ends.get((b, b_port))
        if back is None or back[:2] != (a, a_port) or back[2:4] != (lanes, speed):
            raise line.error(f"the cable from {a}[{a_port}] to {b}[{b_port}] is not told alike from there")
        if (a, a_port) < (b, b_port):
            cables.append(Cable(a, b, a_port, b_port, int(lanes) if lanes else None, speed))
    return cables


PARSER = TextParser((TOOL,), recognises, parse)
