"""What is answered without a model: the last runs of a class, as they were."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kopt.core.workload.run_time import LEVELS
from kopt.features.job_history import RECENT, Array, quantiles_of

_SPREAD_OF_FEW = 1.2
"""Log units that an answer from a few runs is wider by, shrinking with their root: a factor of 3."""


def recent_quantiles(log_seconds: Sequence[float]) -> Array:
    """Quantiles (7,) of the last ``RECENT`` runs, in log seconds; the fewer there are, the wider; not to be written to.
    Raises ValueError without any."""
    if not len(log_seconds):
        raise ValueError("no run to answer from")
    return _quantiles(tuple(log_seconds[-RECENT:]))


@lru_cache(maxsize=4096)
def _quantiles(log_seconds: tuple[float, ...]) -> Array:
    """Kept: questions about a class are many, and its runs end rarely."""
    widened = np.sign(np.array(LEVELS) - 0.5) * _SPREAD_OF_FEW / np.sqrt(len(log_seconds) + 1)
    widened[[2, 4]] *= 0.5
    result: Array = np.array(quantiles_of(sorted(log_seconds), LEVELS)) + widened
    result.flags.writeable = False
    return result
