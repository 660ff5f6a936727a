"""The best set of so many free GPUs of one node.

Among sets as fast as the fastest one, that whose ring has the best weakest hop, then that on the fewest NUMA nodes,
then that with the most links of its own, then that which leaves the fastest set for the next request of its size, then
the one of the lowest indexes, so that one question always has one answer.
Of all sets, one for those that differ by twins only, those are asked that may still be fast by their links
(``pool.py``). Where there are too many, a good set is grown and improved by swaps (``growing.py``), and all that may
reach as much are sought by branch and bound (``branching.py``); the answer says whether that came to its end. Work is
limited by counts of sets, never by time, so that it has the same answer everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from kopt.core.reason import Reason
from kopt.topology.graph import DeviceGraph
from kopt.topology.rings import ring_links
from kopt.topology.sets.branch_and_bound import all_reaching
from kopt.topology.sets.candidates import AS_FAST, Limit, Pool, SetEvaluator, Value
from kopt.topology.sets.greedy import grown, neighbours
from kopt.topology.sets.link_table import LinkTable, table_of
from kopt.topology.sets.symmetry import how_many, representatives, shares_of

_MOST_SETS = 20_000
_MOST_RINGED, _MOST_IN_RING = 128, 7
"""Sets whose rings are looked at, and GPUs in them."""
_MOST_ALIKE, _MOST_ALIKE_OF_MANY = 64, 4
_MOST_MOVES = 4
_REST_WORK = 200.0


@dataclass(frozen=True)
class SetChoice:
    """``gpus`` reach ``gbps``; ``rest_gbps`` is what the next request of this size would, 0 where none fits.

    ``slowest_gbps`` is the worst set that could have been taken, the worst that was looked at where there are hundreds;
    ``considered`` is how many were compared, ``exact`` whether no better one can have been missed.
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


def best_set(
    graph: DeviceGraph, free: Sequence[int], count: int, value: Value, limit: Limit | None = None
) -> SetChoice | None:
    """The best ``count`` of the ``free`` GPUs by ``value``; None where there are not so many.

    ``limit`` spares asking for sets whose links are too few. Raises ValueError for a count below one or for GPUs that
    the node does not have.
    """
    unknown = set(free) - set(graph.gpus)
    if count < 1 or unknown:
        raise ValueError(f"a set of {count} GPUs among {sorted(free)}: the node has {sorted(graph.gpus)}")
    if len(set(free)) < count:
        return None
    table, evaluator = table_of(graph), SetEvaluator(value, limit)
    rows = [row for row, gpu in enumerate(table.gpus) if gpu in set(free)]
    every = how_many(table, rows, count) <= _MOST_SETS
    pool = Pool(table, representatives(table, rows, count), evaluator) if every else None
    if pool is None:
        pool, every = _sought(table, rows, count, evaluator)
    near = pool.near()
    exact = every and evaluator.complete
    evaluator.go_on(_REST_WORK)
    order = _order(table, pool, near)
    best = min(order.values())
    # Of sets that are alike but for their names only the first few are asked what they leave.
    most = _MOST_ALIKE if exact else _MOST_ALIKE_OF_MANY
    alike = sorted((index for index in near if order[index] == best), key=pool.gpus)[:most]
    rest = {index: _rest(table, rows, pool, index, evaluator, every=every) for index in alike}
    selected = min(alike, key=lambda index: (-round(rest[index], 6), pool.gpus(index)))
    gbps, slowest = evaluator.value(pool.gpus(selected)) or 0.0, pool.slowest()
    return SetChoice(pool.gpus(selected), gbps, rest[selected], slowest, len(pool.members), exact)


def _sought(table: LinkTable, rows: Sequence[int], count: int, evaluator: SetEvaluator) -> tuple[Pool, bool]:
    """The best sets of too many, and whether they are all that are as fast as the fastest."""
    pool = Pool(table, grown(table, rows, count), evaluator)
    for _ in range(_MOST_MOVES):
        best = max(pool.near(), key=lambda index: evaluator.value(pool.gpus(index)) or 0.0)
        moved = Pool(table, np.concatenate([pool.members, neighbours(rows, pool.members[best])]), evaluator)
        done = moved.fastest() <= pool.fastest()
        pool = moved
        if done:
            break
    near = AS_FAST * pool.fastest()
    needed = evaluator.needed(near, float(table.gbps.sum(axis=1).max()))
    array = all_reaching(table, rows, count, needed) if needed > 0 else None
    if array is None:
        return pool, False
    pool = Pool(table, np.unique(np.concatenate([pool.members, array]), axis=0), evaluator)
    return pool, evaluator.most(0.0) < near


def _rest(
    table: LinkTable, rows: Sequence[int], pool: Pool, selected: int, evaluator: SetEvaluator, *, every: bool
) -> float:
    """What the best set of the same size reaches among those that are left, or all of them where they are fewer."""
    remaining = [row for row in rows if not pool.members[selected, row]]
    count = int(pool.members[selected].sum())
    if min(count, len(remaining)) < 2:
        return 0.0
    if len(remaining) <= count:
        return evaluator.value(tuple(table.gpus[row] for row in remaining)) or 0.0
    open_ = np.zeros((1, len(table.gpus)), np.bool_)
    open_[0, remaining] = True
    result = pool.fastest(shares_of(table, open_)[0])
    return result if every else max(result, Pool(table, grown(table, remaining, count), evaluator).fastest())


def _order(table: LinkTable, pool: Pool, near: Sequence[int]) -> dict[int, tuple[float, ...]]:
    """What orders sets that are equally fast, the best first."""
    sets = [np.flatnonzero(pool.members[index]) for index in near]
    ringed = len(near) <= _MOST_RINGED
    result: dict[int, tuple[float, ...]] = {}
    for index, array in zip(near, sets, strict=True):
        linked = round(float(table.gbps[np.ix_(array, array)].sum()) / 2, 3)
        hops = _worst_hops(table, array.tolist()) if ringed else (0, 0)
        result[index] = (*hops, len(set(table.numa[array].tolist())), -linked)
    return result


def _worst_hops(table: LinkTable, rows: Sequence[int]) -> tuple[int, int]:
    """Of the best ring through the set: how far its worst hop is, and how many of these there are."""
    if not 2 < len(rows) <= _MOST_IN_RING:
        return 0, 0
    far = np.array([table.hops[pair] for pair in combinations(rows, 2)])
    rings = far[ring_links(len(rows))]
    worst = rings.max(axis=1)
    least = int(worst.min())
    return least, int((rings[worst == least] == least).sum(axis=1).min())
