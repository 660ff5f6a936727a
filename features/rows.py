"""Rows as they come out of the feature store, and the times they carry."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries

Array = NDArray[np.float64]
Times = NDArray[np.datetime64]

ANCHOR_S = 946_684_800.0
"""2000-01-01T00:00:00Z: where series whose start is unknown begin their own time in the store."""
TTL_S = 3600.0
"""Rows older than this are stale: joins do not reach further back, online rows are flagged."""
_LATEST_S = 7_258_118_400.0
"""2200-01-01T00:00:00Z; nanosecond timestamps of pandas end in 2262."""


class FeatureStoreError(RuntimeError):
    """The store cannot do what was asked; the message says which part of it and what to do."""


@dataclass(frozen=True)
class HistoricalTable:
    """Features as they were known at each origin, joined with what came after.

    ``features`` (n, F), NaN rows where nothing was known; ``targets`` (n, H) the values the horizons later, NaN where
    unknown; ``series`` (n,) names; ``origins_s`` (n,) the start of each origin's bucket and ``available_at_s`` (n,) its
    end, ``features_at_s`` (n,) the event time of the joined row, NaN for none; all in the series' own seconds.
    """

    features: Array
    targets: Array
    series: NDArray[np.str_]
    origins_s: Array
    available_at_s: Array
    features_at_s: Array

    def __len__(self) -> int:
        return len(self.features)

    @property
    def joined(self) -> NDArray[np.bool_]:
        """Which rows have features at all, shape (n,)."""
        return np.isfinite(self.features_at_s)


@dataclass(frozen=True)
class OnlineRows:
    """The newest features of services: ``features`` (n, F) and ``observed_at_s`` (n,), NaN for absent services.

    ``observed_at_s`` is the end of the newest bucket, in Unix seconds where ``start_known`` (n,), else in the series'
    own.
    """

    names: tuple[str, ...]
    features: Array
    observed_at_s: Array
    start_known: NDArray[np.bool_]
    now_s: float

    @property
    def present(self) -> NDArray[np.bool_]:
        return np.isfinite(self.observed_at_s)

    @property
    def age_s(self) -> Array:
        """Seconds since the newest bucket ended; NaN for absent services and for series whose start is unknown."""
        return np.where(self.start_known, self.now_s - self.observed_at_s, np.nan)

    @property
    def stale(self) -> NDArray[np.bool_]:
        return self.age_s > TTL_S

    def problems(self) -> Mapping[str, Reason]:
        """Why a service has no usable row, by name: ``NO_FEATURES`` or ``STALE_FEATURES``."""
        problems = {}
        for name, present, age_s in zip(self.names, self.present, self.age_s, strict=True):
            if not present:
                message = f"no features are stored for {name!r}; write its history, or send it with the request"
                problems[name] = Reason("NO_FEATURES", message)
            elif age_s > TTL_S:
                message = f"the newest features of {name!r} are {age_s:.0f} s old, more than {TTL_S:.0f} s"
                problems[name] = Reason("STALE_FEATURES", message, {"age_s": float(age_s)})
        return problems


def available_at_s(series: DemandSeries) -> Array:
    """End of every bucket in the series' own seconds, shape (n,): when its value is known."""
    return series.times_s + series.step_s


def event_times(series: DemandSeries) -> Times:
    """``available_at_s`` as UTC microseconds, shape (n,), moved to the anchor where the start is unknown.

    Raises FeatureStoreError outside 1970 to 2200.
    """
    seconds = available_at_s(series) + (0.0 if series.start_known else ANCHOR_S)
    if not 0 <= seconds[0] <= seconds[-1] <= _LATEST_S:
        raise FeatureStoreError(
            f"series {series.name!r} starts at {series.start_s:g} s, which is not between 1970 and 2200; "
            "give Unix seconds, or seconds since its first bucket where the start is unknown"
        )
    return np.round(seconds * 1e6).astype("datetime64[us]")
