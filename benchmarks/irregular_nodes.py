"""Nodes whose GPUs are all different, 16 and 64 of them: what chosen sets carry, and how long choosing takes.

Wires are drawn at random; sockets of eight GPUs. On 16 GPUs, and for three or four of 64, the best set is found by the
reference: all sets in the order of the wires that the worst off GPU of a set has, which none can carry more than, until
no other can be better. For eight of 64 (four billion sets) one set is linked so well that any other has a GPU with
fewer wires than it carries.
"""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from benchmarks.link_capacity import ring_capacity_gbps
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.topology.from_node import machine_from
from kopt.topology.graph import DeviceGraph
from kopt.topology.sets.within_node import choose_gpus

_GOAL_MS = 200
_SIZES = (2, 3, 4, 6, 8, 12, 16, 32)
_SOCKET = 8


def irregular(
    gpus: int, chance: random.Random, linked: float, wires: Sequence[int] = (1, 1, 2, 4), best: Sequence[int] = ()
) -> NodeTopology:
    """A share ``linked`` of all pairs has one of so many ``wires``; pairs within ``best`` have most."""
    links = []
    for a, b in combinations(range(gpus), 2):
        if {a, b} <= set(best):
            links.append(TopologyLink(a, b, LinkType.NVLINK, max(wires)))
        elif chance.random() < linked:
            links.append(TopologyLink(a, b, LinkType.NVLINK, 1 if best else chance.choice(wires)))
        else:
            links.append(TopologyLink(a, b, LinkType.NODE if a // _SOCKET == b // _SOCKET else LinkType.SYS))
    homes = tuple(TopologyGpu(index, "V100-SXM2-16GB", numa=index // _SOCKET) for index in range(gpus))
    return NodeTopology("node", homes, tuple(links), vendor="nvidia")


def shares() -> Iterator[tuple[str, float]]:
    """The name of a kind of question, and the share of the best set's capacity that the chosen one has."""
    chance = random.Random(7)
    for _ in range(8):
        machine = machine_from(irregular(16, chance, chance.choice([0.25, 0.4, 0.6])))
        for count in (3, 4, 5, 6):
            free = sorted(chance.sample(range(16), chance.randint(count + 2, 16)))
            choice = choose_gpus(machine, free, count)
            assert choice is not None
            best = _best_capacity(machine.node, free, count)
            yield "16 irregular", ring_capacity_gbps(machine.node, choice.gpus) / best
    for _ in range(3):
        machine = machine_from(irregular(64, chance, 0.2))
        for count in (3, 4):
            choice = choose_gpus(machine, range(64), count)
            assert choice is not None
            best = _best_capacity(machine.node, range(64), count)
            yield "64 irregular", ring_capacity_gbps(machine.node, choice.gpus) / best
    for _ in range(6):
        planted = sorted(chance.sample(range(64), 8))
        machine = machine_from(irregular(64, chance, 0.2, best=planted))
        choice = choose_gpus(machine, range(64), 8)
        assert choice is not None
        yield "64 irregular", _of_eight(machine.node, choice.gpus) / _of_eight(machine.node, planted)


def times() -> str:
    """CPU milliseconds for sets of every size of 16 and of 64 GPUs, nothing known before."""
    told = []
    for gpus in (16, 64):
        chance, took_ms = random.Random(9), []
        for number in range(96):
            machine = machine_from(irregular(gpus, chance, (0.0, 0.1, 0.2, 0.4, 0.95)[number % 5]))
            count = min(gpus, _SIZES[number % len(_SIZES)])
            began = time.process_time()
            choose_gpus(machine, range(gpus), count)
            took_ms.append(1000 * (time.process_time() - began))
        tail = np.quantile(took_ms, 0.99)
        told.append(
            f"{gpus} irregular GPUs: median {np.median(took_ms):.0f} ms, P99 {tail:.0f} CPU ms (goal {_GOAL_MS})"
        )
    return "; ".join(told) + "."


def _best_capacity(graph: DeviceGraph, free: Sequence[int], count: int) -> float:
    """Of all sets."""
    most = sorted(((_most(graph, one), one) for one in combinations(free, count)), reverse=True)
    best = 0.0
    for limit, one in most:
        if limit <= best:
            break
        best = max(best, ring_capacity_gbps(graph, one))
    return best


def _most(graph: DeviceGraph, gpus: Sequence[int]) -> float:
    """GB/s of the links of the GPU that has fewest, or of its bus where links join them in no ring."""
    bus = max(edge.total_gbps for edge in graph.parents.values())
    return min(sum(graph.between.get((a, b), 0.0) for b in gpus if b != a) for a in gpus) or bus


def _of_eight(graph: DeviceGraph, gpus: Sequence[int]) -> float:
    """What eight GPUs carry, the full mesh by what it is: each GPU's wires."""
    wires = {graph.between.get(pair, 0.0) for pair in combinations(gpus, 2)}
    return 7 * wires.pop() if len(wires) == 1 else ring_capacity_gbps(graph, gpus)
