"""Room for pods on several GPUs: the cost of breaking it up depends on how much of it is left for expected pods.

A node has as many *sites* of a size as it has groups of that many whole free GPUs with enough CPU. Until the free GPUs
are used up, some number of typical pods of that size is expected; the fewer sites are left compared with that number,
the closer the price of a site comes to its GPUs. While sites are plentiful the price is zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.typical import TypicalPods

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
CPU_QUANTILE = 0.8
CAUTION = 1.0
"""Standard deviations of the expected number of pods for which room is kept in addition."""
_FEW = 8
_LOGISTIC = 1.7
"""Makes the logistic curve close to the normal distribution (error below 1 %)."""


@dataclass(frozen=True)
class Sizes:
    """Pods on several GPUs: how many GPUs, how often among all GPU pods, and their CPU at `CPU_QUANTILE`; all (K,).

    ``mean_gpus`` is a GPU pod's mean.
    """

    gpus: Ints
    chance: Floats
    cpu_milli: Ints
    mean_gpus: float

    @classmethod
    def of(cls, typical: TypicalPods) -> "Sizes":
        # Shares of several GPUs need no whole ones.
        several = {kind: weight for kind, weight in typical.weights.items() if kind[1] > 1 and kind[2] == WHOLE_GPU}
        counts = sorted({count for _, count, *_ in several})
        chance = [sum(w for k, w in several.items() if k[1] == count) for count in counts]
        cpu = [_quantile([(k[0], w) for k, w in several.items() if k[1] == count]) for count in counts]
        mean = sum(w * k[1] * k[2] for k, w in typical.weights.items()) / WHOLE_GPU
        return cls(np.array(counts, np.int64), np.array(chance), np.array(cpu, np.int64), mean)

    def sites(self, whole: Ints, cpu_milli: Ints) -> NDArray[np.int16]:
        """Sites of each size (rows, K) on nodes with so many whole free GPUs and so much CPU, both (rows,)."""
        by_gpu = whole[:, None] // self.gpus
        by_cpu = np.maximum(cpu_milli, 0)[:, None] // np.maximum(self.cpu_milli, 1)
        array: NDArray[np.int16] = np.minimum(by_gpu, by_cpu).astype(np.int16)
        return array

    def prices(self, free_gpus: float, sites: Ints) -> Floats:
        """What a site of each size is worth, in GPUs (K,), with so many of them left in the fleet."""
        expected = self.chance * free_gpus / max(self.mean_gpus, 1e-9)
        short = (expected + CAUTION * np.sqrt(expected) - sites) / np.sqrt(expected + 1)
        priced: Floats = self.gpus / (1 + np.exp(-_LOGISTIC * np.maximum(short, -30)))
        return priced


class Room:
    """The sites and free GPUs of the fleet, kept up to date by the rows that changed; held beside the cache."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._each = [(int(g), max(int(c), 1)) for g, c in zip(sizes.gpus, sizes.cpu_milli, strict=True)]
        self._start(0)

    def prices(self, state: FleetState) -> Floats:
        """The price of a site of each size in the fleet as it is, (K,)."""
        self._refresh(state)
        return self.sizes.prices(self._all_free / WHOLE_GPU, self._all_sites)

    def broken(self, state: FleetState, rows: Ints, used: Ints, cpu_milli: int, own: int) -> NDArray[np.int16]:
        """Sites that a pod breaks up on each row, (rows, K): it uses ``used`` whole GPUs (rows,) and some CPU.

        Sites of its ``own`` size do not count: they are meant for such pods.
        """
        whole, cpu = _whole(state, rows), state.cpu_free_milli[rows]
        broken = self.sizes.sites(whole, cpu) - self.sizes.sites(whole - used, cpu - cpu_milli)
        broken[:, self.sizes.gpus == own] = 0
        return broken

    def _start(self, rows: int) -> None:
        self._sites = np.zeros((rows, len(self.sizes.gpus)), np.int16)
        self._free = np.zeros(rows, np.int64)
        self._all_sites, self._all_free = np.zeros(len(self.sizes.gpus), np.int64), 0
        self._version = self._shape_version = -1

    def _refresh(self, state: FleetState) -> None:
        changed = state.changed_since(self._version) if self._version >= 0 else None
        if changed is None or self._shape_version != state.shape_version:
            self._start(state.rows)
            changed = np.arange(state.rows)
        if 0 < len(changed) <= _FEW:
            for row in changed.tolist():
                self._refresh_row(state, row)
        elif len(changed):
            ready = state.ready[changed]
            sites = self.sizes.sites(_whole(state, changed), state.cpu_free_milli[changed]) * ready[:, None]
            free = state.gpu_free_total[changed] * ready
            self._all_sites += (sites - self._sites[changed]).sum(0, dtype=np.int64)
            self._all_free += int(free.sum() - self._free[changed].sum())
            self._sites[changed], self._free[changed] = sites, free
        self._version, self._shape_version = state.version, state.shape_version

    def _refresh_row(self, state: FleetState, row: int) -> None:
        """The same for one row, without a dozen numpy calls."""
        ready = bool(state.ready[row])
        whole = int(np.count_nonzero(state.gpu_free_milli[row] >= WHOLE_GPU)) if ready else 0
        cpu_milli = max(int(state.cpu_free_milli[row]), 0)
        free = int(state.gpu_free_total[row]) if ready else 0
        for index, (gpus, cpu) in enumerate(self._each):
            result = min(whole // gpus, cpu_milli // cpu)
            self._all_sites[index] += result - self._sites[row, index]
            self._sites[row, index] = result
        self._all_free += free - int(self._free[row])
        self._free[row] = free


def _whole(state: FleetState, rows: Ints) -> Ints:
    whole: Ints = np.count_nonzero(state.gpu_free_milli[rows] >= WHOLE_GPU, axis=1)
    return whole


def _quantile(weighted: Sequence[tuple[int, float]]) -> int:
    """The smallest amount that at least `CPU_QUANTILE` of the weight does not exceed."""
    total, passed = sum(weight for _, weight in weighted), 0.0
    for amount, weight in sorted(weighted):
        passed += weight
        if passed >= CPU_QUANTILE * total - 1e-12:
            return amount
    return 0
