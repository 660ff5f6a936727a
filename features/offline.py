"""The offline rows: one Parquet file per series, replaced as a whole and never half."""

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import FEATURES, transform
from kopt.features.rows import FeatureStoreError, available_at_s, event_times

SCHEMA = pa.schema(
    [
        ("service", pa.string()),
        ("event_timestamp", pa.timestamp("us", tz="UTC")),
        *((name, pa.float64()) for name in FEATURES),
        ("observed_at_s", pa.float64()),
        ("start_known", pa.bool_()),
    ]
)
_ROW_GROUP = 4096


def file_of(folder: Path, name: str) -> Path:
    """Where the rows of series ``name`` lie; readable, and safe for any name."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return folder / f"{quote(name, safe='', errors='replace')[:80].replace('%', '=')}-{digest}.parquet"


def feature_rows(series: DemandSeries, newest_only: bool = False) -> Any:
    """An Arrow table with a row for every observed bucket, or for the newest one; gaps have none, so an event time is
    that of a real datum."""
    origins = np.flatnonzero(np.isfinite(series.value))
    origins = origins[-1:] if newest_only else origins
    columns = list(transform(series, origins).T)
    service = pa.array([series.name] * len(origins), pa.string())
    times = pa.array(event_times(series)[origins], SCHEMA.field("event_timestamp").type)
    flags = pa.array(np.full(len(origins), series.start_known))
    return pa.table([service, times, *columns, available_at_s(series)[origins], flags], schema=SCHEMA)


def replace_rows(target: Path, rows: Any) -> None:
    """Writes ``rows`` to ``target`` in one step: readers see the old file or the new one.

    Raises FeatureStoreError when it cannot be written; what was there stays.
    """
    # Beside the folder that is read, on the same file system.
    staging = target.parent.with_name("staging")
    temporary = staging / f"{uuid.uuid4().hex}.parquet"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        # Microseconds: Feast cannot materialise nanoseconds from DuckDB.
        pq.write_table(
            rows,
            temporary,
            compression="zstd",
            coerce_timestamps="us",
            row_group_size=_ROW_GROUP,
            write_page_checksum=True,
        )
        _flush(temporary)
        with rows_lock(target.parent, fcntl.LOCK_EX):
            temporary.replace(target)
        _flush(target.parent)
    except OSError as error:
        raise FeatureStoreError(
            f"cannot write {target}: {error.strerror or error}; the rows from before are untouched. "
            "Free space or mend the folder, then write again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def rows_lock(offline: Path, kind: int) -> Iterator[None]:
    """Holds files in ``offline`` as they are (``fcntl.LOCK_SH``), or lets one writer change one (``fcntl.LOCK_EX``).

    DuckDB opens a file twice, for its footer and for its rows; one replaced in between would be read as nonsense.
    """
    with offline.with_name("rows.lock").open("w") as lock:
        fcntl.flock(lock, kind)
        yield


def latest_row(file: Path, upto: np.datetime64 | None) -> Any | None:
    """The newest row with an event time up to ``upto`` as an Arrow table of one row; None where there is none.

    Raises FeatureStoreError for a torn file.
    """
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            times = parquet.read(columns=["event_timestamp"])["event_timestamp"].to_numpy()
            last = len(times) if upto is None else int(np.searchsorted(times, upto, side="right"))
            if not last:
                return None
            group, offset = divmod(last - 1, _ROW_GROUP)
            return parquet.read_row_group(group).slice(offset, 1)
    except (OSError, pa.ArrowException) as error:
        raise torn(file) from error


def unreadable(files: Sequence[Path]) -> Path | None:
    """The first of ``files`` that is torn."""
    for file in files:
        try:
            pq.read_table(file, page_checksum_verification=True, partitioning=None)
        except (OSError, pa.ArrowException):
            return file
    return None


def torn(file: Path) -> FeatureStoreError:
    """The error for a file that is not whole."""
    return FeatureStoreError(f"{file} is torn; write its series again, or remove the file to do without it")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
