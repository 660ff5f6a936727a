"""On which nodes to make copies: as many as the largest gang that uses the data needs, where most space is free."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CacheNode:
    """A node that may hold a copy. ``room_bytes``: the rest of its budget, with unused copies counted as free; None
    without a budget. ``gpus``: milli-GPU."""

    name: str
    room_bytes: int | None = None
    gpus: int = 0
    fits: bool = True
    """It is ready, not cordoned, and has the requested labels."""
    machine: str = ""
    """Changes when a reinstalled machine takes over the name; empty if unknown."""


@dataclass(frozen=True)
class Gang:
    """Pods of one user that run at the same time, each with ``gpus_per_pod`` milli-GPU."""

    pods: int
    gpus_per_pod: int


def copies_needed(requested: int, gangs: Iterable[Gang], nodes: Sequence[CacheNode]) -> int:
    """Enough for every gang to fit on nodes with a copy if these were empty; never more than there are nodes."""
    most = max((node.gpus for node in nodes if node.fits), default=0)
    needed = [requested]
    for gang in gangs:
        per_node = most // gang.gpus_per_pod if gang.gpus_per_pod > 0 else gang.pods
        needed.append(math.ceil(gang.pods / per_node) if per_node > 0 else gang.pods)
    return min(max(needed), sum(node.fits for node in nodes))


def choose_nodes(wanted: int, nodes: Iterable[CacheNode], held: Collection[str], size_bytes: int) -> list[str]:
    """``wanted`` nodes: those that hold a copy already, then those with most space; fewer if the size does not fit.

    Nodes that hold a copy keep it even if fewer are wanted: running workloads read it.
    """
    cache_nodes = [node for node in nodes if node.fits]
    keeping = sorted(cache_node.name for cache_node in cache_nodes if cache_node.name in held)
    free = [
        cache_node
        for cache_node in cache_nodes
        if cache_node.name not in held and (cache_node.room_bytes is None or cache_node.room_bytes >= size_bytes)
    ]
    free.sort(key=lambda cache_node: (-_room(cache_node), -cache_node.gpus, cache_node.name))
    return keeping + [cache_node.name for cache_node in free[: max(0, wanted - len(keeping))]]


def _room(node: CacheNode) -> float:
    return math.inf if node.room_bytes is None else node.room_bytes
