"""GPUs of a node that may be swapped with one another without changing anything: sets of them need one look only."""

from collections.abc import Sequence

import numpy as np

from kopt.policies.bandwidth.graph import DeviceGraph
from kopt.policies.topology.table import Ints, LinkTable, Members, table_of


def twins(graph: DeviceGraph) -> tuple[tuple[int, ...], ...]:
    """The node's GPUs in classes of twins, in the order of their lowest index."""
    table = table_of(graph)
    return tuple(
        tuple(table.gpus[n] for n in np.flatnonzero(table.twin == one)) for one in range(int(table.twin.max()) + 1)
    )


def how_many(table: LinkTable, free: Sequence[int], count: int) -> int:
    """How many kinds of sets of ``count`` there are among the ``free`` rows of the table."""
    ways = [1] + [0] * count
    for size in np.bincount(table.twin[list(free)]).tolist():
        ways = [sum(ways[max(0, n - size) : n + 1]) for n in range(count + 1)]
    return ways[count]


def representatives(table: LinkTable, free: Sequence[int], count: int) -> Members:
    """One set of ``count`` free GPUs of every kind there is, each of the lowest indexes."""
    rows = np.array(sorted(free), np.int64)
    sizes = np.bincount(table.twin[rows], minlength=int(table.twin.max()) + 1)
    shares = _shares(sizes.tolist(), count)
    rank = np.array([int((table.twin[rows[:n]] == table.twin[row]).sum()) for n, row in enumerate(rows)], np.int64)
    found = np.zeros((len(shares), len(table.gpus)), np.bool_)
    found[:, rows] = shares[:, table.twin[rows]] > rank
    return found


def shares_of(table: LinkTable, members: Members) -> Ints:
    """How many of each class are in each set, shape (sets, classes)."""
    classes = np.eye(int(table.twin.max()) + 1, dtype=np.int64)[table.twin]
    found: Ints = members.astype(np.int64) @ classes
    return found


def _shares(sizes: Sequence[int], count: int) -> Ints:
    """Every way of taking ``count`` from classes of these sizes, shape (ways, classes)."""
    found, left = np.zeros((1, 0), np.int64), np.array([count], np.int64)
    for place, size in enumerate(sizes):
        rest = sum(sizes[place + 1 :])
        taken = np.arange(size, -1, -1)
        after = left[:, None] - taken
        way, which = np.nonzero((after >= 0) & (after <= rest))
        found = np.column_stack((found[way], taken[which]))
        left = after[way, which]
    return found
