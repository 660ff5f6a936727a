"""The feature store of demand: Feast over Parquet and DuckDB (history) and SQLite or Redis (newest rows).

Everything runs in this process.
"""

import fcntl
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kopt.core.settings import Settings
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features import demand
from kopt.features.demand import FEATURES, HORIZONS_S, LOOKBACK_S, steps_ahead
from kopt.features.feast_store import FeastStore, source_digest
from kopt.features.rows import FeatureStoreError, HistoricalTable, OnlineRows, available_at_s, event_times
from kopt.features.session import duckdb_session

if TYPE_CHECKING:
    from kopt.features.repository.definitions import Repository
    from kopt.features.repository.reader import OnlineReader

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_JOIN_ROWS = 50_000
"""Entity rows per join: Feast joins each with every row inside the time to live before it keeps the newest."""
_READ_NAMES = 500
_OLDER_KEPT = 1


class DemandFeatureStore(FeastStore):
    """Feature rows of demand series, for training as of any origin and for serving as of now.

    Its folder is named after the transformation, so that rows of another version of it are never mixed in.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, transformation_digest())
        self._offline = self.folder / "offline"

    def write(self, series: Iterable[DemandSeries]) -> int:
        """Computes and stores the rows of every observed bucket; returns how many.

        A series replaces what was stored under its name as a whole, so late data, duplicates and any order of calls
        end in the rows of the last call. Finer series are summed to the grid first.
        """
        from kopt.features.offline import feature_rows, file_of, replace_rows

        named = _unnamed_twice(series)
        self.apply()
        written = 0
        for demand_series in named:
            rows = feature_rows(demand_series.resampled(GRID_S))
            replace_rows(file_of(self._offline, demand_series.name), rows)
            written += rows.num_rows
        return written

    def training_table(
        self,
        series: Iterable[DemandSeries],
        horizons_s: Sequence[float] = HORIZONS_S,
        origins: Mapping[str, Index] | None = None,
    ) -> HistoricalTable:
        """Stored features as of each origin, joined point-in-time, with the values the horizons later.

        ``origins`` gives bucket indexes (on the grid) by series name; by default every observed bucket with a known
        target. Rows without stored features stay, with NaN.
        """
        parts = [
            _origins(demand_series.resampled(GRID_S), horizons_s, origins) for demand_series in _unnamed_twice(series)
        ]
        if not parts:
            nothing = np.empty(0)
            shape = (0, len(FEATURES)), (0, len(horizons_s))
            return HistoricalTable(
                np.empty(shape[0]), np.empty(shape[1]), np.empty(0, dtype=np.str_), nothing, nothing, nothing
            )
        names, times, starts, ends, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
        joined = self._join(names, times)
        return HistoricalTable(joined[:, :-1], targets, names, starts, ends, joined[:, -1])

    def materialise(self, upto_s: float | None = None, names: Iterable[str] | None = None) -> int:
        """Makes the newest stored row of each service (of ``names``: of these) its online row; returns how many.

        ``upto_s`` (Unix seconds) leaves newer rows out. Services without rows keep what they have.
        """
        from kopt.features.offline import file_of, latest_row

        self.apply()
        upto = None if upto_s is None else np.datetime64(round(upto_s * 1e6), "us")
        files = self._files() if names is None else [file_of(self._offline, name) for name in names]
        result = (latest_row(file, upto) for file in files if file.exists())
        rows = [row for row in result if row is not None]
        self._write_online("demand_features", rows)
        return len(rows)

    def put_online(self, series: Iterable[DemandSeries]) -> int:
        """Makes the newest observed bucket of each series its online row, without storing its history; returns how
        many. Series are on the grid."""
        from kopt.features.offline import feature_rows

        self.apply()
        # What is older changes no input of a model, and takes two thirds of the time.
        recent = (demand_series.tail(LOOKBACK_S // GRID_S + 2) for demand_series in _unnamed_twice(series))
        rows = [feature_rows(demand_series, newest_only=True) for demand_series in recent]
        self._write_online("demand_features", rows)
        return sum(table.num_rows for table in rows)

    def online(self, names: Sequence[str], now_s: float | None = None) -> OnlineRows:
        """The newest rows of services, in the order asked for; absent ones are NaN (``OnlineRows.problems``).

        ``now_s`` (default: the clock) is what ages are measured against.
        """
        self.apply()
        values = np.full((len(names), len(FEATURES) + 2), np.nan)
        for start in range(0, len(names), _READ_NAMES):
            block = names[start : start + _READ_NAMES]
            with self._errors():
                values[start : start + len(block)] = self._reader.rows(block)
        has_start = values[:, -1] == 1.0
        now = time.time() if now_s is None else now_s
        return OnlineRows(tuple(names), values[:, :-2], values[:, -2], has_start, now)

    def _schemas(self) -> Mapping[Path, Any]:
        from kopt.features.offline import SCHEMA

        return {self._offline: SCHEMA}

    def _create(self) -> None:
        super()._create()
        self._prune()

    def _prune(self) -> None:
        """Removes folders of older transformations but the newest: a version that is rolled back to finds its own."""
        folders = (path.parent for path in self._settings.feast_repo.glob("*/registry.db"))
        # Those of runs have names of their own.
        others = [folder for folder in folders if folder != self.folder and "_" not in folder.name]
        for old in sorted(others, key=lambda folder: folder.stat().st_mtime, reverse=True)[_OLDER_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    @cached_property
    def _repository(self) -> "Repository":
        from kopt.features.repository.definitions import repository

        return repository(self._offline)

    @cached_property
    def _reader(self) -> "OnlineReader":
        from kopt.features.repository.reader import OnlineReader

        return OnlineReader(self._config, self._repository.view)

    def _join(self, names: NDArray[np.str_], times: NDArray[np.datetime64]) -> Array:
        """Features and event times of the rows known at ``times``, shape (n, F + 1), by Feast's historical join."""
        from kopt.features.offline import rows_lock

        self.apply()
        joined = np.empty((len(names), len(FEATURES) + 1))
        # One hold over all parts, so that a series is of one version; writers wait meanwhile.
        with rows_lock(self._offline, fcntl.LOCK_SH), self._errors(), duckdb_session(self.folder):
            service = self._feast.get_feature_service("demand_v1")
            for start in range(0, len(names), _JOIN_ROWS):
                part = slice(start, start + _JOIN_ROWS)
                joined[part] = self._join_part(service, names[part], times[part])
        return joined

    def _join_part(self, service: Any, names: NDArray[np.str_], times: NDArray[np.datetime64]) -> Array:
        import pandas as pd

        entities = pd.DataFrame({"service": names, "event_timestamp": pd.to_datetime(times, utc=True)})
        entities["row"] = np.arange(len(names))
        answer = self._feast.get_historical_features(entities, service).to_arrow()
        columns = [answer[name].to_numpy() for name in (*FEATURES, "observed_at_s")]
        # The join keeps no order.
        return np.column_stack(columns)[np.argsort(answer["row"].to_numpy())]


def transformation_digest() -> str:
    """Names the transformation by its source text, 12 hexadecimal digits."""
    return source_digest(demand)


def _unnamed_twice(series: Iterable[DemandSeries]) -> list[DemandSeries]:
    selected = list(series)
    for name, count in Counter(demand_series.name for demand_series in selected).items():
        if count > 1:
            raise FeatureStoreError(f"two series are called {name!r}; give each service its own name")
    return selected


def _origins(
    series: DemandSeries, horizons_s: Sequence[float], origins: Mapping[str, Index] | None
) -> tuple[NDArray[Any], ...]:
    """Names, event times, starts and ends of the origins' buckets, and targets (n, H)."""
    ahead = np.array([steps_ahead(horizon, series.step_s) for horizon in horizons_s])
    padded = np.append(series.value, np.full(ahead.max(initial=0), np.nan))
    targets = padded[np.arange(len(series))[:, None] + ahead]
    if origins is None:
        origin_rows = np.flatnonzero(np.isfinite(series.value) & np.isfinite(targets).any(1))
    else:
        origin_rows = np.asarray(origins.get(series.name, ()), dtype=np.int64)
    names = np.full(len(origin_rows), series.name)
    return (
        names,
        event_times(series)[origin_rows],
        series.times_s[origin_rows],
        available_at_s(series)[origin_rows],
        targets[origin_rows],
    )
