"""Public traces of LLM requests in their own formats become demand per bucket.

| trace | told by | published at |
|---|---|---|
| Azure LLM inference | columns TIMESTAMP, ContextTokens, GeneratedTokens | github.com/Azure/AzurePublicDataset |
| BurstGPT | columns Timestamp, Model, Request tokens, Response tokens, Log Type | github.com/HPMLL/BurstGPT |
| ServeGen | a folder with chunk-N-trace.csv | github.com/alibaba/ServeGen (``servegen``) |

Request logs are read in blocks, so a file of any size needs the memory of one block and of its buckets. They may be
gzip files. A bucket without a request is zero demand, since a log of all requests has no gaps.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from kopt.data.demand import servegen
from kopt.data.demand.files import first_line, row_in, unix_seconds
from kopt.data.demand.grid import MAX_BUCKETS, MAX_GAP_FACTOR, UNIX_FROM_S, lonelier_side
from kopt.data.demand.table import GRID_S, Array, DemandDataError, DemandSeries

BLOCK_BYTES = 4 << 20
MAX_SERIES = 1000
Progress = Callable[[int], None]


@dataclass(frozen=True)
class _Format:
    """Where a request log keeps time, service, tenant and tokens; no service column means one service."""

    name: str
    time: str
    in_tokens: str
    out_tokens: str
    service: str = ""
    tenant: str = ""

    @property
    def columns(self) -> list[str]:
        named = (self.time, self.in_tokens, self.out_tokens, self.service, self.tenant)
        return [column for column in named if column]


FORMATS = (
    _Format("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _Format("burstgpt", "Timestamp", "Request tokens", "Response tokens", "Model", "Log Type"),
)


@dataclass
class _Buckets:
    """Requests and tokens by bucket number while a log is read; the first row of each bucket is kept for errors."""

    sums: dict[int, Array] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)

    def add(self, bucket: NDArray[np.int64], columns: Array, first_row: int) -> None:
        """``columns`` has shape (3, m): ones, input and output tokens of the requests in ``bucket`` (m,)."""
        array, at, where = np.unique(bucket, return_index=True, return_inverse=True)
        summed = np.array([np.bincount(where, weights=column) for column in columns])
        for i, number in enumerate(array.tolist()):
            self.sums[number] = self.sums.get(number, 0.0) + summed[:, i]
            self.rows.setdefault(number, first_row + int(at[i]))


def is_trace(path: Path | str) -> bool:
    """Whether ``read_trace`` knows the format of this file or folder."""
    path = Path(path)
    return servegen.is_servegen(path) or (path.is_file() and _detect(path) is not None)


def read_trace(path: Path | str, *, step_s: int = GRID_S, progress: Progress | None = None) -> list[DemandSeries]:
    """Demand from a public trace: one series per model, with tenants where the trace tells them apart.

    Buckets begin at multiples of ``step_s``; incomplete ones at both ends are left out. ServeGen keeps its own step.
    ``progress`` is called with the number of rows read so far.

    Raises:
        DemandDataError: an unknown format, or a row that cannot be read, naming it (from 0, below the header).
    """
    path = Path(path)
    if servegen.is_servegen(path):
        return servegen.read_servegen(path)
    layout = _detect(path) if path.is_file() else None
    if layout is None:
        formats = "; ".join(f"{item.name}: {', '.join(item.columns)}" for item in FORMATS)
        raise DemandDataError(f"{path} is no known trace; known are chunk-N-trace.csv (ServeGen) and columns {formats}")
    if step_s < 1:
        raise DemandDataError(f"step of {step_s} s is not positive")
    by_key: dict[tuple[str, str], _Buckets] = {}
    row = 0
    for block in _blocks(path, layout):
        _add_block(path, layout, block, row, step_s, by_key)
        row += block.num_rows
        if progress:
            progress(row)
    if not by_key:
        raise DemandDataError(f"{path} has no requests")
    return _series(path, layout, by_key, step_s)


def _open(path: Path) -> Any:
    with path.open("rb") as head:
        compressed = head.read(2) == b"\x1f\x8b"
    return pa.input_stream(str(path), compression="gzip" if compressed else None)


def _detect(path: Path) -> _Format | None:
    try:
        with _open(path) as stream:
            lines = stream.read(64 << 10).splitlines() or [b""]
        header = next(csv.reader([lines[0].decode("utf-8-sig")]), [])
    except (OSError, ValueError, csv.Error, pa.ArrowException):
        return None
    return next((item for item in FORMATS if set(item.columns) <= set(header)), None)


def _blocks(path: Path, layout: _Format) -> Iterator[Any]:
    text = {layout.service, layout.tenant} | ({layout.time} if not layout.service else set())
    types = {column: pa.string() if column in text else pa.float64() for column in layout.columns}
    row = 0
    try:
        with _open(path) as stream:
            reader = pyarrow.csv.open_csv(
                stream,
                read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                convert_options=pyarrow.csv.ConvertOptions(include_columns=layout.columns, column_types=types),
            )
            for block in reader:
                yield block
                row += block.num_rows
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, DemandDataError):
            raise
        raise DemandDataError(f"{path}: {first_line(error)}", row=row_in(error)) from error


def _add_block(
    path: Path, layout: _Format, block: Any, row: int, step_s: int, by_key: dict[tuple[str, str], _Buckets]
) -> None:
    count = block.num_rows
    t = _times(layout, block[layout.time], row)
    tokens = np.array([block[c].to_numpy(zero_copy_only=False) for c in (layout.in_tokens, layout.out_tokens)])
    for column, values in zip((layout.in_tokens, layout.out_tokens), tokens, strict=True):
        # NaN fails the first comparison, so missing counts are refused too.
        wrong = np.flatnonzero(~(values >= 0) | np.isinf(values))
        if len(wrong):
            raise DemandDataError(f"{column} is {values[wrong[0]]:g}, not a number of tokens", row=row + int(wrong[0]))
    columns = np.vstack([np.ones(count), tokens])
    bucket = np.floor(t / step_s).astype(np.int64)
    service, tenant = _labels(block, layout.service, row), _labels(block, layout.tenant, row)
    for key in dict.fromkeys(zip(service, tenant, strict=True)):
        mine = np.flatnonzero((service == key[0]) & (tenant == key[1]))
        buckets = by_key.setdefault(key, _Buckets())
        buckets.add(bucket[mine], columns[:, mine], row)
        if len(by_key) > MAX_SERIES or len(buckets.sums) > MAX_BUCKETS:
            text = f"more than {MAX_SERIES} models or {MAX_BUCKETS} buckets; is this a request log?"
            raise DemandDataError(f"{path}: {text}", row=row)


def _times(layout: _Format, column: Any, row: int) -> Array:
    if layout.service:
        t: Array = column.to_numpy(zero_copy_only=False)
    else:
        t = unix_seconds(column.to_pandas(), row)
    wrong = np.flatnonzero(~np.isfinite(t) | (t < 0) | (t > 1e11))
    if len(wrong):
        raise DemandDataError(f"{layout.time} is not a time in seconds", row=row + int(wrong[0]))
    return t


def _labels(block: Any, column: str, row: int) -> NDArray[np.object_]:
    if not column:
        return np.full(block.num_rows, "", dtype=object)
    labels: NDArray[np.object_] = block[column].to_numpy(zero_copy_only=False)
    wrong = [i for i, label in enumerate(labels) if not label or not label.isprintable() or len(label) > 100]
    if wrong:
        raise DemandDataError(f"{column} is not a printable name of 1 to 100 letters", row=row + wrong[0])
    return labels


def _series(path: Path, layout: _Format, by_key: dict[tuple[str, str], _Buckets], step_s: int) -> list[DemandSeries]:
    first, length = _span(path, by_key, step_s)
    # The log begins and ends somewhere inside a bucket, which would look like a drop in demand.
    # BurstGPT counts from midnight of its first day, so its first bucket is whole.
    begin = 1 if not layout.service and length > 2 else 0
    end = length - 1 if length > 1 else length
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    start_s = float((first + begin) * step_s)
    demand_series = []
    for service in dict.fromkeys(service for service, _ in by_key):
        dense = {
            tenant: _dense(buckets, first, length)[:, begin:end]
            for (owner, tenant), buckets in by_key.items()
            if owner == service
        }
        requests, in_tokens, out_tokens = np.sum(list(dense.values()), axis=0)
        name = f"{layout.name}_{service}" if service else stem
        tenants = {tenant: sums[0] for tenant, sums in dense.items() if tenant}
        series = DemandSeries(name, start_s, step_s, requests, in_tokens=in_tokens, out_tokens=out_tokens)
        demand_series.append(replace(series, tenants=tenants, start_known=start_s >= UNIX_FROM_S))
    return demand_series


def _span(path: Path, by_key: dict[tuple[str, str], _Buckets], step_s: int) -> tuple[int, int]:
    """First bucket and number of buckets; a stray time that would stretch them is an error."""
    rows = {number: row for buckets in by_key.values() for number, row in buckets.rows.items()}
    numbers = np.array(sorted(rows))
    length = int(numbers[-1] - numbers[0]) + 1
    if length > MAX_BUCKETS or length > 1000 + MAX_GAP_FACTOR * len(numbers):
        stray = rows[int(numbers[lonelier_side(numbers)])]
        text = f"{path}: {length} buckets of {step_s} s, {len(numbers)} with requests; here is a stray time"
        raise DemandDataError(text, row=stray)
    return int(numbers[0]), length


def _dense(buckets: _Buckets, first: int, length: int) -> Array:
    """Requests, input and output tokens of every bucket, shape (3, length)."""
    sums = np.zeros((3, length))
    index = np.fromiter(buckets.sums, np.int64, len(buckets.sums)) - first
    sums[:, index] = np.array(list(buckets.sums.values())).T
    return sums
