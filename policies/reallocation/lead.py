"""How long before a need GPUs have to be asked back: a service's cold start, a borrower's drain, its checkpoint."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_S, LONGEST_S = 60.0, 3600.0
QUANTILE = 0.9
_START_S, _SAVE_S = 120.0, 60.0
"""While none was seen."""


@dataclass(frozen=True)
class LeadTime:
    """``needed_s`` is what passes from the moment at which a borrower is told to go until the service is ready on its
    GPUs; what is left of ``seconds`` is there to wait for a checkpoint."""

    seconds: float
    needed_s: float


def lead_time(given_s: float | None, starts_s: Sequence[float], grace_s: float, saves_s: Sequence[float]) -> LeadTime:
    """``starts_s``: from a pod's node to its readiness, as seen; ``grace_s``: the longest grace of a borrower's pods.

    A lead time that was given stands, however long the parts of it are found to be.
    """
    needed_s = quantile(starts_s, _START_S) + grace_s
    learned_s = min(max(needed_s + quantile(saves_s, _SAVE_S), SHORTEST_S), LONGEST_S)
    seconds = learned_s if given_s is None else given_s
    return LeadTime(seconds, min(needed_s, seconds))


def quantile(values: Sequence[float], default: float) -> float:
    """The smallest seen value that at least ``QUANTILE`` of them do not exceed."""
    return sorted(values)[math.ceil(QUANTILE * len(values)) - 1] if values else default
