"""The formula of priority as one number that never has to be written again.

All workloads gain the same by an hour, so that the difference of two scores is the same at any time, and with it the
order. In place of the hours that a workload has waited stand those from its creation to the year 2100: whoever came
earlier has more of them.

    number = ⌊scale × (class + per_doubling × log2(GPUs) + age_per_hour × hours to 2100)⌋

``scale`` makes the most of a 32-bit integer. Of equal numbers the queue itself admits the older first.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from kopt.policies.priority.formula import PendingWorkload, PriorityFormula

FIRST_S, LAST_S = 1_577_836_800.0, 4_102_444_800.0
"""The beginnings of 2020 and of 2100; creations outside of them count as these."""
HIGHEST, LOWEST = 2**31 - 2, -(2**31) + 2
"""Kubernetes' priorities are 32-bit; the ends are left to others."""
_FINEST = 100
"""Parts of a point: with 10 points an hour four seconds."""


@dataclass(frozen=True)
class QueueOrder:
    """Raises ValueError for weights that are no formula, or under which 80 years do not fit into 32 bits.

    ``highest_class``: larger priorities count as this. Without such a bound nothing bounds how long a workload can be
    overtaken.
    """

    age_per_hour: float = 10.0
    per_doubling: float = 5.0
    highest_class: float = 1000.0
    most_gpus: int = 1024

    def __post_init__(self) -> None:
        if self._most_points > HIGHEST:
            raise ValueError(
                f"{self.age_per_hour:g} points an hour and a highest class of {self.highest_class:g} are more until "
                "2100 than a priority can say: divide both by the same"
            )

    @cached_property
    def identity(self) -> str:
        """Numbers by other weights cannot be compared with these."""
        weights = (self.age_per_hour, self.per_doubling, self.highest_class, self.most_gpus)
        return "/".join(f"{weight:g}" for weight in weights)

    @cached_property
    def formula(self) -> PriorityFormula:
        """Shares that are used play no part: they change, and the number does not."""
        return PriorityFormula(self.highest_class, self.age_per_hour, self.per_doubling, 0.0, self.most_gpus)

    @property
    def resolution_s(self) -> float:
        """Workloads alike but for less than this in age may have the same number."""
        return 3600 / (self.age_per_hour * self._scale)

    def number(self, workload: PendingWorkload) -> int:
        """The same at any time; ``submitted_s`` in Unix seconds."""
        created_s = min(max(workload.submitted_s, FIRST_S), LAST_S)
        at_submission = self.formula.points(workload)
        points = at_submission + self.age_per_hour * (LAST_S - created_s) / 3600
        return max(LOWEST, min(HIGHEST, math.floor(self._scale * points)))

    def overtaken_by_until_s(self, workload: PendingWorkload) -> float:
        """What is submitted this much later, or more, is never before it."""
        return self.formula.overtaken_for_s(workload) + self.resolution_s

    @cached_property
    def _scale(self) -> int:
        return min(_FINEST, int(HIGHEST / self._most_points))

    @property
    def _most_points(self) -> float:
        return self.formula.top + self.age_per_hour * (LAST_S - FIRST_S) / 3600
