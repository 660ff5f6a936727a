"""What the wires between a set of GPUs carry at most, whatever a library makes of it: the reference for placement.

A linear programme spreads traffic over every ring through the set so that no wire carries more than it can in either
direction. Where the GPUs' own links close no ring, the best single ring goes hop by hop over those and the way through
PCIe. It shares no code with the analytic layer and knows nothing of algorithms, protocols or latency.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, permutations

import numpy as np
from scipy.optimize import linprog

from kopt.topology.graph import Device, DeviceGraph, DeviceKind

_SOCKET_GBPS = 16.0
"""Between two NUMA nodes where the graph names no such wire."""


def ring_capacity_gbps(graph: DeviceGraph, gpus: Sequence[int]) -> float:
    """GB/s per direction that each GPU of the set can pass on around rings."""
    rings = [tuple(pairwise((gpus[0], *way, gpus[0]))) for way in permutations(gpus[1:])] if len(gpus) > 1 else []
    direct = _carried(graph, rings, ("direct",))
    return direct or max((_carried(graph, [ring], ("direct", "pcie")) for ring in rings), default=0.0)


Hop = tuple[int, int]


def _carried(graph: DeviceGraph, rings: Sequence[Sequence[Hop]], kinds: Sequence[str]) -> float:
    """What all rings together carry."""
    hops = sorted({hop for ring in rings for hop in ring})
    if not rings:
        return 0.0
    routes = [(hop, kind) for hop in hops for kind in kinds]
    # Columns: what each ring carries, then what each hop sends by each route.
    balance = np.zeros((len(hops), len(rings) + len(routes)))
    place = {hop: n for n, hop in enumerate(hops)}
    for column, ring in enumerate(rings):
        for hop in ring:
            balance[place[hop], column] = 1.0
    wires: dict[object, list[int]] = defaultdict(list)
    room: dict[object, float] = {}
    for offset, (hop, kind) in enumerate(routes):
        column = len(rings) + offset
        balance[place[hop], column] = -1.0
        for wire, gbps in _direct(graph, hop) if kind == "direct" else _pcie(graph, hop):
            wires[wire].append(column)
            room[wire] = gbps
    limits = np.zeros((len(wires), balance.shape[1]))
    for row, columns in enumerate(wires.values()):
        limits[row, columns] = 1.0
    gain = np.zeros(balance.shape[1])
    gain[: len(rings)] = -1.0
    found = linprog(gain, limits, [room[wire] for wire in wires], balance, np.zeros(len(hops)), method="highs")
    return float(-found.fun) if found.success else 0.0


def _direct(graph: DeviceGraph, hop: Hop) -> list[tuple[object, float]]:
    """The wires of the GPUs' own links on a hop: from one to the other, or in and out of a link switch."""
    a, b = hop
    if a in graph.switched and b in graph.switched:
        return [(("out", a), graph.switched[a]), (("in", b), graph.switched[b])]
    return [(("direct", hop), graph.between.get(hop, 0.0))]


def _pcie(graph: DeviceGraph, hop: Hop) -> list[tuple[object, float]]:
    """The wires from one GPU up to where the ways meet, and down to the other; between sockets if they do not."""
    up, down = (graph.way_up(Device(DeviceKind.GPU, gpu)) for gpu in hop)
    meeting = next((one for one in up[1:] if one in down[1:]), None)
    found: list[tuple[object, float]] = []
    for way, direction in ((up, "up"), (down, "down")):
        for one in way:
            if one == meeting or one not in graph.parents:
                break
            found.append(((direction, one), graph.parents[one].total_gbps))
    if meeting is None:
        found.append((("socket", up[-1], down[-1]), _SOCKET_GBPS))
    return found
