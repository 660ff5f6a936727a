"""How long before a spike GPUs have to be reclaimed: a service's cold start, a borrower's drain, its checkpoint."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_S, LONGEST_S = 60.0, 3600.0
QUANTILE = 0.9
_START_S, _SAVE_S = 120.0, 60.0
"""Assumed until the first is observed."""


@dataclass(frozen=True)
class LeadTime:
    """``needed_s`` is the time from the eviction of a borrower until the service is ready on its GPUs; the rest of
    ``seconds`` can be used to wait for a checkpoint."""

    seconds: float
    needed_s: float


def lead_time(
    configured_s: float | None, starts_s: Sequence[float], grace_s: float, saves_s: Sequence[float]
) -> LeadTime:
    """``starts_s``: observed times from a pod's scheduling to its readiness; ``grace_s``: the longest termination
    grace period of a borrower's pods.

    A configured lead time wins, however long its parts are observed to be.
    """
    needed_s = quantile(starts_s, _START_S) + grace_s
    learned_s = min(max(needed_s + quantile(saves_s, _SAVE_S), SHORTEST_S), LONGEST_S)
    seconds = learned_s if configured_s is None else configured_s
    return LeadTime(seconds, min(needed_s, seconds))


def quantile(values: Sequence[float], default: float) -> float:
    """The smallest of the values that at least ``QUANTILE`` of them do not exceed."""
    return sorted(values)[math.ceil(QUANTILE * len(values)) - 1] if values else default
