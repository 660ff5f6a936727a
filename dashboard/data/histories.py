"""Where histories come from: the folder that ``kopt up`` and ``kopt train --data`` leave under KOPT_HOME, and the store
of live demand that the endpoint answers from."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from kopt.data.demand.files import read_demand
from kopt.data.demand.table import GRID_S, DemandDataError, DemandSeries
from kopt.features.live import KEPT_S, LiveHistories
from kopt.features.rows import FeatureStoreError

LIVE_WITHIN_S = 86_400.0
"""A service that was pushed longer ago is no live one any more."""
WINDOW_S = 15 * 86_400
"""History kept in memory and sent to the endpoint per service."""
LONGEST_BUCKETS = 20_000


class Histories(Protocol):
    """A supply of demand histories. ``read`` may block; it runs in a thread."""

    def read(self) -> Sequence[DemandSeries]:
        """Every service's recent demand. Raises DemandDataError with a way out."""

    @property
    def live(self) -> Collection[str]:
        """Of what was read last, the services that the endpoint knows itself: they are asked about by name."""


@dataclass
class LiveServices:
    """What is pushed to the endpoint now, before what stands in ``folder``. ``open_store`` is called on first use.

    It is read at most every ``every_s``: a thousand services are 32 MiB, and have a new bucket every five minutes.
    """

    folder: Histories
    open_store: Callable[[], LiveHistories]
    clock: Callable[[], float] = time.time
    every_s: float = 60.0
    live: Collection[str] = ()
    _store: LiveHistories | None = None
    _series: Mapping[str, DemandSeries] = field(default_factory=dict)
    _read_at_s: float = float("-inf")

    def read(self) -> Sequence[DemandSeries]:
        if not 0 <= self.clock() - self._read_at_s < self.every_s:
            try:
                self._series = self._pushed()
            except FeatureStoreError as error:
                raise DemandDataError(f"the store of live demand: {error}") from error
            self._read_at_s, self.live = self.clock(), frozenset(self._series)
        others = [series for series in self.folder.read() if series.name not in self._series]
        return [*self._series.values(), *others]

    def _pushed(self) -> Mapping[str, DemandSeries]:
        if self._store is None:
            self._store = self.open_store()
        names = self._store.services(self.clock() - KEPT_S)
        oldest_s = self.clock() - LIVE_WITHIN_S
        pushed = self._store.series(names).values()
        return {series.name: recent(series) for series in pushed if (last_value_s(series) or 0.0) >= oldest_s}


@dataclass
class FolderHistories:
    """The Parquet or CSV files of a folder, read again when they change."""

    folder: Path
    live: Collection[str] = ()
    _stamp: tuple[tuple[str, int, int], ...] = ()
    _series: Sequence[DemandSeries] = ()

    def read(self) -> Sequence[DemandSeries]:
        """Series on the forecast's grid, cut to the last ``WINDOW_S``; empty where nothing was written yet."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._series = [recent(series) for series in read_demand(self.folder)] if stamp else []
            self._stamp = stamp
        return self._series

    def _stamp_now(self) -> tuple[tuple[str, int, int], ...]:
        """Name, time and size of every file; the folder may not exist yet."""
        try:
            stats = [(path.name, path.stat()) for path in sorted(self.folder.iterdir())]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise DemandDataError(f"{self.folder}: {error.strerror}") from error
        return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def recent(series: DemandSeries) -> DemandSeries:
    """The newest part of a series, summed to five minutes where it is finer."""
    if series.step_s < GRID_S and GRID_S % series.step_s == 0 and len(series) * series.step_s >= GRID_S:
        series = _aligned_to_end(series).resampled()
    return series.tail(min(LONGEST_BUCKETS, max(1, WINDOW_S // series.step_s)))


def _aligned_to_end(series: DemandSeries) -> DemandSeries:
    """Coarse buckets are counted from the first; starting late makes the newest one whole."""
    return series.tail(len(series) // (GRID_S // series.step_s) * (GRID_S // series.step_s))


def last_value_s(series: DemandSeries) -> float | None:
    """End of the newest bucket with a value."""
    filled = np.flatnonzero(np.isfinite(series.value))
    return float(series.times_s[filled[-1]] + series.step_s) if len(filled) else None
