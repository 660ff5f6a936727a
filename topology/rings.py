"""How much ring bandwidth the links between a few GPUs carry: packing of Hamiltonian rings."""

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_EXACT_GPUS = 8
_PARTS = 2000
"""Of one GB/s: what is told of links and half of it are whole numbers, so that one set has one answer in any order."""
_FINE, _COARSE, _MANY_RINGS = 16, 4, 7
"""Parts of the slowest link that rings take last, with few GPUs and with so many."""
_MOST_STEPS = 64
"""In which the fastest link is used up; no node's links differ more."""

Ints = NDArray[np.int64]

Capacities = Mapping[tuple[int, int], float]


def ring_gbps(gpus: Sequence[int], capacities: Capacities) -> float:
    """GB/s per direction that each GPU sends into rings over all of ``gpus``; 0 where no ring closes.

    ``capacities`` are GB/s per direction between pairs, both orders. A ring runs in both directions, so that an
    undirected ring of capacity c counts 2c; two GPUs exchange over their link once. Uniform meshes carry all of their
    (k - 1) links, others as many rings as are found (at worst a tenth less than there are, up to eight GPUs).
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
        return 0.0 if _open(gpus, capacities) else min(_degree(gpu, gpus, capacities) for gpu in gpus)
    return _packed(k, tuple(round(link, 3) for link in links))


def _degree(gpu: int, gpus: Sequence[int], capacities: Capacities) -> float:
    return sum(capacities.get((gpu, other), 0.0) for other in gpus if other != gpu)


def _open(gpus: Sequence[int], capacities: Capacities) -> bool:
    return any(sum(capacities.get((gpu, other), 0.0) > 0 for other in gpus if other != gpu) < 2 for gpu in gpus)


@lru_cache(maxsize=4096)
def _packed(k: int, links: tuple[float, ...]) -> float:
    """Rings taken one after the other, each time the one whose weakest link has most left, in units of one link; the
    best of a few orders, or the first that leaves some GPU without a link to give."""
    if k == 3:
        return 2 * min(links)
    remaining = np.array([round(link * _PARTS) for link in links], np.int64)
    pairs, rings = _pairs(k), ring_links(k)
    rings = rings[(remaining[rings] > 0).all(axis=1)]
    if not len(rings):
        return 0.0
    most = min(int(remaining[(pairs == gpu).any(axis=1)].sum()) for gpu in range(k))
    largest, unit = int(remaining.max()), max(int(remaining[remaining > 0].min()), int(remaining.max()) // _MOST_STEPS)
    result = 0
    fine = max(1, unit // (_FINE if k < _MANY_RINGS else _COARSE))
    for step, sparing in ((unit, False), (max(1, unit // 2), False), (largest, False), (fine, True)):
        result = max(result, _greedy(rings, remaining, step, sparing=sparing))
        if 2 * result >= most:
            break
    return 2 * result / _PARTS


def _greedy(rings: Ints, links: Ints, step: int, *, sparing: bool) -> int:
    """Each time the ring whose weakest link has most left, of these the one whose links have most; or the ring that
    spares scarce links best, which comes close to the most there is where steps are small."""
    remaining, total, largest = links.copy(), 0, float(links.max())
    while True:
        carried = remaining[rings]
        weakest = carried.min(axis=1)
        most = int(weakest.max())
        if most <= 0:
            return total
        near = np.flatnonzero(weakest >= (min(step, most) if sparing else most))
        worth = -((largest / carried[near]) ** 3).sum(axis=1) if sparing else carried[near].sum(axis=1)
        best = rings[near[worth.argmax()]]
        used = min(most, step)
        total += used
        remaining[best] -= used
        rings = rings[weakest > 0]


@lru_cache(maxsize=16)
def ring_links(k: int) -> Ints:
    """Every undirected ring over 0 .. k-1 once, shape (rings, k): places of its links in ``combinations(range(k), 2)``.

    There are (k - 1)! / 2 of them."""
    index = {pair: n for n, pair in enumerate(itertools.combinations(range(k), 2))}
    return np.array([[index[pair] for pair in ring] for ring in every_ring(k)], np.int64)


@lru_cache(maxsize=16)
def _pairs(k: int) -> Ints:
    return np.array(list(itertools.combinations(range(k), 2)), np.int64)


@lru_cache(maxsize=16)
def every_ring(k: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Every undirected ring over 0 .. k-1 once, as its pairs in ascending order."""
    result = []
    for way in itertools.permutations(range(1, k)):
        if way[0] < way[-1]:
            ring = (0, *way)
            pairs = zip(ring, (*ring[1:], 0), strict=True)
            result.append(tuple((min(a, b), max(a, b)) for a, b in pairs))
    return tuple(result)
