"""Shapes that a number of GPUs can have on nodes, and which of them fit.

Replicas are equal, so how many of them nodes can hold is a sum over nodes: this is exact for any number of nodes,
without a search.
"""

import math
from collections.abc import Iterable, Sequence

from kopt.core.scheduling.replicas import MAX_GPUS, NodeGpus, Shape


def shapes_of(total: int) -> list[Shape]:
    """All shapes with exactly ``total`` GPUs, the fewest replicas first. Raises ValueError for a total out of range."""
    if not 1 <= total <= MAX_GPUS:
        raise ValueError(f"{total:,} GPUs; give from 1 to {MAX_GPUS:,}")
    return [Shape(replicas, total // replicas) for replicas in range(1, total + 1) if total % replicas == 0]


def by_smallest_node(total: int, nodes: Iterable[NodeGpus]) -> Shape:
    """ceil(total / GPUs of the smallest node), as Kaiwo computes it: free GPUs play no part, and those that do not
    divide evenly are dropped. Raises ValueError without a node that has GPUs."""
    smallest = min((node.gpus for node in nodes if node.gpus), default=0)
    if not smallest:
        raise ValueError("no node has GPUs")
    replicas = math.ceil(total / smallest)
    return Shape(replicas, total // replicas)


def fits_now(shape: Shape, nodes: Sequence[NodeGpus]) -> bool:
    return sum(node.free // shape.gpus for node in nodes) >= shape.replicas


def can_ever_fit(shape: Shape, nodes: Sequence[NodeGpus]) -> bool:
    """Whether it would fit if nothing else ran."""
    return sum(node.gpus // shape.gpus for node in nodes) >= shape.replicas
