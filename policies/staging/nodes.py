"""On which nodes copies are made: as many as the largest gang that uses the data needs, where there is most room."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CacheNode:
    """A node that may hold a copy. ``room_bytes``: what its budget leaves, unused copies counted as free; None where
    there is no budget. ``gpus``: milli-GPU by resource."""

    name: str
    room_bytes: int | None = None
    gpus: int = 0
    fits: bool = True
    """It is ready, not cordoned, and has the labels that were asked for."""
    machine: str = ""
    """Another where a machine that was set up anew has taken the name; empty where nothing tells."""


@dataclass(frozen=True)
class Gang:
    """Pods of one user that run at a time, each with so many milli-GPU."""

    pods: int
    gpus_per_pod: int


def copies_needed(asked: int, gangs: Iterable[Gang], nodes: Sequence[CacheNode]) -> int:
    """So many that every gang finds room on nodes with a copy, were they empty; never more than there are nodes."""
    most = max((one.gpus for one in nodes if one.fits), default=0)
    needed = [asked]
    for gang in gangs:
        per_node = most // gang.gpus_per_pod if gang.gpus_per_pod > 0 else gang.pods
        needed.append(math.ceil(gang.pods / per_node) if per_node > 0 else gang.pods)
    return min(max(needed), sum(one.fits for one in nodes))


def chosen(wanted: int, nodes: Iterable[CacheNode], held: Collection[str], size_bytes: int) -> list[str]:
    """``wanted`` nodes: those that hold a copy already, then those with most room; fewer where the size fits nowhere.

    Nodes that hold one stay, also where fewer are wanted: who runs there reads it.
    """
    found = [one for one in nodes if one.fits]
    keeping = sorted(one.name for one in found if one.name in held)
    free = [one for one in found if one.name not in held and (one.room_bytes is None or one.room_bytes >= size_bytes)]
    free.sort(key=lambda one: (-_room(one), -one.gpus, one.name))
    return keeping + [one.name for one in free[: max(0, wanted - len(keeping))]]


def _room(node: CacheNode) -> float:
    return math.inf if node.room_bytes is None else node.room_bytes
