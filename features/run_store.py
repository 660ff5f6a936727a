"""The feature store of runs: Feast over Parquet and DuckDB (all rows, by when they were known) and SQLite or Redis (the
newest).

Everything runs in this process.
"""

import fcntl
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.features import job_history
from kopt.features.feast_store import FeastStore, source_digest
from kopt.features.job_history import GroupState, Key, keys_of
from kopt.features.rows import FeatureStoreError
from kopt.features.run_rows import (
    LATEST_S,
    Cluster,
    OnlineRuns,
    RunRows,
    states_over_time,
)
from kopt.features.session import duckdb_session

if TYPE_CHECKING:
    from kopt.features.repository.run_definitions import RunRepository
    from kopt.features.repository.run_reader import RunReader

_MOST_PARTS = 64
_WRITTEN_ROWS = 20_000
_MARKER = "all"
"""Of the row that says how far a cluster's rows go; written after the others."""


class RunFeatureStore(FeastStore):
    """Rows of runs, for any moment and for now. Its folder is named after the transformation."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, f"runs_{source_digest(job_history)}")
        self._groups, self._calibrations = self.folder / "groups", self.folder / "calibrations"

    def write(self, cluster: Cluster, runs: Sequence[JobRun], change: int = 0, *, since_s: float = -math.inf) -> int:
        """Stores what was known of a cluster at each start and end of its runs since ``since_s``, in place of all that
        was stored of its groups; how many rows. ``change`` is the number of the last start or end."""
        from kopt.features.run_files import group_table, replace_history

        self.apply()
        rows, tables = 0, []
        block: list[tuple[float, Key, GroupState]] = []
        for item in states_over_time(runs, since_s):
            _check_time(cluster, item[0])
            block.append(item)
            if len(block) == _WRITTEN_ROWS:
                tables.append(group_table(cluster, block, change))
                rows, block = rows + len(block), []
        tables.append(group_table(cluster, block, change))
        replace_history(self._groups, cluster, tables)
        return rows + len(block)

    def put(self, rows: Iterable[RunRows]) -> int:
        """Makes rows the newest of their groups, online and in the history; how many."""
        from kopt.features.run_files import add_part, calibration_table, group_table

        self.apply()
        groups, calibrations, markers = [], [], []
        for each in rows:
            _check_time(each.cluster, each.known_s)
            listed = [(each.known_s, key, state) for key, state in each.groups.items()]
            groups.append(group_table(each.cluster, listed, each.change))
            calibrations.append(calibration_table(each))
            for folder, table in ((self._groups, groups[-1]), (self._calibrations, calibrations[-1])):
                add_part(folder, each.cluster, table, _MOST_PARTS)
            markers.append(group_table(each.cluster, [(each.known_s, (_MARKER, "known"), GroupState())], each.change))
        repository = self._repository
        for features, tables in (
            (repository.groups, groups),
            (repository.calibrations, calibrations),
            (repository.groups, markers),
        ):
            self._write_online(features.name, tables)
        return sum(table.num_rows for table in (*groups, *calibrations))

    def materialise(self, cluster: Cluster, upto_s: float = math.inf) -> int:
        """Makes the newest stored rows of a cluster's groups (known by ``upto_s``, Unix seconds) its online rows; how
        many."""
        from kopt.features.run_files import group_table, latest_rows

        self.apply()
        with self._errors():
            rows, known_s, change = latest_rows(self._groups, cluster, upto_s)
        if not rows.num_rows:
            return 0
        self._write_online(self._repository.groups.name, [rows])
        marker = group_table(cluster, [(known_s, (_MARKER, "known"), GroupState())], change)
        self._write_online(self._repository.groups.name, [marker])
        return int(rows.num_rows)

    def online(self, cluster: Cluster, kind: JobKind, version: str = "") -> OnlineRuns:
        """The newest rows that a question about such a job needs, with the calibrations of a model's ``version``."""
        self.apply()
        keys = [*keys_of(kind), (_MARKER, "known")]
        named = [key for key in keys if key[0] in ("queue", "name")]
        with self._errors():
            known_s, changes, states = self._reader.groups([cluster.entity(*key) for key in keys])
            held = self._reader.calibrations([cluster.entity(version, *key) for key in named])
        groups = {key: state for key, state in zip(keys[:-1], states[:-1], strict=True) if state is not None}
        calibrations = {(version, key): each for key, each in zip(named, held, strict=True) if each is not None}
        return OnlineRuns(known_s[-1], changes[-1], groups, calibrations)

    def change(self, cluster: Cluster) -> int:
        """The number of the last start or end that the online rows of a cluster know; 0 before the first."""
        self.apply()
        with self._errors():
            return self._reader.groups([cluster.entity(_MARKER, "known")])[1][0]

    def as_of(self, cluster: Cluster, questions: Sequence[tuple[JobKind, float]]) -> list[dict[Key, GroupState]]:
        """The states that were known of the groups of each kind of job at each moment (Unix seconds), by Feast's
        point-in-time join: of a run that went on then, nothing of its end."""
        import pandas as pd

        from kopt.features.run_files import group_states, rows_lock

        self.apply()
        lookups = [(at, key, at_s) for at, (kind, at_s) in enumerate(questions) for key in keys_of(kind)]
        if not lookups:
            return [{} for _ in questions]
        frame = pd.DataFrame(
            {
                "jobs": [cluster.entity(*key) for _, key, _ in lookups],
                # Down: what is known within the microsecond after it is not known yet.
                "event_timestamp": pd.to_datetime(
                    [math.floor(at_s * 1e6) for *_, at_s in lookups], unit="us", utc=True
                ),
                "row": np.arange(len(lookups)),
            }
        )
        with rows_lock(self._groups, fcntl.LOCK_SH), self._errors(), duckdb_session(self.folder):
            service = self._feast.get_feature_service("runtime_v1")
            answer = self._feast.get_historical_features(frame, service).to_arrow()
        result: list[dict[Key, GroupState]] = [{} for _ in questions]
        for row, state in zip(answer["row"].to_pylist(), group_states(answer), strict=True):
            at, key, _ = lookups[row]
            if state is not None:
                result[at][key] = state
        return result

    def _schemas(self) -> Mapping[Path, Any]:
        from kopt.features.run_files import CALIBRATION_SCHEMA, GROUP_SCHEMA

        return {self._groups: GROUP_SCHEMA, self._calibrations: CALIBRATION_SCHEMA}

    @cached_property
    def _repository(self) -> "RunRepository":
        from kopt.features.repository.run_definitions import run_repository

        return run_repository(self._groups, self._calibrations)

    @cached_property
    def _reader(self) -> "RunReader":
        from kopt.features.repository.run_reader import RunReader

        return RunReader(self._config, self._repository)


def _check_time(cluster: Cluster, known_s: float) -> None:
    if not 0 <= known_s <= LATEST_S:
        raise FeatureStoreError(
            f"a run of cluster {cluster.name!r} starts or ends at {known_s:g} s, which is not between 1970 and 2200; "
            "give Unix seconds"
        )
