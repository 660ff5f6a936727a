"""Free GPUs that usual pods could no longer use once a shape is placed: the fragmentation gradient of its replicas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.scheduling.replicas import NodeGpus, Shape
from kopt.core.units import WHOLE_GPU, Bytes
from kopt.policies.placement.fragmentation import UsableTables, fragmented, gradient
from kopt.policies.placement.state import FleetState, allocate
from kopt.policies.placement.typical import Kind, TypicalPods

USUAL = {1: 0.175, 2: 0.056, 4: 0.149, 8: 0.620}
"""Pods by their GPUs where nothing is known of a cluster: GPU hours of jobs in the first half of Philly's trace
(Jeon et al., ATC 2019); larger jobs count as pods of eight."""


@dataclass
class Fragmentation:
    """Free GPUs of nodes, and how often pods on so many GPUs come (any unit)."""

    nodes: Sequence[NodeGpus]
    usual: Mapping[int, float] = field(default_factory=lambda: USUAL)

    def __post_init__(self) -> None:
        counts: dict[Kind, float] = {
            (0, gpus, int(WHOLE_GPU), ()): weight for gpus, weight in self.usual.items() if gpus > 0
        }
        self._state = FleetState(FleetNode(f"{row}", 0, Bytes(0), node.free) for row, node in enumerate(self.nodes))
        self._tables = UsableTables.build(
            TypicalPods.from_counts(counts), self._state.models, max(1, self._state.slots)
        )
        self._before = float(fragmented(self._state, self._tables).sum())

    def stranded_gpus(self, shape: Shape) -> float | None:
        """GPUs, negative where it uses up what others cannot; None where it does not fit."""
        state = self._state.copy()
        request = PodRequest(gpus=GpuRequest(shape.gpus))
        for _ in range(shape.replicas):
            free = np.count_nonzero(state.gpu_free_milli >= WHOLE_GPU, axis=1)
            rows = np.flatnonzero(free >= shape.gpus)
            if not len(rows):
                return None
            loss, _slots = gradient(state, self._tables, request, rows)
            # Of equal ones the fullest, as the scheduler extender takes them.
            row = int(rows[np.lexsort((free[rows], loss.round(6)))[0]])
            slots = np.flatnonzero(state.gpu_free_milli[row] >= WHOLE_GPU)[: shape.gpus]
            allocate(state, row, tuple(slots.tolist()), request)
        return (float(fragmented(state, self._tables).sum()) - self._before) / WHOLE_GPU
