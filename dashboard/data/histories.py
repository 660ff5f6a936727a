"""Where histories come from: the folder that ``kopt up`` and ``kopt train --data`` leave under KOPT_HOME."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kopt.data.demand.files import read_demand
from kopt.data.demand.table import GRID_S, DemandDataError, DemandSeries

WINDOW_S = 15 * 86_400
"""History kept in memory and sent to the endpoint per service."""
LONGEST_BUCKETS = 20_000


class Histories(Protocol):
    """A supply of demand histories. ``read`` may block; it runs in a thread."""

    def read(self) -> Sequence[DemandSeries]:
        """Every service's recent demand. Raises DemandDataError with a way out."""


@dataclass
class FolderHistories:
    """The Parquet or CSV files of a folder, read again when they change."""

    folder: Path
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
