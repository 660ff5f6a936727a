"""Which partitions move so that another fits, or so that a pool is less fragmented.

What runs in a partition that moves is stopped and started elsewhere, so moves are few: a budget grows with requests,
and two kinds of moves spend it. A request that found no room gets it by the fewest moves; and one partition moves by
itself where that makes at least a compute slice usable.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kopt.policies.partitions.layouts import Instance, Layouts
from kopt.policies.partitions.placement import Placement, PlacementPolicy, Pool

MOST_AT_ONCE = 2
"""Moves for one request."""
_MOST_SAVED = 50.0
_KEPT_FOR_REQUESTS = 20.0
"""Moves that are not spent on fragmentation."""
_LEAST_GAIN = 1.0
"""Compute slices that one move has to make usable."""


@dataclass(frozen=True, slots=True)
class Move:
    """``instance`` of GPU ``source`` is started again on GPU ``target``, from memory slot ``start`` on."""

    source: int
    instance: Instance
    target: int
    start: int


class Relocation(NamedTuple):
    """Moves in their order, then where the request goes; ``pool`` is what lies where afterwards."""

    moves: tuple[Move, ...]
    placement: Placement
    pool: Pool


@dataclass
class MoveBudget:
    """``per_request`` moves more with each request."""

    per_request: float
    saved: float = 0.0

    def grow(self) -> None:
        """A request came."""
        self.saved = min(_MOST_SAVED, self.saved + self.per_request)

    @property
    def for_requests(self) -> int:
        return min(MOST_AT_ONCE, int(self.saved))

    @property
    def for_fragmentation(self) -> int:
        return int(max(0.0, self.saved - _KEPT_FOR_REQUESTS))


def is_worth_moves(layouts: Layouts, profile: int) -> bool:
    """Partitions of up to half a GPU. A whole one takes the room that many small requests would have had soon after:
    moving for it raises the slices in use, and lowers how many requests are accepted."""
    geometry = layouts.geometry
    return 2 * geometry.profiles[profile].compute_slices <= geometry.compute_slices + 1


def make_room(policy: PlacementPolicy, profile: int, pool: Pool, most: int) -> Relocation | None:
    """The fewest moves, ``most`` at most, with which a partition fits; of those, the ones after which the policy's cost
    is lowest. None where there are none."""
    layouts = policy.layouts
    _, firsts = np.unique(pool, return_index=True)
    for count in range(1, most + 1):
        best: tuple[float, Relocation] | None = None
        for gpu in map(int, firsts):
            layout = layouts.layouts[pool[gpu]]
            for moved in set(itertools.combinations(layout, count)):
                for option in _relocations(policy, profile, pool, gpu, moved):
                    cost = float(policy.cost[option.pool].sum())
                    if best is None or cost < best[0]:
                        best = cost, option
        if best is not None:
            return best[1]
    return None


def _relocations(
    policy: PlacementPolicy, profile: int, pool: Pool, gpu: int, moved: tuple[Instance, ...]
) -> list[Relocation]:
    """With ``moved`` gone from ``gpu`` and the partition there instead, at each slot where it fits."""
    layouts, result = policy.layouts, []
    layout = int(pool[gpu])
    for instance in moved:
        layout = layouts.without(layout, instance)
    largest_first = sorted(moved, key=lambda item: -layouts.geometry.profiles[item[0]].memory_slots)
    options = zip(layouts.starts[layout, profile], layouts.following[layout, profile], strict=True)
    for start, following in options:
        if following < 0:
            continue
        after, moves = pool.copy(), []
        after[gpu] = following
        for instance in largest_first:
            to = policy.placement(instance[0], after)
            if to is None:
                break
            after[to.gpu] = to.layout
            moves.append(Move(gpu, instance, to.gpu, to.start))
        if len(moves) == len(moved):
            result.append(Relocation(tuple(moves), Placement(gpu, int(start), int(after[gpu])), after))
    return result


def consolidate(policy: PlacementPolicy, pool: Pool) -> tuple[Move, Pool] | None:
    """The one move that lowers the policy's cost most, and the pool after it; None where none is worth it."""
    layouts, best = policy.layouts, None
    least = _LEAST_GAIN
    _, firsts = np.unique(pool, return_index=True)
    for gpu in map(int, firsts):
        number = int(pool[gpu])
        for instance in set(layouts.layouts[number]):
            rest = layouts.without(number, instance)
            growth = policy.growth[pool, instance[0]].copy()
            growth[gpu] = np.inf
            target = int(growth.argmin())
            gain = policy.cost[number] - policy.cost[rest] - growth[target]
            if gain > least:
                least, best = float(gain), (gpu, instance, target, rest)
    if best is None:
        return None
    gpu, instance, target, rest = best
    after, layout = pool.copy(), int(pool[target])
    after[gpu], after[target] = rest, policy.following[layout, instance[0]]
    return Move(gpu, instance, target, int(policy.start[layout, instance[0]])), after
