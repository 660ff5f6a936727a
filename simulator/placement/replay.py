"""Replays arrivals of pods through a placement policy: what share of the fleet's GPUs ends up allocated.

Arrivals only, nothing leaves. A policy sees one pod at a time and never those to come. What it may know beforehand is
said by ``expected``: the typical pods of the trace, as the paper gives them to its policy, or nothing (None), so that
it learns from the arrivals so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.cluster import Node
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import WHOLE_GPU, Bytes
from kopt.policies.placement.fragmentation import UsableTables, fragmented
from kopt.policies.placement.policies import POLICIES
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.typical import TypicalPods

Floats = NDArray[np.float64]
POINTS = 65


@dataclass(frozen=True)
class Replay:
    """One run. ``allocated`` is the final share of the fleet's milli-GPU; the curves run over ``requested``, the load.

    ``fragmented`` is the share of the fleet's milli-GPU that is free but of no use to a typical pod of the whole run.
    """

    policy: str
    seed: int
    allocated: float
    placed: int
    refused: int
    requested: Floats
    allocation: Floats
    fragmented: Floats


def fleet(nodes: Sequence[Node]) -> FleetState:
    """The state of nodes with nothing on them."""
    return FleetState(
        FleetNode(
            node.name,
            node.cpu_free_milli,
            Bytes(node.memory_free_bytes),
            len(node.gpus),
            node.gpus[0].model if node.gpus else "",
            node.gpus[0].memory_bytes if node.gpus else Bytes(0),
        )
        for node in nodes
    )


def replay(
    nodes: Sequence[Node],
    requests: Sequence[PodRequest],
    policy: str,
    seed: int = 0,
    expected: TypicalPods | None = None,
) -> Replay:
    """Place ``requests`` one after another. Raises KeyError for a policy that is not in ``POLICIES``."""
    state = fleet(nodes)
    placer = POLICIES[policy](expected, np.random.default_rng(seed))
    capacity = int(state.gpu_count.sum()) * WHOLE_GPU
    measure = UsableTables.build(TypicalPods.learn(requests), state.models, state.slots)
    looks = set(np.linspace(0, len(requests), POINTS).astype(int).tolist())
    requested = allocated = placed = 0
    curve = [(0.0, 0.0, 0.0)]
    for number, request in enumerate(requests, start=1):
        result = placer.select(state, request)
        requested += request.gpus.total
        if result is not None:
            allocate(state, *result, request)
            allocated += request.gpus.total
            placed += 1
        if number in looks:
            curve.append((requested / capacity, allocated / capacity, fragmented(state, measure).sum() / capacity))
    columns = np.array(curve).T
    return Replay(policy, seed, allocated / capacity, placed, len(requests) - placed, *columns)
