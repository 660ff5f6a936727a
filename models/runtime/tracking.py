"""Outer quantiles follow what a queue's finished jobs show; the median and its neighbours are left alone.

Quantile tracking (Angelopoulos, Candès, Tibshirani: Conformal PID control for time series prediction, 2023): after each
finished job a quantile moves up when the job was above it, and down when it was below, so that in the long run the
share above it is what it says, whatever the queue does. Moving the median so makes it worse (it is asked to be near,
not to be right half of the time), so only what bounds an interval moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import Array

RATE = 0.01
"""Log units. Runs end in bursts, and a quantile that follows one of them is wrong for the next."""
_MOST = 6.0
"""Log units that a quantile may be moved by: a factor of 400."""
_OUTER = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
_LEVELS = np.array(LEVELS)


@dataclass
class QuantileTracker:
    """One queue's offsets (log units) of ``LEVELS``; zero before anything ended."""

    rate: float = RATE
    offsets: Array = field(default_factory=lambda: np.zeros(len(LEVELS)))

    def apply(self, quantiles: Array) -> Array:
        """Quantiles (…, 7) with the offsets; they stay in order."""
        moved = np.array(quantiles, dtype=float) + self.offsets
        # No inner quantile is moved by an outer one.
        moved[..., 0] = np.minimum(moved[..., 0], moved[..., 1])
        moved[..., -1] = np.maximum(moved[..., -1], moved[..., -2])
        return moved

    def observe(self, quantiles: Sequence[float] | Array, log_seconds: float) -> None:
        """A job ended that was answered with these quantiles, before offsets, and took ``log_seconds``."""
        above = (log_seconds > np.asarray(quantiles) + self.offsets).astype(float)
        step = self.rate * _OUTER * (above - (1 - _LEVELS))
        self.offsets = np.clip(self.offsets + step, -_MOST, _MOST)
