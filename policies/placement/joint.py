"""Places several pending pods together: all that would fit one by one, and more where possible.

One by one, every pod gets the best node at the time, regardless of the pods behind it: shares and small pods may block
a large one. Planned together, the order can be chosen: first by arrival, then largest first, then pods without a
placement in front of the others (squeaky wheel), as long as that helps and rounds are left. A plan in which a pod loses
the placement it has by arrival order is never used, however many GPUs it fills.

The optimum cannot be computed in time; `Packing.bound` is an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import best
from kopt.policies.placement.state import FleetState, allocate, release

Ints = NDArray[np.int64]
Placed = tuple[int, tuple[int, ...]]
ROUNDS = 8


@dataclass(frozen=True)
class Packing:
    """Row and GPU slots of each request, None for one that has to wait; ``order`` is the order of placement.

    ``allocated`` and ``bound`` in milli-GPU: what the plan fills, and what no plan can exceed.
    """

    placements: tuple[Placed | None, ...]
    order: tuple[int, ...]
    allocated: MilliGpu
    bound: MilliGpu
    rounds: int


def pack(
    state: FleetState,
    requests: Sequence[PodRequest],
    *,
    cache: FragmentationCache,
    candidates: Ints | None = None,
    rounds: int = ROUNDS,
) -> Packing:
    """A plan for ``requests`` in order of arrival; the state is unchanged afterwards.

    ``candidates`` are the rows that may be used (None: all). A single round places them one by one.
    """
    bound, order = upper_bound(state, requests, candidates), tuple(range(len(requests)))
    first = result = _round(state, requests, order, cache, candidates)
    best_order, tried, number = order, {order}, 1
    order = tuple(sorted(order, key=lambda item: -int(requests[item].gpus.total)))
    while number < rounds and _filled(requests, result) < bound:
        if order in tried:
            break
        tried.add(order)
        placements = _round(state, requests, order, cache, candidates)
        number += 1
        keeps_all = all(new is not None for new, old in zip(placements, first, strict=True) if old is not None)
        if keeps_all and _filled(requests, placements) > _filled(requests, result):
            result, best_order = placements, order
        unplaced = [item for item in order if placements[item] is None]
        order = (*unplaced, *(item for item in order if placements[item] is not None))
    return Packing(result, best_order, _filled(requests, result), bound, number)


def upper_bound(state: FleetState, requests: Sequence[PodRequest], candidates: Ints | None = None) -> MilliGpu:
    """Milli-GPU that no plan can exceed: what is requested, what is free, and, for pods of each size and larger, what
    is free on nodes with that many whole GPUs."""
    rows = np.flatnonzero(state.ready) if candidates is None else candidates[state.ready[candidates]]
    free = np.maximum(state.gpu_free_milli[rows], 0)
    whole = np.count_nonzero(free >= WHOLE_GPU, axis=1)
    requested = sum(int(request.gpus.total) for request in requests)
    bound = min(requested, int(free.sum()))
    wholes = [request.gpus for request in requests if request.gpus.count and request.gpus.share == WHOLE_GPU]
    for size in {gpus.count for gpus in wholes}:
        large = sum(int(gpus.total) for gpus in wholes if gpus.count >= size)
        room = WHOLE_GPU * int(whole[whole >= size].sum())
        bound = min(bound, requested - large + min(large, room))
    return MilliGpu(bound)


def _round(
    state: FleetState,
    requests: Sequence[PodRequest],
    order: Sequence[int],
    cache: FragmentationCache,
    candidates: Ints | None,
) -> tuple[Placed | None, ...]:
    """Placements in one order, made on the state itself and undone exactly: amounts are integers."""
    placements: list[Placed | None] = [None] * len(requests)
    try:
        for number in order:
            result = best(state, requests[number], cache=cache, candidates=candidates)
            if result is not None:
                allocate(state, *result, requests[number])
                placements[number] = result
    finally:
        for request, placement in zip(requests, placements, strict=True):
            if placement is not None:
                release(state, *placement, request)
    return tuple(placements)


def _filled(requests: Sequence[PodRequest], placements: Sequence[Placed | None]) -> MilliGpu:
    return MilliGpu(
        sum(
            int(pod_request.gpus.total)
            for pod_request, placement in zip(requests, placements, strict=True)
            if placement is not None
        )
    )
