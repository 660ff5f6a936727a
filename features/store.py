"""The feature store of demand: Feast over Parquet and DuckDB (history) and SQLite or Redis (newest rows).

Everything runs in this process. Feast is imported on first use: ten seconds and hundreds of MiB.
"""

import contextlib
import fcntl
import hashlib
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kopt.core.settings import Settings
from kopt.core.sqlite_files import write_ahead
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features import demand
from kopt.features.demand import FEATURES, HORIZONS_S, LOOKBACK_S, steps_ahead
from kopt.features.rows import FeatureStoreError, HistoricalTable, OnlineRows, available_at_s, event_times
from kopt.features.session import duckdb_session, quietly, store_errors

if TYPE_CHECKING:
    from kopt.features.repository.definitions import Repository
    from kopt.features.repository.reader import OnlineReader

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_JOIN_ROWS = 50_000
"""Entity rows per join: Feast joins each with every row inside the time to live before it keeps the newest."""
_READ_NAMES = 500
_OLDER_KEPT = 1


class DemandFeatureStore:
    """Feature rows of demand series, for training as of any origin and for serving as of now.

    State lies in a folder of ``settings.feast_repo`` named after the transformation, so that rows of another version of
    it are never mixed in. Every method creates what is missing. Errors are FeatureStoreError.
    """

    def __init__(self, settings: Settings) -> None:
        if set("*?[") & set(str(settings.feast_repo)):
            raise FeatureStoreError(
                f"DuckDB takes *, ? and [ in {settings.feast_repo} for patterns; set another KOPT_HOME"
            )
        self._settings = settings
        self.folder = settings.feast_repo / transformation_digest()
        self._offline = self.folder / "offline"
        self._applied = False

    def apply(self) -> None:
        """Creates the stores and registers the definitions; does nothing where that has been done."""
        marker = self.folder / f"applied-{'redis' if self._settings.redis_url else 'sqlite'}"
        if self._applied or marker.exists():
            self._applied = True
            return
        with self._errors(), self._locked():
            if not marker.exists():
                self._create()
                marker.touch()
        self._applied = True

    def connect(self) -> None:
        """Imports Feast and opens the online store, so that the first reader need not wait seconds for that."""
        self.apply()
        with self._errors():
            _ = self._reader

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
        self._write_online(rows)
        return len(rows)

    def put_online(self, series: Iterable[DemandSeries]) -> int:
        """Makes the newest observed bucket of each series its online row, without storing its history; returns how
        many. Series are on the grid."""
        from kopt.features.offline import feature_rows

        self.apply()
        # What is older changes no input of a model, and takes two thirds of the time.
        recent = (demand_series.tail(LOOKBACK_S // GRID_S + 2) for demand_series in _unnamed_twice(series))
        rows = [feature_rows(demand_series, newest_only=True) for demand_series in recent]
        self._write_online(rows)
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

    def _write_online(self, rows: Sequence[Any]) -> None:
        """Arrow tables, of one row for each service."""
        if not rows:
            return
        import pyarrow as pa

        from kopt.features.offline import SCHEMA

        newest = pa.concat_tables(rows).cast(SCHEMA).to_pandas()
        with self._errors():
            # Not Feast's materialise: it sorts all history for the newest row and logs every call in the registry.
            self._feast.write_to_online_store("demand_features", newest)

    def _create(self) -> None:
        from kopt.features.offline import SCHEMA, replace_rows

        self._offline.mkdir(parents=True, exist_ok=True)
        # Gives Feast the columns while there is no series yet.
        replace_rows(self._offline / "none.parquet", SCHEMA.empty_table())
        if not self._settings.redis_url:
            with contextlib.closing(sqlite3.connect(self.folder / "online.db")) as online:
                write_ahead(online, time.sleep)
        with quietly():
            self._feast.apply(list(self._repository))
        self._prune()

    def _prune(self) -> None:
        """Removes folders of older transformations but the newest: a version that is rolled back to finds its own."""
        folders = (path.parent for path in self._settings.feast_repo.glob("*/registry.db"))
        # Those of runs have names of their own.
        others = [folder for folder in folders if folder != self.folder and "_" not in folder.name]
        for old in sorted(others, key=lambda folder: folder.stat().st_mtime, reverse=True)[_OLDER_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def _files(self) -> list[Path]:
        return sorted(self._offline.glob("*.parquet"))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @cached_property
    def _repository(self) -> "Repository":
        from kopt.features.repository.definitions import repository

        return repository(self._offline)

    @cached_property
    def _config(self) -> Any:
        from kopt.features.repository.definitions import repo_config

        return repo_config(self._settings, self.folder)

    @cached_property
    def _feast(self) -> Any:
        from kopt.features.repository.definitions import feature_store

        return feature_store(self._config)

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

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return store_errors(self.folder, self._torn)

    def _torn(self) -> FeatureStoreError | None:
        from kopt.features.offline import torn, unreadable

        broken = unreadable(self._files())
        return None if broken is None else torn(broken)


def transformation_digest() -> str:
    """Names the transformation by its source text, 12 hexadecimal digits."""
    return hashlib.sha256(Path(demand.__file__).read_bytes()).hexdigest()[:12]


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
