"""The best set of so many free GPUs of one node.

Among sets as fast as the fastest one, that whose ring has the best weakest hop, then that on the fewest NUMA nodes,
then that with the most links of its own, then that which leaves the fastest set for the next request of its size, then
the one of the lowest indexes, so that one question always has one answer.
Every set is looked at, one for all that differ by twins only; where there are too many of them, sets are grown from
every GPU and improved by single swaps, and the answer says that it may not be the best.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from kopt.core.reason import Reason
from kopt.policies.bandwidth.graph import Device, DeviceGraph, DeviceKind
from kopt.policies.bandwidth.rings import every_ring
from kopt.policies.topology.symmetry import Classes, how_many, representatives, twins

Value = Callable[[tuple[int, ...]], float]
"""GB/s that a set of GPUs, in ascending order, reaches."""
_MOST_SETS = 5_000
_MOST_RINGED, _MOST_IN_RING = 128, 7
"""Sets whose rings are looked at, and GPUs in them."""
_MOST_ALIKE = 64
_AS_FAST = 0.99
"""Of the fastest: closer than any prediction tells apart."""


@dataclass(frozen=True)
class SetChoice:
    """``gpus`` reach ``gbps``; ``rest_gbps`` is what the next request of this size would, 0 where none fits.

    ``slowest_gbps`` is the worst set that could have been taken, ``exact`` whether every set was looked at.
    """

    gpus: tuple[int, ...]
    gbps: float
    rest_gbps: float
    slowest_gbps: float
    considered: int
    exact: bool = True

    def reason(self, free: int) -> Reason:
        """Why these."""
        gpus = ", ".join(map(str, self.gpus))
        sentence = f"GPUs {gpus} of {free} free ones reach {self.gbps:.3g} GB/s; the worst set {self.slowest_gbps:.3g}"
        if self.rest_gbps:
            sentence += f"; as many of the rest still {self.rest_gbps:.3g}"
        return Reason("BEST_SET" if self.exact else "GOOD_SET", sentence + ".")


def best_set(graph: DeviceGraph, free: Sequence[int], count: int, value: Value) -> SetChoice | None:
    """The best ``count`` of the ``free`` GPUs by ``value``; None where there are not so many.

    Raises ValueError for a count below one or for GPUs that the node does not have.
    """
    unknown = set(free) - set(graph.gpus)
    if count < 1 or unknown:
        raise ValueError(f"a set of {count} GPUs among {sorted(free)}: the node has {sorted(graph.gpus)}")
    free = tuple(sorted(set(free)))
    if len(free) < count:
        return None
    classes, known = twins(graph), cache(value)
    exact = how_many(classes, free, count) <= _MOST_SETS
    sets = set(representatives(classes, free, count) if exact else _grown(free, count, known))
    fastest = max(map(known, sets))
    near = [one for one in sets if known(one) >= _AS_FAST * fastest]
    ringed = len(near) <= _MOST_RINGED
    order = {
        one: (_worst_hops(graph, one) if ringed else (0, 0), _spread(graph, one), -_linked(graph, one)) for one in near
    }
    best = min(order.values())
    # Of sets that are alike but for their names only the first few are asked what they leave.
    alike = sorted(one for one in near if order[one] == best)[:_MOST_ALIKE]
    rest = {one: _rest(classes, free, one, known, exact=exact) for one in alike}
    chosen = min(alike, key=lambda one: (-round(rest[one], 6), one))
    return SetChoice(chosen, known(chosen), rest[chosen], min(map(known, sets)), len(sets), exact)


def _rest(classes: Classes, free: Sequence[int], taken: Sequence[int], value: Value, *, exact: bool) -> float:
    """What the best set of the same size reaches among those that are left, or the best pair where that is less."""
    left = tuple(gpu for gpu in free if gpu not in taken)
    count = min(len(taken), len(left))
    if count < 2:
        return 0.0
    sets: Iterable[tuple[int, ...]]
    if exact and how_many(classes, left, count) <= _MOST_SETS:
        sets = representatives(classes, left, count)
    else:
        sets = _grown(left, count, value)
    return max(map(value, sets))


def _worst_hops(graph: DeviceGraph, gpus: Sequence[int]) -> tuple[int, int]:
    """Of the best ring through the set: how far its worst hop is (0 by a link, 1 under one bridge, 2 under one NUMA
    node, 3 from one to another), and how many of these there are."""
    if not 2 < len(gpus) <= _MOST_IN_RING:
        return 0, 0
    ways = [graph.way_up(Device(DeviceKind.GPU, gpu)) for gpu in gpus]
    far = {}
    for a, b in combinations(range(len(gpus)), 2):
        shared = set(ways[a][1:]) & set(ways[b][1:])
        bridged = any(one.kind is DeviceKind.PCIE_SWITCH for one in shared)
        linked = graph.between.get((gpus[a], gpus[b])) or {gpus[a], gpus[b]} <= set(graph.switched)
        far[a, b] = 0 if linked else 1 if bridged else 2 if shared else 3
    rings = ([far[hop] for hop in ring] for ring in every_ring(len(gpus)))
    return min((max(hops), hops.count(max(hops))) for hops in rings)


def _linked(graph: DeviceGraph, gpus: Sequence[int]) -> float:
    """GB/s of the direct links within the set."""
    return round(sum(graph.between.get(pair, 0.0) for pair in combinations(gpus, 2)), 3)


def _spread(graph: DeviceGraph, gpus: Sequence[int]) -> int:
    """On how many NUMA nodes the GPUs hang."""
    return len({graph.way_up(Device(DeviceKind.GPU, gpu))[-1] for gpu in gpus})


def _grown(free: Sequence[int], count: int, value: Value) -> Iterable[tuple[int, ...]]:
    """From each GPU a set that takes the best next one until it is full, then the best single swaps."""
    for first in free:
        chosen: tuple[int, ...] = (first,)
        while len(chosen) < count:
            chosen = max((_with(chosen, gpu) for gpu in free if gpu not in chosen), key=value)
        yield _improved(free, chosen, value)


def _improved(free: Sequence[int], chosen: tuple[int, ...], value: Value) -> tuple[int, ...]:
    while True:
        rest = [gpu for gpu in free if gpu not in chosen]
        swaps = [_with(tuple(one for one in chosen if one != out), gpu) for out in chosen for gpu in rest]
        better = max(swaps, key=value, default=chosen)
        if value(better) <= value(chosen):
            return chosen
        chosen = better


def _with(chosen: Sequence[int], gpu: int) -> tuple[int, ...]:
    return tuple(sorted((*chosen, gpu)))
