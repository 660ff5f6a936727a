"""Several waiting pods at once: places for all that would have one alone, and for more where there is a way.

One by one, a pod takes the best place that there is and knows nothing of those behind it: shares and small pods may lie
where a large one could have gone. Seen together, the order can be chosen: first as they came, then the largest first,
then those that found no place in front of the others (squeaky wheel), as long as it helps and rounds are left. A plan
that takes a place from a pod that had one in the order they came is not taken, however many GPUs it fills.

What is best cannot be known in time; `Packing.bound` says how much more there could be at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.placement import PodRequest
from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import best
from kopt.policies.placement.state import FleetState, place, release

Ints = NDArray[np.int64]
Placed = tuple[int, tuple[int, ...]]
ROUNDS = 8


@dataclass(frozen=True)
class Packing:
    """Row and GPU slots of each request, None for one that has to wait; ``order`` is in which they were placed.

    ``allocated`` and ``bound`` in milli-GPU: what the plan fills, and what no plan can exceed.
    """

    places: tuple[Placed | None, ...]
    order: tuple[int, ...]
    allocated: MilliGpu
    bound: MilliGpu
    rounds: int


def pack(
    state: FleetState, requests: Sequence[PodRequest], *, cache: FragmentationCache, candidates: Ints | None = None,
    rounds: int = ROUNDS,
) -> Packing:  # fmt: skip
    """A plan for ``requests`` in the order they came; the state is as it was afterwards.

    ``candidates`` are the rows that may be used (None: all). One round places them one by one.
    """
    bound, order = upper_bound(state, requests, candidates), tuple(range(len(requests)))
    first = found = _round(state, requests, order, cache, candidates)
    chosen, tried, number = order, {order}, 1
    order = tuple(sorted(order, key=lambda one: -int(requests[one].gpus.total)))
    while number < rounds and _filled(requests, found) < bound:
        if order in tried:
            break
        tried.add(order)
        places = _round(state, requests, order, cache, candidates)
        number += 1
        keeps = all(new is not None for new, old in zip(places, first, strict=True) if old is not None)
        if keeps and _filled(requests, places) > _filled(requests, found):
            found, chosen = places, order
        waiting = [one for one in order if places[one] is None]
        order = (*waiting, *(one for one in order if places[one] is not None))
    return Packing(found, chosen, _filled(requests, found), bound, number)


def upper_bound(state: FleetState, requests: Sequence[PodRequest], candidates: Ints | None = None) -> MilliGpu:
    """Milli-GPU that no plan can exceed: what is asked for, what is free, and, for pods on so many GPUs and more, what
    is free on nodes with as many whole ones."""
    rows = np.flatnonzero(state.ready) if candidates is None else candidates[state.ready[candidates]]
    free = np.maximum(state.gpu_free_milli[rows], 0)
    whole = np.count_nonzero(free >= WHOLE_GPU, axis=1)
    asked = sum(int(one.gpus.total) for one in requests)
    bound = min(asked, int(free.sum()))
    for size in {one.gpus.count for one in requests if one.gpus.count and not one.is_share}:
        large = sum(int(one.gpus.total) for one in requests if not one.is_share and one.gpus.count >= size)
        room = WHOLE_GPU * int(whole[whole >= size].sum())
        bound = min(bound, asked - large + min(large, room))
    return MilliGpu(bound)


def _round(
    state: FleetState, requests: Sequence[PodRequest], order: Sequence[int], cache: FragmentationCache,
    candidates: Ints | None,
) -> tuple[Placed | None, ...]:  # fmt: skip
    """Places in one order, on the state itself and taken back: amounts are integers, so that nothing is left of it."""
    places: list[Placed | None] = [None] * len(requests)
    try:
        for one in order:
            found = best(state, requests[one], cache=cache, candidates=candidates)
            if found is not None:
                place(state, *found, requests[one])
                places[one] = found
    finally:
        for request, taken in zip(requests, places, strict=True):
            if taken is not None:
                release(state, *taken, request)
    return tuple(places)


def _filled(requests: Sequence[PodRequest], places: Sequence[Placed | None]) -> MilliGpu:
    return MilliGpu(sum(int(one.gpus.total) for one, taken in zip(requests, places, strict=True) if taken is not None))
