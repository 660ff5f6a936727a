"""GPUs of a node that may change places without changing anything, two of them or all: they need one look only."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from kopt.topology.sets.link_table import Ints, LinkTable, Members

_MOST_TURNED, _MOST_TURNS, _MOST_TRIED = 16, 48, 4_000
"""GPUs of a node that is turned, ways of turning it, and steps in which they are sought."""
_turns: "WeakKeyDictionary[LinkTable, Ints]" = WeakKeyDictionary()


def canonical(table: LinkTable, free: Sequence[int]) -> tuple[tuple[int, ...], Mapping[int, int]]:
    """Free GPUs that lie as these do, the same ones for all that the node can be turned into, and which is which."""
    row_of = {gpu: row for row, gpu in enumerate(table.gpus)}
    if not set(free) <= set(row_of) or not free:
        return tuple(sorted(set(free))), {gpu: gpu for gpu in free}
    if table not in _turns:
        _turns[table] = turns(table)
    rows = sorted({row_of[gpu] for gpu in free})
    images = np.sort(_turns[table][:, rows], axis=1)
    turn = _turns[table][np.lexsort(images.T[::-1])[0]]
    return (
        tuple(table.gpus[row] for row in np.sort(turn[rows]).tolist()),
        {table.gpus[int(turn[row])]: table.gpus[row] for row in rows},
    )


def turns(table: LinkTable) -> Ints:
    """Ways to put each GPU in another's place that leave every wire as it was, itself first; shape (ways, GPUs).

    Not all of them where there are many, and that of large nodes only."""
    count = len(table.gpus)
    itself = np.arange(count)
    if count > _MOST_TURNED:
        return itself[None, :]
    kind = np.stack([table.switched, table.bus.astype(np.float64)])
    result: list[list[int]] = []
    tried = [list[int]()]
    for _ in range(_MOST_TRIED):
        if not tried or len(result) >= _MOST_TURNS:
            break
        now = tried.pop()
        if len(now) == count:
            result.append(now)
            continue
        row = len(now)
        like = (kind == kind[:, [row]]).all(axis=0)
        like &= (table.gbps[:, now] == table.gbps[row, :row]).all(axis=1)
        like &= (table.far[:, now] == table.far[row, :row]).all(axis=1)
        like[now] = False
        tried += [[*now, other] for other in np.flatnonzero(like)[::-1].tolist()]
    return np.array([itself.tolist(), *(item for item in result if item != itself.tolist())], np.int64)


def how_many(table: LinkTable, free: Sequence[int], count: int) -> int:
    """How many kinds of sets of ``count`` there are among the ``free`` rows of the table."""
    ways = [1] + [0] * count
    for size in np.bincount(table.twin[list(free)]).tolist():
        ways = [sum(ways[max(0, n - size) : n + 1]) for n in range(count + 1)]
    return ways[count]


def representatives(table: LinkTable, free: Sequence[int], count: int) -> Members:
    """One set of ``count`` free GPUs of every kind there is, each of the lowest indexes."""
    rows = np.array(sorted(free), np.int64)
    _, class_of, sizes = np.unique(table.twin[rows], return_inverse=True, return_counts=True)
    shares = _shares(tuple(sizes.tolist()), count)
    rank = np.tril(class_of[:, None] == class_of, -1).sum(axis=1)
    array = np.zeros((len(shares), len(table.gpus)), np.bool_)
    array[:, rows] = shares[:, class_of] > rank
    return array


def shares_of(table: LinkTable, members: Members) -> Ints:
    """How many of each class are in each set, shape (sets, classes)."""
    classes = np.eye(int(table.twin.max()) + 1, dtype=np.int64)[table.twin]
    array: Ints = members.astype(np.int64) @ classes
    return array


@lru_cache(maxsize=128)
def _shares(sizes: tuple[int, ...], count: int) -> Ints:
    """Every way of taking ``count`` from classes of these sizes, shape (ways, classes)."""
    array, remaining = np.zeros((1, 0), np.int64), np.array([count], np.int64)
    for number, size in enumerate(sizes):
        rest = sum(sizes[number + 1 :])
        counts = np.arange(size, -1, -1)
        after = remaining[:, None] - counts
        way, which = np.nonzero((after >= 0) & (after <= rest))
        array = np.column_stack((array[way], counts[which]))
        remaining = after[way, which]
    return array
