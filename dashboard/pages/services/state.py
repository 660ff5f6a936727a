"""The state of one service in a word and a sentence."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kopt.core.reason import Reason
from kopt.dashboard.data.sources import Service
from kopt.dashboard.formatting import span

STALE_BUCKETS = 3
STALE_AFTER_S = 900.0
"""Data is stale when older than three buckets and a quarter of an hour."""


class State(StrEnum):
    """Ordered by how much it needs a person's eye."""

    REFUSED = "refused"
    STALE = "stale"
    FALLBACK = "fallback"
    PENDING = "pending"
    OK = "ok"

    @property
    def rank(self) -> int:
        return list(State).index(self)


@dataclass(frozen=True)
class Condition:
    """A state with the reason for it."""

    state: State
    why: str


def newest_s(service: Service) -> float | None:
    """End of the newest bucket that holds a value, on the clock of the series; None without any."""
    filled = np.flatnonzero(np.isfinite(service.series.value))
    return None if not len(filled) else float(service.series.times_s[filled[-1]] + service.series.step_s)


def age_s(service: Service) -> float | None:
    """How long ago the newest value was collected."""
    at_s = newest_s(service)
    return None if at_s is None else max(0.0, service.clock_s - at_s)


def condition(service: Service) -> Condition:
    """What the reader should think of the numbers beside it."""
    age, forecast = age_s(service), service.forecast
    if age is not None and age > max(STALE_AFTER_S, STALE_BUCKETS * service.series.step_s):
        return Condition(State.STALE, f"The newest value is {span(age)} old; check the collector of this service.")
    if forecast is None:
        return Condition(State.PENDING, "The first forecast has not come in yet.")
    refused = next((h.demand for h in forecast.horizons if h.demand.refused), None)
    if refused is not None:
        return Condition(State.REFUSED, refused.reasons[0].message)
    if forecast.fallback:
        fallback = next(h.demand for h in forecast.horizons if h.demand.fallback)
        return Condition(State.FALLBACK, _first(fallback.reasons, "Answered without the model."))
    return Condition(State.OK, "Forecast by the model on fresh data.")


def _first(reasons: tuple[Reason, ...], otherwise: str) -> str:
    return reasons[0].message if reasons else otherwise
