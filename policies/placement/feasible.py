"""Which nodes can take a pod, and why the others cannot."""

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.request import allowed_models, free_enough
from kopt.policies.placement.state import FleetState

Ints = NDArray[np.int64]
_MOST_PODS = 1 << 20
"""Of pods that request nothing."""


class Refusal(IntEnum):
    """Why a node cannot take a pod; the first that applies, hard ones before those that time can cure."""

    NONE = 0
    NO_SUCH_NODE = 1
    NOT_READY = 2
    GPU_MODEL = 3
    GPU_MEMORY = 4
    GPU_COUNT = 5
    TOPOLOGY = 6
    CPU = 7
    MEMORY = 8
    GPU_FREE = 9
    DEGRADED = 10
    ELSEWHERE = 11

    @property
    def permanent(self) -> bool:
        """Would the node refuse the pod even if it were empty?"""
        return self in (Refusal.GPU_MODEL, Refusal.GPU_MEMORY, Refusal.GPU_COUNT)


SENTENCES: Mapping[Refusal, str] = {
    Refusal.NO_SUCH_NODE: "not known yet",
    Refusal.NOT_READY: "not ready or cordoned",
    Refusal.GPU_MODEL: "another GPU model than asked for",
    Refusal.GPU_MEMORY: "GPUs with less memory than asked for",
    Refusal.GPU_COUNT: "fewer GPUs than asked for",
    Refusal.TOPOLOGY: "free GPUs do not lie as required or lack the bandwidth",
    Refusal.CPU: "too little CPU left",
    Refusal.MEMORY: "too little memory left",
    Refusal.GPU_FREE: "too little GPU left",
    Refusal.DEGRADED: "degraded, and a healthy one has room",
    Refusal.ELSEWHERE: "further from the other pods of its gang",
}


def refusals(state: FleetState, request: PodRequest, rows: Ints | slice = slice(None)) -> NDArray[np.int8]:
    """`Refusal` codes, shape (rows,); 0 where the node can take the pod. Topology is judged in `choose`."""
    count = request.gpus.count
    cases: list[tuple[NDArray[np.bool_], Refusal]] = [(~state.ready[rows], Refusal.NOT_READY)]
    if count:
        cases += [
            (~allowed_models(state.models, request)[state.model[rows]], Refusal.GPU_MODEL),
            (state.gpu_memory_bytes[rows] < request.gpus.memory_bytes, Refusal.GPU_MEMORY),
            (state.gpu_count[rows] < count, Refusal.GPU_COUNT),
        ]
    cases += [
        (state.cpu_free_milli[rows] < request.cpu_milli, Refusal.CPU),
        (state.memory_free_bytes[rows] < request.memory_bytes, Refusal.MEMORY),
    ]
    if count:
        cases.append((np.count_nonzero(free_enough(state, request, rows), axis=1) < count, Refusal.GPU_FREE))
    array = np.zeros(len(cases[0][0]), dtype=np.int8)
    for applies, code in reversed(cases):
        array[applies] = code
    return array


def capacity(state: FleetState, request: PodRequest, rows: Ints | slice = slice(None)) -> Ints:
    """How many equal pods each row can take one after another, (rows,); 0 where `refusals` has a reason."""
    codes = refusals(state, request, rows)
    array = np.full(len(codes), _MOST_PODS, dtype=np.int64)
    for free, wanted in (
        (state.cpu_free_milli[rows], request.cpu_milli),
        (state.memory_free_bytes[rows], int(request.memory_bytes)),
    ):
        if wanted:
            np.minimum(array, free // wanted, out=array)
    if request.gpus.count == 1:
        shares = np.maximum(state.gpu_free_milli[rows], 0) // int(request.gpus.share)
        np.minimum(array, shares.sum(axis=1), out=array)
    elif request.gpus.share == WHOLE_GPU and request.gpus.count:
        whole = np.count_nonzero(free_enough(state, request, rows), axis=1)
        np.minimum(array, whole // request.gpus.count, out=array)
    elif request.gpus.count:
        shares = np.maximum(state.gpu_free_milli[rows], 0) // int(request.gpus.share)
        np.minimum(array, _pods_on_different(shares, request.gpus.count), out=array)
    array[codes != Refusal.NONE] = 0
    return array


def _pods_on_different(shares: Ints, count: int) -> Ints:
    """How many pods find room where each takes ``count`` shares of different GPUs, (rows,), by how many shares each GPU
    has, (rows, G). As many fit as there are shares where none is counted more often than pods are; that so many fit
    means that fewer do, so it is bisected."""
    least, most = np.zeros(len(shares), dtype=np.int64), shares.sum(axis=1) // count
    while (least < most).any():
        middle = (least + most + 1) // 2
        fits = np.minimum(shares, middle[:, None]).sum(axis=1) >= middle * count
        least, most = np.where(fits, middle, least), np.where(fits, most, middle - 1)
    return least


def refusal_counts(codes: NDArray[np.int8]) -> dict[Refusal, int]:
    """How many nodes refused for each reason, the most frequent first."""
    counts = np.bincount(codes, minlength=1)
    result = {Refusal(code): int(n) for code, n in enumerate(counts) if code and n}
    return dict(sorted(result.items(), key=lambda item: (-item[1], item[0])))
