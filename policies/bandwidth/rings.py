"""How much ring bandwidth the links between a few GPUs carry: packing of Hamiltonian rings."""

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

_EXACT_GPUS = 8
_EPSILON = 1e-6

Capacities = Mapping[tuple[int, int], float]


def ring_gbps(gpus: Sequence[int], capacities: Capacities) -> float:
    """GB/s per direction that each GPU sends into rings over all of ``gpus``; 0 where no ring closes.

    ``capacities`` are GB/s per direction between pairs, both orders. A ring runs in both directions, so that an
    undirected ring of capacity c counts 2c; two GPUs exchange over their link once. Uniform meshes carry all of their
    (k - 1) links, others as many rings as are found (exact up to rounding for up to eight GPUs).
    """
    k = len(gpus)
    if k < 2:
        return 0.0
    links = [capacities.get(pair, 0.0) for pair in itertools.combinations(gpus, 2)]
    if k == 2:
        return links[0]
    if min(links) > 0 and max(links) - min(links) < 0.01 * max(links):
        return (k - 1) * links[0]
    if k > _EXACT_GPUS:
        return 0.0 if _open(gpus, capacities) else min(_degree(one, gpus, capacities) for one in gpus)
    return _packed(k, tuple(round(one, 3) for one in links))


def _degree(gpu: int, gpus: Sequence[int], capacities: Capacities) -> float:
    return sum(capacities.get((gpu, other), 0.0) for other in gpus if other != gpu)


def _open(gpus: Sequence[int], capacities: Capacities) -> bool:
    return any(sum(capacities.get((one, other), 0.0) > 0 for other in gpus if other != one) < 2 for one in gpus)


@lru_cache(maxsize=4096)
def _packed(k: int, links: tuple[float, ...]) -> float:
    """Rings taken one after the other, each time the one whose weakest link has most left, in units of one link; the
    best of a few orders."""
    index = {pair: n for n, pair in enumerate(itertools.combinations(range(k), 2))}
    rings = [
        ring for ring in every_ring(k)
        if all(links[index[pair]] > 0 for pair in ring)
    ]  # fmt: skip
    if not rings:
        return 0.0
    used = [[index[pair] for pair in ring] for ring in rings]
    unit = min(one for one in links if one > 0)
    return max(_greedy(used, links, step) for step in (unit, unit / 2, max(links)))


def _greedy(rings: Sequence[Sequence[int]], links: Sequence[float], step: float) -> float:
    left, total = list(links), 0.0
    while True:
        best = max(rings, key=lambda ring: (min(left[n] for n in ring), sum(left[n] for n in ring)))
        most = min(left[n] for n in best)
        if most <= _EPSILON:
            return 2 * total
        taken = min(most, step)
        total += taken
        for n in best:
            left[n] -= taken


@lru_cache(maxsize=16)
def every_ring(k: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Every undirected ring over 0 .. k-1 once, as its pairs in ascending order."""
    found = []
    for way in itertools.permutations(range(1, k)):
        if way[0] < way[-1]:
            ring = (0, *way)
            pairs = zip(ring, (*ring[1:], 0), strict=True)
            found.append(tuple((min(a, b), max(a, b)) for a, b in pairs))
    return tuple(found)
