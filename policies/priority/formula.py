"""The score of a waiting workload, its parts, and the bound on how long it can be overtaken."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """``class_points``: the number of its priority class. ``usage``: the share of its queue's or team's guarantee that
    is in use, 0 to 1; ``submitted_s`` on any clock."""

    name: str
    class_points: float
    gpus: float
    submitted_s: float
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """A workload's rank, from 1, and its score as a sum of points, of which ``capped`` is what is above the top."""

    workload: PendingWorkload
    rank: int
    score: float
    age_points: float
    gpu_points: float
    usage_points: float
    capped: float


@dataclass(frozen=True)
class PriorityFormula:
    """Weights in points. Raises ValueError for weights without a bound on overtaking.

    ``highest_class``: the largest number of a class that there is; larger ones count as this. ``most_gpus``: workloads
    with more GPUs gain no more.
    """

    highest_class: float
    age_per_hour: float = 10.0
    per_doubling: float = 5.0
    usage_weight: float = 20.0
    most_gpus: int = 1024

    def __post_init__(self) -> None:
        weights = (self.age_per_hour, self.per_doubling, self.usage_weight, float(self.most_gpus), self.highest_class)
        if not all(math.isfinite(weight) for weight in weights):
            raise ValueError("weights must be finite")
        if self.age_per_hour <= 0:
            raise ValueError(f"{self.age_per_hour:g} points an hour: without a gain by age nothing is bounded")
        if self.per_doubling < 0 or self.usage_weight < 0 or self.most_gpus < 1:
            raise ValueError("weights of GPUs and usage must not be negative, and most_gpus at least 1")

    @property
    def top(self) -> float:
        """No score is higher."""
        return self.highest_class + self.per_doubling * math.log2(self.most_gpus)

    def score(self, workload: PendingWorkload, now_s: float) -> float:
        return min(self.top, sum(self._parts(workload, now_s)))

    def points(self, workload: PendingWorkload) -> float:
        """What it has at its submission, with nothing used."""
        return self._class_points(workload) + self._gpu_points(workload)

    def overtaken_for_s(self, workload: PendingWorkload) -> float:
        """So long after its submission at most does it wait behind anything that is submitted later, whatever share of
        a guarantee is used meanwhile."""
        least = self.points(workload) - self.usage_weight
        return max(0.0, (self.top - least) / self.age_per_hour * 3600)

    def ranked(self, workloads: Sequence[PendingWorkload], now_s: float) -> list[Scored]:
        """All of them, the first to start first."""
        scored = []
        for workload in workloads:
            parts = self._parts(workload, now_s)
            scored.append((-min(self.top, sum(parts)), workload.submitted_s, workload.name, workload, parts))
        scored.sort(key=lambda item: item[:3])
        return [
            Scored(workload, rank, -negative, parts[1], parts[2], parts[3], max(0.0, sum(parts) - self.top))
            for rank, (negative, _, _, workload, parts) in enumerate(scored, start=1)
        ]

    def order(
        self, class_points: Floats, gpus: Floats, submitted_s: Floats, usage: Floats, now_s: float
    ) -> NDArray[np.int64]:
        """The same for very many at once, as indexes, the first to start first; all arrays are (workloads,). Of equal
        score and submission the lower index is first."""
        points = np.minimum(class_points, self.highest_class)
        points = points + self.age_per_hour * np.maximum(0.0, now_s - submitted_s) / 3600
        points += self.per_doubling * np.log2(np.clip(gpus, 1.0, self.most_gpus))
        points -= self.usage_weight * np.clip(usage, 0.0, 1.0)
        array: NDArray[np.int64] = np.lexsort((submitted_s, -np.minimum(points, self.top)))
        return array

    def _parts(self, workload: PendingWorkload, now_s: float) -> tuple[float, float, float, float]:
        age_h = max(0.0, now_s - workload.submitted_s) / 3600
        usage = min(1.0, max(0.0, workload.usage))
        own = self._class_points(workload)
        return own, self.age_per_hour * age_h, self._gpu_points(workload), -self.usage_weight * usage

    def _class_points(self, workload: PendingWorkload) -> float:
        return min(workload.class_points, self.highest_class)

    def _gpu_points(self, workload: PendingWorkload) -> float:
        return self.per_doubling * math.log2(min(max(1.0, workload.gpus), self.most_gpus))
