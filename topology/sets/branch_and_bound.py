"""Every set whose links may carry so much, found by branch and bound: where that ends early, nothing better was missed.

The bound of a set that is not full yet: no GPU of it gets more than its links to the others so far and its best links
to those that may still come.
"""

from collections.abc import Sequence

import numpy as np

from kopt.topology.sets.link_table import Floats, Ints, LinkTable, Members
from kopt.topology.sets.symmetry import how_many, representatives

_MOST_BRANCHES = 40_000
"""Of all levels together."""
_MOST_LEAVES = 20_000


def all_reaching(table: LinkTable, free: Sequence[int], count: int, gbps: float) -> Members | None:
    """One set of every kind in which each GPU has links of ``gbps`` GB/s to the others at least; None where looking for
    them takes too long. Twins of a set's GPUs give the same set."""
    rows = _core(table, sorted(free), count, gbps)
    if len(rows) < count:
        return np.zeros((0, len(table.gpus)), np.bool_)
    if how_many(table, rows.tolist(), count) <= _MOST_LEAVES:
        sets = representatives(table, rows.tolist(), count)
    else:
        branched = _branched(table, rows, count, gbps)
        if branched is None:
            return None
        sets = branched
    array: Members = sets[np.where(sets, table.degrees(sets), np.inf).min(axis=1) >= gbps]
    return array


def _core(table: LinkTable, rows: Sequence[int], count: int, gbps: float) -> Ints:
    """GPUs without those that have too few links to those that are left."""
    kept = np.array(rows, np.int64)
    while len(kept) >= count:
        among = np.sort(table.gbps[np.ix_(kept, kept)], axis=1)[:, ::-1]
        enough = among[:, : count - 1].sum(axis=1) >= gbps
        if enough.all():
            break
        kept = kept[enough]
    return kept


def _branched(table: LinkTable, rows: Ints, count: int, gbps: float) -> Members | None:
    """Sets level by level in ascending order of rows, without those that can no longer get there."""
    links, many = table.gbps[np.ix_(rows, rows)], len(rows)
    still = _still_to_come(links, count)
    before = _twin_before(table.twin[rows])
    sets, last = np.eye(many, dtype=np.bool_)[before < 0], np.flatnonzero(before < 0)
    spent = len(sets)
    for level in range(1, count):
        nexts = np.arange(many)[None, :] > last[:, None]
        nexts &= (before < 0) | sets[:, before]
        parent, added = np.nonzero(nexts)
        spent += len(parent)
        if spent > _MOST_BRANCHES:
            return None
        sets = sets[parent]
        sets[np.arange(len(sets)), added] = True
        most = sets @ links + still[count - level - 1][added]
        kept = np.where(sets, most, np.inf).min(axis=1) >= gbps
        sets, last = sets[kept], added[kept]
    array = np.zeros((len(sets), len(table.gpus)), np.bool_)
    array[:, rows] = sets
    return array


def _still_to_come(links: Floats, count: int) -> Floats:
    """The best links of a GPU to any r of those after another one, shape (r from 0, after which, GPU)."""
    many = len(links)
    after = np.arange(many)[None, :] > np.arange(many)[:, None]
    open_ = np.where(after[:, None, :], links[None, :, :], 0.0)
    best = np.sort(open_, axis=2)[:, :, ::-1][:, :, : count - 1].cumsum(axis=2)
    none = np.zeros((1, many, many))
    return np.concatenate([none, np.moveaxis(best, 2, 0)])


def _twin_before(twin: Ints) -> Ints:
    """Of each GPU the twin right before it, -1 for none: twins are taken in ascending order."""
    array = np.full(len(twin), -1, np.int64)
    last_of: dict[int, int] = {}
    for index, item in enumerate(twin.tolist()):
        array[index] = last_of.get(item, -1)
        last_of[item] = index
    return array
