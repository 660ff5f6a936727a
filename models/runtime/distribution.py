"""A distribution of run times between and beyond its quantiles, and the same once a job has run for a while."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import Array

_LEAST_TAIL = 0.25
"""Of the mean by which log times exceed the last quantile; a tail is never taken to end."""


@dataclass(frozen=True)
class LogTimes:
    """Quantiles of a logarithm of seconds at ``LEVELS``, non-decreasing.

    Linear between them. Above the last, log times are exponential (times Pareto) with the mean that the last two
    quantiles imply, as run times of clusters have heavy tails (Jeon et al., ATC 2019); below the first the same,
    downwards.
    """

    values: tuple[float, ...]

    @property
    def _upper(self) -> float:
        return max(_LEAST_TAIL, (self.values[-1] - self.values[-2]) / math.log((1 - LEVELS[-2]) / (1 - LEVELS[-1])))

    @property
    def _lower(self) -> float:
        return max(_LEAST_TAIL, (self.values[1] - self.values[0]) / math.log(LEVELS[1] / LEVELS[0]))

    def probability_below(self, log_seconds: float) -> float:
        """Of a run that is no longer than this."""
        if log_seconds >= self.values[-1]:
            return 1 - (1 - LEVELS[-1]) * math.exp((self.values[-1] - log_seconds) / self._upper)
        if log_seconds < self.values[0]:
            return LEVELS[0] * math.exp((log_seconds - self.values[0]) / self._lower)
        # The last of equal quantiles: np.interp takes the rightmost where values repeat.
        return float(np.interp(log_seconds, self.values, LEVELS))

    def quantile(self, level: float) -> float:
        """Log seconds; ``level`` in (0, 1)."""
        if level > LEVELS[-1]:
            return self.values[-1] + self._upper * math.log((1 - LEVELS[-1]) / (1 - level))
        if level < LEVELS[0]:
            return self.values[0] + self._lower * math.log(level / LEVELS[0])
        return float(np.interp(level, LEVELS, self.values))

    def quantiles_after(self, log_elapsed: float, levels: Sequence[float]) -> tuple[float, ...]:
        """Quantiles of the whole run's log seconds, given that it has run for that long."""
        below = min(self.probability_below(log_elapsed), 1 - 1e-9)
        if log_elapsed >= self.values[-1]:
            # By the tail's own law: 1 - F would lose its digits far out.
            return tuple(log_elapsed - self._upper * math.log(1 - level) for level in levels)
        return tuple(max(log_elapsed, self.quantile(below + (1 - below) * level)) for level in levels)


def sorted_rows(quantiles: Array) -> Array:
    """Quantiles (n, len(LEVELS)) in order: separate models may cross."""
    return np.sort(quantiles, axis=1)
