"""Fragmentation as published: what of a node's free GPU a typical pod could use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC
2023). Usable GPU is averaged over typical pods by how often each comes. Since a pod on one GPU can use a slot whatever
the other slots hold, that average is a lookup per slot in the distribution of (milli-CPU, milli-GPU) requests; pods on
several GPUs add one lookup by the number of whole GPUs.

`gradient` works for every valuation of nodes, this one and that of ``expected_fill``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.typical import TypicalPods

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Valuation(Protocol):
    """What free GPUs are worth."""

    def values(self, model: NDArray[np.int32], cpu_milli: Ints, free: NDArray[np.int32]) -> Floats:
        """Milli-GPU of worth, shape (rows,), from model code and free CPU (rows,) and free milli-GPU (rows, G)."""


@dataclass(frozen=True)
class UsableTables:
    """What typical pods can use next, by model, CPU left and GPU left.

    ``single[model, cpu, milli]``: milli-GPU of a slot with ``milli`` left that a pod on one GPU can expect to use,
    times how often such a pod comes; shares of several GPUs count as one. ``many[model, cpu, whole]``: the same for
    pods on several GPUs and ``whole`` free GPUs.
    ``cpu_steps`` (ascending) are the CPU requests at which the rows change.
    """

    cpu_steps: Ints
    single: Floats
    many: Floats

    @classmethod
    def build(cls, typical: TypicalPods, models: Sequence[str], slots: int) -> "UsableTables":
        """Tables for a fleet's models and the most GPUs that one of its nodes has."""
        steps = np.array(sorted({cpu for cpu, *_ in typical.weights}), dtype=np.int64)
        shape = (len(models) + 1, len(steps) + 1)
        array, many = np.zeros((*shape, WHOLE_GPU + 1)), np.zeros((*shape, slots + 1))
        for (cpu, count, share, wanted), weight in typical.weights.items():
            first = int(np.searchsorted(steps, cpu)) + 1
            rows = [code for code, model in enumerate(models) if not wanted or model in wanted]
            if count == 1 or share < WHOLE_GPU:
                array[rows, first:, share:] += weight
            elif count <= slots:
                many[rows, first:, count:] += weight
        array *= np.arange(WHOLE_GPU + 1)
        many *= WHOLE_GPU * np.arange(slots + 1)
        return cls(steps, array, many)

    def values(self, model: NDArray[np.int32], cpu_milli: Ints, free: NDArray[np.int32]) -> Floats:
        """Milli-GPU that a typical pod can expect to use, shape (rows,)."""
        cpu = np.searchsorted(self.cpu_steps, cpu_milli, side="right")
        whole = np.count_nonzero(free == WHOLE_GPU, axis=1)
        used: Floats = self.single[model[:, None], cpu[:, None], np.clip(free, 0, WHOLE_GPU)].sum(1)
        used += self.many[model, cpu, whole]
        return used


def fragmented(state: FleetState, tables: UsableTables) -> Floats:
    """Milli-GPU left on each node that a typical pod cannot expect to use, shape (rows,)."""
    unusable: Floats = np.maximum(state.gpu_free_milli, 0).sum(1) - tables.values(
        state.model, state.cpu_free_milli, state.gpu_free_milli
    )
    return unusable


def gradient(state: FleetState, valuation: Valuation, request: PodRequest, rows: Ints) -> tuple[Floats, Ints]:
    """What placing ``request`` costs beyond its own GPUs, in milli-GPU, and the slot where it costs least, (rows,).

    All ``rows`` must be feasible (see `feasible`). The slot is -1 except for a share of a GPU; whole GPUs are
    interchangeable. Among slots of equal cost the fullest wins, so that others stay whole for future pods.
    """
    index, slot, cpu, free = _after(state, request, rows)
    model = state.model[rows]
    worth = valuation.values(
        np.concatenate([model, model[index]]),
        np.concatenate([state.cpu_free_milli[rows], cpu]),
        np.concatenate([state.gpu_free_milli[rows], free]),
    )
    loss = worth[index] - worth[len(rows) :] - int(request.gpus.total)
    if not request.is_share:
        return loss, np.full(len(rows), -1)
    by_slot = np.full((len(rows), state.slots), np.inf)
    by_slot[index, slot] = loss
    best = np.argmin(by_slot + 1e-9 * state.gpu_free_milli[rows], axis=1)
    return by_slot[np.arange(len(rows)), best], best


def _after(state: FleetState, request: PodRequest, rows: Ints) -> tuple[Ints, Ints, Ints, NDArray[np.int32]]:
    """Every distinct way to place the request: index into ``rows``, slot, and the node's CPU and GPUs afterwards."""
    free = state.gpu_free_milli[rows]
    if request.is_share:
        index, slot = np.nonzero(_distinct(free, int(request.gpus.share)))
        after = free[index]
        after[np.arange(len(index)), slot] -= int(request.gpus.share)
        return index, slot, state.cpu_free_milli[rows[index]] - request.cpu_milli, after
    after = free.copy()
    if request.gpus.share == WHOLE_GPU:
        enough = free >= WHOLE_GPU
        after[enough & (np.cumsum(enough, axis=1) <= request.gpus.count)] = 0
    else:
        # Those with the most left, as ``choose.slots_for`` takes them.
        emptiest = np.argsort(-free, axis=1, kind="stable")[:, : request.gpus.count]
        np.put_along_axis(after, emptiest, np.take_along_axis(free, emptiest, 1) - request.gpus.share, 1)
    index = np.arange(len(rows))
    return index, np.full(len(rows), -1), state.cpu_free_milli[rows] - request.cpu_milli, after


def _distinct(free: NDArray[np.int32], share: int) -> NDArray[np.bool_]:
    """Slots with room for the share, one for each amount left: (rows, G)."""
    distinct = free >= share
    for slot in range(1, free.shape[1]):
        distinct[:, slot] &= ~(free[:, :slot] == free[:, slot : slot + 1]).any(1)
    return distinct
