"""The offline rows of runs: per cluster one file of its history, and parts with what came since."""

import fcntl
import hashlib
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kopt.features.job_history import GROUP_ARRAYS, GroupState, Key
from kopt.features.offline import replace_rows, rows_lock, torn
from kopt.features.run_rows import Cluster, RunRows

__all__ = ["rows_lock"]
_TIME = pa.timestamp("us", tz="UTC")
_COMMON = [
    ("jobs", pa.string()),
    ("event_timestamp", _TIME),
    ("created_timestamp", _TIME),
    ("known_s", pa.float64()),
    ("change", pa.int64()),
]
GROUP_SCHEMA = pa.schema([*_COMMON, *((name, pa.list_(pa.float64())) for name in GROUP_ARRAYS)])
CALIBRATION_SCHEMA = pa.schema(
    [
        *_COMMON,
        ("offsets", pa.list_(pa.float64())),
        ("compared", pa.int64()),
        ("loss_ratio", pa.float64()),
        ("has_drifted", pa.bool_()),
        ("recent_share", pa.float64()),
    ]
)


def group_table(cluster: Cluster, rows: Sequence[tuple[float, Key, GroupState]], change: int) -> Any:
    """An Arrow table of states with the times from when on they were known (Unix seconds)."""
    states = [state for _, _, state in rows]
    return pa.table(
        [
            *_common([cluster.entity(*key) for _, key, _ in rows], [known_s for known_s, _, _ in rows], change),
            *(list(column) for column in zip(*(state.arrays() for state in states), strict=True)),
        ],
        schema=GROUP_SCHEMA,
    )


def calibration_table(rows: RunRows) -> Any:
    """An Arrow table of the calibrations among ``rows``."""
    held = list(rows.calibrations.values())
    return pa.table(
        [
            *_common(
                [rows.cluster.entity(version, *key) for version, key in rows.calibrations],
                [rows.known_s] * len(held),
                rows.change,
            ),
            [list(each.offsets) for each in held],
            [each.compared for each in held],
            [each.loss_ratio for each in held],
            [each.has_drifted for each in held],
            [each.recent_share for each in held],
        ],
        schema=CALIBRATION_SCHEMA,
    )


def _common(entities: Sequence[str], known_s: Sequence[float], change: int) -> list[Any]:
    # Up: within a microsecond nothing is known too early.
    at_us = pa.array([math.ceil(each * 1e6) for each in known_s], pa.int64()).cast(_TIME)
    now = pa.array([time.time_ns() // 1000] * len(entities), pa.int64()).cast(_TIME)
    return [entities, at_us, now, list(known_s), [change] * len(entities)]


def group_states(table: Any) -> list[GroupState | None]:
    """The states in a table with the columns of groups; None for rows without one."""
    columns = [table[name].to_pylist() for name in GROUP_ARRAYS]
    return [None if not values[0] else GroupState.of_arrays(values) for values in zip(*columns, strict=True)]


def replace_history(folder: Path, cluster: Cluster, tables: Iterable[Any]) -> None:
    """Writes a cluster's rows in place of all that were there. Raises FeatureStoreError."""
    replace_rows(folder / f"{_stem(cluster)}-history.parquet", pa.concat_tables(tables))
    with rows_lock(folder, fcntl.LOCK_EX):
        for part in _parts(folder, cluster):
            part.unlink(missing_ok=True)


def add_part(folder: Path, cluster: Cluster, rows: Any, most_parts: int) -> None:
    """Adds rows to a cluster's; of too many parts one is made. Raises FeatureStoreError."""
    if not rows.num_rows:
        return
    replace_rows(folder / f"{_stem(cluster)}-part-{uuid.uuid4().hex}.parquet", rows)
    parts = _parts(folder, cluster)
    if len(parts) <= most_parts:
        return
    merged = pa.concat_tables([_read(part) for part in parts])
    replace_rows(folder / f"{_stem(cluster)}-part-{uuid.uuid4().hex}.parquet", merged)
    with rows_lock(folder, fcntl.LOCK_EX):
        for part in parts:
            part.unlink(missing_ok=True)


def latest_rows(folder: Path, cluster: Cluster, upto_s: float) -> tuple[Any, float, int]:
    """The newest row of each group of a cluster that was known by ``upto_s``, when the last of them was known, and the
    number of their last change."""
    with rows_lock(folder, fcntl.LOCK_SH):
        files = [*folder.glob(f"{_stem(cluster)}-history.parquet"), *_parts(folder, cluster)]
        tables = [_read(file) for file in files]
    rows = pa.concat_tables([GROUP_SCHEMA.empty_table(), *tables])
    rows = rows.filter(pc.less_equal(rows["known_s"], upto_s)) if math.isfinite(upto_s) else rows
    if not rows.num_rows:
        return rows, math.nan, 0
    # Of rows that were known at one time the one that was written last counts.
    order = pc.sort_indices(rows, [("event_timestamp", "ascending"), ("created_timestamp", "ascending")])
    newest = dict(zip(rows["jobs"].take(order).to_pylist(), order.to_pylist(), strict=True))
    rows = rows.take(list(newest.values()))
    return rows, pc.max(rows["known_s"]).as_py(), pc.max(rows["change"]).as_py()


def _parts(folder: Path, cluster: Cluster) -> list[Path]:
    return sorted(folder.glob(f"{_stem(cluster)}-part-*.parquet"))


def _read(file: Path) -> Any:
    try:
        return pq.read_table(file, page_checksum_verification=True, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise torn(file) from error


def _stem(cluster: Cluster) -> str:
    return hashlib.sha256(cluster.entity().encode()).hexdigest()[:24]
