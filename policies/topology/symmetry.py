"""GPUs of a node that may be swapped with one another without changing anything: sets of them need one look only."""

from collections.abc import Iterator, Sequence
from math import comb, prod

from kopt.policies.bandwidth.graph import Device, DeviceGraph, DeviceKind

Classes = tuple[tuple[int, ...], ...]
"""GPUs in classes; those of one class are each other's twins."""


def twins(graph: DeviceGraph) -> Classes:
    """The node's GPUs in classes of twins, in the order of their lowest index.

    Two GPUs are twins when swapping them, and nothing else, leaves every link as it was: they hang on the same bridge
    and have the same links to all the others. Being twins is transitive, as swaps are.
    """
    seen: list[list[int]] = []
    for gpu in sorted(graph.gpus):
        home = next((one for one in seen if _alike(graph, one[0], gpu)), None)
        if home is None:
            seen.append([gpu])
        else:
            home.append(gpu)
    return tuple(map(tuple, seen))


def _alike(graph: DeviceGraph, one: int, other: int) -> bool:
    if graph.switched.get(one) != graph.switched.get(other) or _above(graph, one) != _above(graph, other):
        return False
    rest = [gpu for gpu in graph.gpus if gpu not in (one, other)]
    between = graph.between
    return all(between.get((one, gpu)) == between.get((other, gpu)) for gpu in rest)


def _above(graph: DeviceGraph, gpu: int) -> tuple[Device, ...] | None:
    """The way from a GPU's bridge up to its NUMA node."""
    return tuple(graph.way_up(Device(DeviceKind.GPU, gpu))[1:])


def representatives(classes: Classes, free: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """One set of ``count`` free GPUs of every kind there is, each of the lowest indexes."""
    open_ = set(free)
    members = [[gpu for gpu in one if gpu in open_] for one in classes]
    for taken in _shares([len(one) for one in members], count):
        yield tuple(sorted(gpu for one, many in zip(members, taken, strict=True) for gpu in one[:many]))


def how_many(classes: Classes, free: Sequence[int], count: int) -> int:
    """How many sets ``representatives`` yields, or at least so many."""
    open_ = set(free)
    sizes = [sum(gpu in open_ for gpu in one) for one in classes]
    return min(comb(sum(sizes), count), prod(min(size, count) + 1 for size in sizes))


def _shares(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Every way of taking ``count`` from classes of these sizes."""
    if not sizes:
        if count == 0:
            yield ()
        return
    rest = sum(sizes[1:])
    for many in range(min(sizes[0], count), max(0, count - rest) - 1, -1):
        for others in _shares(sizes[1:], count - many):
            yield (many, *others)
