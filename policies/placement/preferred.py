"""Which feasible nodes take precedence over all scores: healthy ones, and those near the pod's gang."""

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.policies.placement.feasible import Refusal
from kopt.policies.placement.state import FleetState

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def impaired(state: FleetState, request: PodRequest, rows: Ints, *, gang: bool) -> Bools:
    """Rows, all with room for the pod, whose degraded part affects it, shape (rows,).

    GPUs that communicate with each other, or with those of other pods (``gang``), are affected by any part. A single
    GPU is only affected by its own: then a row is impaired if it has no healthy GPU free.
    """
    gpus = request.gpus
    if not gpus.count or not state.ill:
        return np.zeros(len(rows), np.bool_)
    if gpus.count > 1 or request.minimum is not None or gang:
        return state.degraded[rows]
    well = ~_poor(state, rows) & (state.gpu_free_milli[rows] >= gpus.share)
    felt: Bools = ~np.any(well, axis=1)
    return felt


def first_choice(impairs: Bools, tiers: NDArray[np.int8] | None) -> Bools:
    """The rows to choose among: unimpaired ones if there are any, and of those the lowest tier."""
    rank = impairs * np.int16(256)
    if tiers is not None:
        rank = rank + tiers
    array: Bools = rank == rank.min()
    return array


def passed_over(impairs: Bools, selected: Bools) -> dict[Refusal, int]:
    """How many rows `first_choice` left out, by reason."""
    degraded = 0 if impairs[selected].any() else int(np.count_nonzero(impairs))
    elsewhere = int(np.count_nonzero(~selected)) - degraded
    counts = {Refusal.DEGRADED: degraded, Refusal.ELSEWHERE: elsewhere}
    return {code: count for code, count in counts.items() if count}


def well_slots(state: FleetState, row: int) -> Bools:
    """Healthy slots, shape (G,)."""
    well: Bools = ~_poor(state, np.array([row]))[0]
    return well


def _poor(state: FleetState, rows: Ints) -> Bools:
    array: Bools = (state.poor[rows, None] >> np.arange(min(state.slots, 62)) & 1).astype(np.bool_)
    return np.pad(array, ((0, 0), (0, max(0, state.slots - 62))))
