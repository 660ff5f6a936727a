"""What is answered without a model: the last runs of a class, as they were."""

from collections.abc import Sequence

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import RECENT, Array

_SPREAD_OF_FEW = 1.2
"""Log units that an answer from a few runs is wider by, shrinking with their root: a factor of 3."""


def recent_quantiles(log_seconds: Sequence[float]) -> Array:
    """Quantiles (7,) of the last ``RECENT`` runs, in log seconds; the fewer there are, the wider. Raises ValueError
    without any."""
    values = np.array(log_seconds[-RECENT:])
    if not len(values):
        raise ValueError("no run to answer from")
    widened = np.sign(np.array(LEVELS) - 0.5) * _SPREAD_OF_FEW / np.sqrt(len(values) + 1)
    widened[[2, 4]] *= 0.5
    result: Array = np.quantile(values, LEVELS) + widened
    return result
