"""How full a node's GPUs can be expected to become: what a placement costs is the fill that it takes away.

Fragmentation gradient descent (Weng et al., ATC 2023) asks what the *next* typical pod could use. Here every free GPU
(a gap of some milli-GPU with its part of the node's free CPU) is offered ``OFFERS`` typical pods one after another,
takes each that fits, and its value is the milli-GPU filled in the end. A gap of 190 left beside a pod of 810 is worth
next to nothing where pods of 160 are rare, 530 left beside 470 is worth 470, and a GPU without CPU is worth nothing.

    x(c, f) <- x(c, f) + sum over pods (c', s) that fit:  p * (s + x(c - c', f - s) - x(c, f))

The node's CPU is split over its gaps by what each could be filled with if CPU did not matter; since one gap's pods may
take more than their part and another's less, the value is averaged over parts 0.7 to 1.4 times as large. Whole GPUs
have a bonus for pods that need several at once, worked out in the same way over the number of whole GPUs.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.typical import Kind, TypicalPods

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

OFFERS = 32
"""Typical pods that each gap is offered: one is short-sighted, a hundred overrates gaps that only rare pods fill."""
PARTS = tuple(part / 10 for part in range(7, 15))
CPU_ROWS = 129
MILLI_STEP = 10
_COLUMNS = WHOLE_GPU // MILLI_STEP + 1


@dataclass(frozen=True)
class FillTables:
    """Expected fill of gaps and whole GPUs, in milli-GPU; one table per group of models that the same pods can use.

    ``gap[group, cpu, milli]`` with CPU in steps of ``cpu_step`` milli-cores and milli-GPU in tens; ``bonus[group, cpu,
    whole]`` by free whole GPUs; ``group`` by the fleet's model code, the last entry for nodes without GPUs.
    """

    cpu_step: int
    gap: Floats
    bonus: Floats
    group: Ints

    def values(self, model: NDArray[np.int32], cpu_milli: Ints, free: NDArray[np.int32]) -> Floats:
        """Expected fill of nodes, shape (rows,), from model code and free CPU (rows,) and free milli-GPU (rows, G)."""
        group = self.group[model]
        cpu = np.maximum(cpu_milli, 0) / self.cpu_step
        column = np.maximum(free, 0) // MILLI_STEP
        best = self.gap[group[:, None], -1, column]
        total = best.sum(1)
        part = best * (cpu / np.maximum(total, 1e-9))[:, None]
        low = np.minimum(part.astype(np.int64), CPU_ROWS - 2)
        above = np.minimum(part - low, 1.0)
        lower, upper = self.gap[group[:, None], low, column], self.gap[group[:, None], low + 1, column]
        filled = (lower + above * (upper - lower)).sum(1)
        whole = np.count_nonzero(free == WHOLE_GPU, axis=1)
        array: Floats = filled + self.bonus[group, np.minimum(cpu.astype(np.int64), CPU_ROWS - 1), whole]
        return array


def build(typical: TypicalPods, models: Sequence[str], slots: int, largest_cpu_milli: int) -> FillTables:
    """Tables for a fleet's models, the most GPUs and the most milli-cores that one of its nodes has.

    Takes a tenth of a second per group of models.
    """
    step = _cpu_step(largest_cpu_milli)
    groups: dict[frozenset[Kind], int] = {}
    gaps: list[Floats] = []
    bonuses: list[Floats] = []
    of_model: list[int] = []
    for model in [*models, None]:
        kinds = frozenset(k for k in typical.weights if model is not None and (not k[3] or model in k[3]))
        if kinds not in groups:
            groups[kinds] = len(gaps)
            weights = {k: typical.weights[k] for k in kinds}
            gaps.append(_gaps(weights, step))
            bonuses.append(_bonus(weights, step, slots, gaps[-1][-1, -1]))
        of_model.append(groups[kinds])
    return FillTables(step, np.array(gaps), np.array(bonuses), np.array(of_model))


def _cpu_step(largest_cpu_milli: int) -> int:
    """Milli-cores per row, doubling with the largest node, so that a slightly larger one changes nothing."""
    step = 500
    while step * (CPU_ROWS - 1) < largest_cpu_milli:
        step *= 2
    return step


def _gaps(weights: dict[Kind, float], step: int) -> Floats:
    """Expected fill (CPU_ROWS, milli-GPU in tens) after all offers, averaged over `PARTS`."""
    chances = _chances(weights, step)
    filled = np.zeros((CPU_ROWS, _COLUMNS))
    fitting, reward = np.zeros_like(filled), np.zeros_like(filled)
    for (cpu, column), chance in chances.items():
        fitting[cpu:, column:] += chance
        reward[cpu:, column:] += chance * column * MILLI_STEP
    for _ in range(OFFERS):
        offered = reward + (1 - fitting) * filled
        for (cpu, column), chance in chances.items():
            offered[cpu:, column:] += chance * filled[: CPU_ROWS - cpu, : _COLUMNS - column]
        filled = offered
    rows = np.arange(CPU_ROWS)
    parts = [np.minimum(rows * part, CPU_ROWS - 1) for part in PARTS]
    smooth: Floats = np.mean([_between(filled, at) for at in parts], axis=0)
    return smooth


def _chances(weights: dict[Kind, float], step: int) -> dict[tuple[int, int], float]:
    """How often a pod takes so many CPU rows and tens of milli-GPU of one GPU, both rounded up: on one GPU, or shares
    of several."""
    chances: dict[tuple[int, int], float] = defaultdict(float)
    for (cpu, count, share, _), weight in weights.items():
        if (count == 1 or share < WHOLE_GPU) and (needed := -(-cpu // step)) < CPU_ROWS:
            chances[needed, -(-share // MILLI_STEP)] += weight
    return chances


def _between(table: Floats, rows: Floats) -> Floats:
    """The table's rows at fractional places."""
    low = np.minimum(rows.astype(np.int64), len(table) - 2)
    above = (rows - low)[:, None]
    between: Floats = table[low] * (1 - above) + table[low + 1] * above
    return between


def _bonus(weights: dict[Kind, float], step: int, slots: int, whole_value: float) -> Floats:
    """What whole GPUs are worth beyond one by one, (CPU_ROWS, slots + 1), by pods that need several at once."""
    worth = np.tile(np.arange(slots + 1) * whole_value, (CPU_ROWS, 1))
    chances: dict[tuple[int, int], float] = defaultdict(float)
    for (cpu, count, share, _), weight in weights.items():
        if share == WHOLE_GPU and 1 < count <= slots and (needed := -(-cpu // step)) < CPU_ROWS:
            chances[count, needed] += weight
    start = worth.copy()
    for _ in range(OFFERS):
        gained = np.zeros_like(worth)
        for (count, needed), chance in chances.items():
            gain = WHOLE_GPU * count + worth[needed:, : slots + 1 - count] - worth[needed:, count:]
            gained[needed:, count:] += chance * np.maximum(gain, 0.0)
        worth += gained
    return worth - start
