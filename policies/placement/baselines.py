"""Scores of other placement policies for comparison, all after the simulator that Weng et al. (ATC 2023) published.

Each gets the feasible rows and returns a score per row, higher is better. Scores are whole numbers 0 to 100 where the
originals' are, because their resolution decides many ties.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.state import FleetState

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_MOST_CPU, _MOST_GPU = 128_000.0, 8_000.0
_BEST, _USED, _EMPTY = 100, 50, 33


class Baseline(Protocol):
    """A policy without memory."""

    def __call__(self, state: FleetState, request: PodRequest, rows: Ints, chance: np.random.Generator) -> Floats:
        """A score per row, higher better."""


def random(state: FleetState, request: PodRequest, rows: Ints, chance: np.random.Generator) -> Floats:
    """Any node."""
    return chance.random(len(rows))


def dot_product(state: FleetState, request: PodRequest, rows: Ints, chance: np.random.Generator) -> Floats:
    """The node whose free (CPU, GPU) is least aligned with the request (Grandl et al., Tetris, SIGCOMM 2014)."""
    cpu = state.cpu_free_milli[rows] / _MOST_CPU * (request.cpu_milli / _MOST_CPU)
    gpu = state.gpu_free_total[rows] / _MOST_GPU * (request.gpus.total / _MOST_GPU)
    array: Floats = np.floor(_BEST * (1 - (cpu + gpu) / 2))
    return array


def packing(state: FleetState, request: PodRequest, rows: Ints, chance: np.random.Generator) -> Floats:
    """GPUs in use first, then free GPUs of nodes in use, then empty nodes (MLaaS in the Wild, NSDI 2022)."""
    if not request.gpus.count:
        return np.zeros(len(rows))
    free, count = np.sort(state.gpu_free_milli[rows], axis=1), state.gpu_count[rows]
    enough = free >= request.gpus.share
    used = enough & (np.cumsum(enough, axis=1) <= request.gpus.count)
    opened = (used & (free == WHOLE_GPU)).sum(1)
    remaining = (used * (free * 100 // WHOLE_GPU)).sum(1)
    shared = np.maximum(_BEST - remaining // 10, _BEST // 2)
    whole = (free == WHOLE_GPU).sum(1)
    score = np.where(opened > 0, np.maximum(_USED - opened, _EMPTY), shared)
    array: Floats = np.where(whole == count, np.maximum(_EMPTY - whole, 0), score).astype(np.float64)
    return array


def best_fit(state: FleetState, request: PodRequest, rows: Ints, chance: np.random.Generator) -> Floats:
    """The node with the least free CPU and GPU left after it."""
    cpu = (state.cpu_free_milli[rows] - request.cpu_milli) / _MOST_CPU
    gpu = (state.gpu_free_total[rows] - request.gpus.total) / _MOST_GPU
    array: Floats = np.floor(_BEST * (1 - (cpu + gpu) / 2))
    return array


BASELINES: Mapping[str, Baseline] = {
    "random": random,
    "dot-product": dot_product,
    "packing": packing,
    "best-fit": best_fit,
}
