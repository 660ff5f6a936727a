"""Good sets of a node with too many of them to look at each: grown from every GPU and improved by swaps, all at once.

They are judged by what bounds rings, the links of the GPU that has fewest in the set, not by what they reach.
"""

from collections.abc import Sequence

import numpy as np

from kopt.topology.sets.link_table import ACROSS, Floats, Ints, LinkTable, Members

_ROUNDS, _IMPROVED = 8, 32
"""Swaps of one set, and sets that are improved by them."""
_SMALL = 1e-4


def grown(table: LinkTable, free: Sequence[int], count: int) -> Members:
    """Sets of ``count`` of the ``free`` rows: by links and by nearness from every GPU, and what swaps make of them."""
    near = (ACROSS - table.far).astype(np.float64)
    links = table.gbps / max(float(table.gbps.max()), 1e-9)
    by_links = _grow(table, free, count, links + _SMALL * near)
    by_nearness = _grow(table, free, count, near + _SMALL * links)
    peeled = _peel(table, free, count)
    every = np.concatenate([by_links, by_nearness, peeled])
    swapped = [_swapped(table, free, array) for array in (by_links, peeled)]
    return np.unique(np.concatenate([every, *swapped]), axis=0)


def neighbours(free: Sequence[int], members: Members) -> Members:
    """Every set that differs from the ``members`` one (a row of memberships) by one swap among the ``free`` rows."""
    inside = np.flatnonzero(members)
    outside = np.array([row for row in free if not members[row]], np.int64)
    array = np.repeat(members[None, :], len(inside) * len(outside), axis=0)
    each = np.arange(len(array))
    array[each, np.repeat(inside, len(outside))] = False
    array[each, np.tile(outside, len(inside))] = True
    return array


def _grow(table: LinkTable, free: Sequence[int], count: int, closeness: Floats) -> Members:
    rows = np.array(sorted(free), np.int64)
    array = np.zeros((len(rows), len(table.gpus)), np.bool_)
    each = np.arange(len(rows))
    array[each, rows] = True
    for _ in range(count - 1):
        score = (array @ closeness)[:, rows]
        score[array[:, rows]] = -np.inf
        array[each, rows[score.argmax(axis=1)]] = True
    return np.unique(array, axis=0)


def _peel(table: LinkTable, free: Sequence[int], count: int) -> Members:
    """All of them without the one with the fewest links, again and again; from every GPU, which stays."""
    rows = np.array(sorted(free), np.int64)
    array = np.zeros((len(rows), len(table.gpus)), np.bool_)
    array[:, rows] = True
    each = np.arange(len(rows))
    for _ in range(len(rows) - count):
        degrees = np.where(array, table.degrees(array), np.inf)
        degrees[each, rows] = np.inf
        array[each, degrees.argmin(axis=1)] = False
    return np.unique(array, axis=0)


def _swapped(table: LinkTable, free: Sequence[int], sets: Members) -> Members:
    """The most promising sets after the best swap of each, as long as one is better."""
    scores = _scores(table, sets)
    array = sets[np.argsort(-scores, kind="stable")[:_IMPROVED]]
    if array.sum() == len(array) * len(free) or not len(array):
        return array
    for _ in range(_ROUNDS):
        before = _scores(table, array)
        after, removed, added = _best_swaps(table, free, array)
        better = np.flatnonzero(after > before + _SMALL * _SMALL)
        if not len(better):
            break
        array[better, removed[better]] = False
        array[better, added[better]] = True
        array = np.unique(array, axis=0)
    return array


def _scores(table: LinkTable, sets: Members) -> Floats:
    """The fewest links of a GPU of the set; among equals the links of all of them."""
    degrees = table.degrees(sets)
    least = np.where(sets, degrees, np.inf).min(axis=1)
    array: Floats = least + _SMALL * np.where(sets, degrees, 0.0).sum(axis=1) / 2
    return array


def _best_swaps(table: LinkTable, free: Sequence[int], sets: Members) -> tuple[Floats, Ints, Ints]:
    """Of each set the score after its best swap, the row that leaves and the one that enters."""
    inside = np.nonzero(sets)[1].reshape(len(sets), -1)
    open_ = np.zeros(sets.shape[1], np.bool_)
    open_[list(free)] = True
    outside = np.nonzero(open_ & ~sets)[1].reshape(len(sets), -1)
    degrees, gbps = table.degrees(sets), table.gbps
    mine, theirs = np.take_along_axis(degrees, inside, 1), np.take_along_axis(degrees, outside, 1)
    among = gbps[inside[:, :, None], inside[:, None, :]]
    towards = gbps[inside[:, :, None], outside[:, None, :]]
    stays = mine[:, :, None] - among
    stays[:, np.arange(inside.shape[1]), np.arange(inside.shape[1])] = np.inf
    # Axes: set, who stays, who leaves, who enters.
    least = (stays[:, :, :, None] + towards[:, :, None, :]).min(axis=1)
    entering = theirs[:, None, :] - towards
    total = mine.sum(axis=1)[:, None, None] / 2 - mine[:, :, None] + entering
    score = (np.minimum(least, entering) + _SMALL * total).reshape(len(sets), -1)
    best = score.argmax(axis=1)
    removed, added = np.divmod(best, outside.shape[1])
    each = np.arange(len(sets))
    return score[each, best], inside[each, removed], outside[each, added]
