"""A pod's request against one fleet: models as codes, so that checks are array operations."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.policies.placement.state import FleetState

Bools = NDArray[np.bool_]


def allowed_models(models: Sequence[str], request: PodRequest) -> Bools:
    """Which of the fleet's ``models`` may serve the request, shape (models + 1,).

    The last entry stands for nodes without GPUs (code -1): right for CPU-only pods alone.
    """
    wanted = set(request.gpus.models)
    named = [request.gpus.count == 0 or not wanted or model in wanted for model in models]
    return np.array([*named, request.gpus.count == 0], dtype=np.bool_)


def free_enough(state: FleetState, request: PodRequest, rows: NDArray[np.int64] | slice = slice(None)) -> Bools:
    """GPU slots with enough left for one share of the request, shape (rows, G)."""
    if request.gpus.count == 0:
        return np.zeros(state.gpu_free_milli[rows].shape, dtype=np.bool_)
    return state.gpu_free_milli[rows] >= request.gpus.share
