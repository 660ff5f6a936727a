"""Which of the nodes that can take a pod come first, whatever they score: healthy ones, and those near its gang."""

import numpy as np
from numpy.typing import NDArray

from kopt.core.placement import PodRequest
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.state import FleetState

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def impaired(state: FleetState, request: PodRequest, rows: Ints, *, gang: bool = False) -> Bools:
    """Rows whose degraded part the pod would feel, shape (rows,).

    GPUs that talk to each other, or to those of other pods (``gang``), feel any part. A single GPU feels its own: then
    a row is impaired that has no other one free.
    """
    gpus = request.gpus
    if not gpus.count or not state.ill:
        return np.zeros(len(rows), np.bool_)
    if gpus.count > 1 or request.minimum is not None or gang:
        return state.degraded[rows]
    well = ~_poor(state, rows) & (state.gpu_free_milli[rows] >= gpus.share)
    felt: Bools = (state.poor[rows] != 0) & ~well.any(axis=1)
    return felt


def first_choice(impairs: Bools, tiers: NDArray[np.int8] | None) -> Bools:
    """The rows to choose among: those that nothing impairs, and of them those of the lowest tier, if there are any."""
    rank = impairs * np.int16(256)
    if tiers is not None:
        rank = rank + tiers
    found: Bools = rank == rank.min(initial=1 << 14)
    return found


def passed_over(impairs: Bools, kept: Bools) -> dict[Refusal, int]:
    """How many rows were left out by `first_choice`, by why."""
    degraded = 0 if impairs[kept].any() else int(np.count_nonzero(impairs & ~kept))
    elsewhere = int(np.count_nonzero(~kept)) - degraded
    counts = {Refusal.DEGRADED: degraded, Refusal.ELSEWHERE: elsewhere}
    return {code: count for code, count in counts.items() if count}


def well_slots(state: FleetState, request: PodRequest, row: int) -> Bools:
    """Slots with enough left for one share of the request whose own parts are as they were, shape (G,)."""
    well: Bools = (state.gpu_free_milli[row] >= request.gpus.share) & ~_poor(state, np.array([row]))[0]
    return well


def _poor(state: FleetState, rows: Ints) -> Bools:
    found: Bools = (state.poor[rows, None] >> np.arange(min(state.slots, 62)) & 1).astype(np.bool_)
    return np.pad(found, ((0, 0), (0, max(0, state.slots - 62))))
