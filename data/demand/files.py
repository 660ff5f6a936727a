"""Demand in Parquet and CSV files, read and written.

A folder holds ``demand.parquet`` (or ``demand.csv``) and, beside it, ``SERIES.csv`` (``catalogue``). Columns:
``series``, ``t`` (start of the bucket: seconds since the start of the series, Unix seconds, or ISO times, which
without an offset are UTC), ``value`` and optionally ``in_tok``, ``out_tok``. Other columns are left alone. Rows of
several series may be mixed; within a series they are in the order of time. A row that is missing is a gap.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kopt.data.demand.catalogue import CATALOGUE, CATALOGUE_COLUMNS, SeriesInfo, client_of, read_catalogue
from kopt.data.demand.grid import UNIX_FROM_S, on_grid
from kopt.data.demand.table import Array, DemandDataError, DemandSeries

__all__ = ["SeriesInfo", "from_frame", "read_catalogue", "read_demand", "write_demand"]

REQUIRED = ("series", "t", "value")
TOKENS = ("in_tok", "out_tok")
MAX_FILE_BYTES = 4 << 30
MAX_ROWS = 100_000_000
MAX_HEADER_BYTES = 1 << 20
MAX_LINE_BYTES = 8 << 20
MAX_NAME = 253
_NO_NAMES = {"", "nan", "NaN", "None", "<NA>"}


def read_demand(path: Path | str, *, unit: str | None = None, step_s: int | None = None) -> list[DemandSeries]:
    """Every series of a folder or a single file, in the order of their first rows.

    ``unit`` is the unit the caller expects; ``step_s`` the step, where SERIES.csv does not tell it. ``<model>_clientN``
    beside ``<model>_total`` is a series and, under the name ``clientN``, a tenant of the total; a series that
    SERIES.csv gives a ``parent`` is only a tenant of it.

    Raises:
        DemandDataError: anything wrong with the files, naming the series and the row of the file (from 0, the first
            below the header) where there is one.
    """
    file = _data_file(Path(path))
    infos = read_catalogue(file)
    table = _read_table(file)
    demand_series_by_name = {
        name: _series(name, rows, infos.get(name), unit, step_s) for name, rows in _by_series(file, table)
    }
    return _with_tenants(demand_series_by_name, infos)


def from_frame(frame: pd.DataFrame, *, unit: str | None = None, step_s: int | None = None) -> list[DemandSeries]:
    """Every series of a DataFrame with the columns of a file; without a column ``series`` there is one, ``demand``.

    Raises DemandDataError as ``read_demand`` does; rows are counted from 0 by position, whatever the index says.
    """
    named = frame if "series" in frame.columns else frame.assign(series="demand")
    origin = Path("the DataFrame")
    columns = _recognised_columns(origin, [str(column) for column in named.columns])
    try:
        table = pa.Table.from_pandas(named[columns], preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DemandDataError(f"{origin}: {first_line(error)}") from error
    if not table.num_rows:
        raise DemandDataError(f"{origin} has no rows")
    demand_series_by_name = {name: _series(name, rows, None, unit, step_s) for name, rows in _by_series(origin, table)}
    return _with_tenants(demand_series_by_name, {})


def write_demand(series: Iterable[DemandSeries], folder: Path | str, *, source: str = "", kind: str = "llm") -> Path:
    """Writes ``demand.parquet`` and ``SERIES.csv`` so that ``read_demand(folder)`` gives the same series again.

    Tenants become rows of series named ``<series>/<tenant>`` with that series as parent. Starts keep microseconds.
    Raises DemandDataError for names that occur twice or could not be read again.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    frames, infos = [], dict[str, dict[str, object]]()
    for demand_series in series:
        parts = [(demand_series.name, "", demand_series)]
        parts += [
            (f"{demand_series.name}/{tenant}", demand_series.name, _tenant_only(demand_series, v))
            for tenant, v in demand_series.tenants.items()
        ]
        for name, parent, part in parts:
            _check_name(name)
            if name in infos:
                raise DemandDataError("two series have this name", series=name)
            infos[name] = _catalogue_row(name, part) | {"source": source, "kind": kind, "parent": parent}
            frames.append(_rows(name, part))
    if not frames:
        raise DemandDataError("no series to write")
    # Checksums, so that a torn file is found when it is read.
    pq.write_table(pa.concat_tables(frames), target / "demand.parquet", compression="zstd", write_page_checksum=True)
    with (target / CATALOGUE).open("w", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, CATALOGUE_COLUMNS)
        writer.writeheader()
        writer.writerows(infos.values())
    return target


def _data_file(path: Path) -> Path:
    candidates = [path / "demand.parquet", path / "demand.csv"] if path.is_dir() else [path]
    for file in candidates:
        if file.is_file():
            if not file.stat().st_size:
                raise DemandDataError(f"{file} is empty")
            if file.stat().st_size > MAX_FILE_BYTES:
                raise DemandDataError(f"{file} is larger than {MAX_FILE_BYTES >> 30} GiB; split it by series")
            return file
    raise DemandDataError(f"no file {' or '.join(str(file) for file in candidates)}")


def _read_table(file: Path) -> Any:
    """An Arrow table of the known columns. Parquet is recognised by its content, not by its name."""
    with _reading(file):
        with file.open("rb") as head:
            is_parquet = head.read(4) == b"PAR1"
        table = _read_parquet(file) if is_parquet else _read_csv(file)
    if not table.num_rows:
        raise DemandDataError(f"{file} has no rows")
    return table


def _read_parquet(file: Path) -> Any:
    with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        columns = _recognised_columns(file, parquet.schema_arrow.names)
        if parquet.metadata.num_rows > MAX_ROWS:
            raise DemandDataError(f"{file} has {parquet.metadata.num_rows} rows; split it, at most {MAX_ROWS}")
        return parquet.read(columns=columns)


def _read_csv(file: Path) -> Any:
    with file.open("rb") as raw:
        head = raw.readline(MAX_HEADER_BYTES + 1)
    if len(head) > MAX_HEADER_BYTES:
        raise DemandDataError(
            f"{file}: the first line is longer than {MAX_HEADER_BYTES >> 20} MiB; is this a CSV file?"
        )
    header = next(csv.reader(head.decode("utf-8-sig").splitlines()), [])
    columns = _recognised_columns(file, header)
    types = {"series": pa.string(), "value": pa.float64(), "in_tok": pa.float64(), "out_tok": pa.float64()}
    return pyarrow.csv.read_csv(
        file,
        # One thread: only then do errors name the row.
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=MAX_LINE_BYTES),
        convert_options=pyarrow.csv.ConvertOptions(include_columns=columns, column_types=types),
    )


def _recognised_columns(file: Path, header: list[str]) -> list[str]:
    columns = [column for column in header if column in REQUIRED + TOKENS]
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        listed = ", ".join(column[:40] for column in header[:12])
        raise DemandDataError(f"{file} lacks column {', '.join(missing)}; it has {listed or 'none'}")
    if len(set(columns)) < len(columns):
        raise DemandDataError(f"{file} has a column twice: {', '.join(columns)}")
    return columns


def _by_series(file: Path, table: Any) -> Iterator[tuple[str, tuple[NDArray[np.int64], Array, dict[str, Array]]]]:
    """Per series: its name, and (row numbers of the file, times, columns)."""
    with _reading(file):
        codes, names = _names(file, table["series"])
        t = _times(file, table["t"])
        columns = {c: _floats(file, c, table[c]) for c in table.column_names if c not in ("series", "t")}
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        yield names[codes[rows[0]]], (rows, t[rows], {c: values[rows] for c, values in columns.items()})


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Whatever Arrow says about a file becomes an error of ours, with the row where it tells it."""
    try:
        yield
    except (OSError, ValueError, csv.Error, pa.ArrowException, MemoryError) as error:
        if isinstance(error, DemandDataError):
            raise
        raise DemandDataError(f"{file}: {first_line(error)}", row=row_in(error)) from error


def _names(file: Path, column: Any) -> tuple[NDArray[np.int64], list[str]]:
    """The number of each row's series, shape (m,), and the names by number."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DemandDataError(f"{file}: column series holds {column.type}, not text")
    encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode(null_encoding="encode")
    codes: NDArray[np.int64] = encoded.indices.to_numpy().astype(np.int64)
    names = encoded.dictionary.to_pylist()
    first_rows = np.unique(codes, return_index=True)[1]
    for name, row in zip(names, first_rows, strict=True):
        _check_name(name, int(row))
    return codes, names


def _check_name(name: object, row: int | None = None) -> None:
    if not isinstance(name, str) or name.strip() in _NO_NAMES or len(name) > MAX_NAME or not name.isprintable():
        label = repr(name[:40] if isinstance(name, str) else None)
        raise DemandDataError(f"{label} is not a name of a series (printable, at most {MAX_NAME})", row=row)


def _floats(file: Path, name: str, column: Any) -> Array:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or kind == pa.null()):
        raise DemandDataError(f"{file}: column {name} holds {kind}, not numbers")
    values: Array = column.cast(pa.float64()).to_numpy()
    return values


def _times(file: Path, column: Any) -> Array:
    """Seconds; ISO times become Unix seconds."""
    kind = column.type
    if any(is_kind(kind) for is_kind in (pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)):
        return unix_seconds(column.to_pandas())
    return _floats(file, "t", column)


def unix_seconds(times: "pd.Series[Any]", first_row: int = 0) -> Array:
    """Unix seconds of times or ISO texts, without an offset taken as UTC; NaN where there is none. Shape (n,).

    Raises DemandDataError naming the row, counted from ``first_row``, that is no time.
    """
    try:
        stamps = pd.to_datetime(times, utc=True, format="ISO8601")
    except (ValueError, OverflowError) as error:
        at = re.search(r"at position (\d+)", str(error))
        row = first_row + int(at[1]) if at else None
        raise DemandDataError(f"{first_line(error)[:200]}; write seconds or ISO times", row=row) from error
    seconds: Array = stamps.dt.as_unit("us").astype("int64").to_numpy(dtype=np.float64) / 1e6
    return np.where(stamps.isna().to_numpy(), np.nan, seconds)


def _series(
    name: str,
    result: tuple[NDArray[np.int64], Array, dict[str, Array]],
    info: SeriesInfo | None,
    unit: str | None,
    step_s: int | None,
) -> DemandSeries:
    rows, t, columns = result
    if info and step_s and info.step_s != step_s:
        raise DemandDataError(f"SERIES.csv says steps of {info.step_s} s, {step_s} s were expected", series=name)
    if info and unit and info.unit != unit:
        raise DemandDataError(f"SERIES.csv says unit {info.unit!r}, {unit!r} was expected", series=name)
    grid = on_grid(name, t, columns, step_s=info.step_s if info else step_s, rows=rows)
    value = grid.columns["value"]
    if not np.isfinite(value).any() and not (info and info.parent):
        raise DemandDataError("every value is a gap", series=name)
    is_unix = grid.start_s >= UNIX_FROM_S
    offset = info.start_s if info and info.start_s is not None and not is_unix else 0.0
    return DemandSeries(
        name=name,
        start_s=grid.start_s + offset,
        step_s=grid.step_s,
        value=value,
        unit=info.unit if info else unit or "requests",
        # A catalogue that calls the start anonymous is believed even where the times look like Unix time.
        start_known=info.start_s is not None if info else is_unix,
        in_tokens=_unless_empty(grid.columns.get("in_tok")),
        out_tokens=_unless_empty(grid.columns.get("out_tok")),
    )


def _unless_empty(column: Array | None) -> Array | None:
    return column if column is not None and np.isfinite(column).any() else None


def _with_tenants(
    demand_series_by_name: dict[str, DemandSeries], infos: Mapping[str, SeriesInfo]
) -> list[DemandSeries]:
    parents = {name: infos[name].parent if name in infos else "" for name in demand_series_by_name}
    tenants: dict[str, dict[str, Array]] = {}
    for name, series in demand_series_by_name.items():
        parent = parents[name] or client_of(name)
        if parent in demand_series_by_name:
            key = name.removeprefix(parent + "/").removeprefix(parent.removesuffix("total"))
            tenants.setdefault(parent, {})[key] = _on_grid_of(demand_series_by_name[parent], series)
        elif parents[name]:
            raise DemandDataError(f"its parent {parent!r} in SERIES.csv has no rows", series=name)
    own = [series for name, series in demand_series_by_name.items() if not parents[name]]
    return [replace(series, tenants=tenants.get(series.name, {})) for series in own]


def _on_grid_of(total: DemandSeries, tenant: DemandSeries) -> Array:
    """The tenant's demand in the buckets of the total, NaN where it has none, shape (n,)."""
    shift = (tenant.start_s - total.start_s) / total.step_s
    if tenant.step_s != total.step_s or abs(shift - round(shift)) * total.step_s > 0.01:
        text = f"not on the grid of {total.name!r} (steps {tenant.step_s} and {total.step_s} s)"
        raise DemandDataError(text, series=tenant.name)
    values = np.full(len(total), np.nan)
    first = round(shift)
    begin, end = max(first, 0), min(first + len(tenant), len(total))
    if begin < end:
        values[begin:end] = tenant.value[begin - first : end - first]
    return values


def _tenant_only(total: DemandSeries, value: Array) -> DemandSeries:
    return replace(total, value=value, in_tokens=None, out_tokens=None, tenants={})


def _rows(name: str, series: DemandSeries) -> Any:
    count = len(series)
    gaps = np.full(count, np.nan)
    return pa.table(
        {
            "series": pa.array([name] * count, pa.string()),
            "t": series.times_s - (series.start_s if series.start_known else 0.0),
            "value": series.value,
            "in_tok": gaps if series.in_tokens is None else series.in_tokens,
            "out_tok": gaps if series.out_tokens is None else series.out_tokens,
        }
    )


def _catalogue_row(name: str, series: DemandSeries) -> dict[str, object]:
    start = datetime.fromtimestamp(series.start_s, UTC).isoformat() if series.start_known else "anon"
    days = round(series.days, 4)
    return {"name": name, "dt": series.step_s, "start": start, "n": len(series), "days": days, "unit": series.unit}


def first_line(error: BaseException) -> str:
    """What Arrow or pandas says, without the advice that follows it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def row_in(error: BaseException) -> int | None:
    """The data row of an error of Arrow's CSV reader, which counts lines from 1 with the header."""
    match = re.search(r"Row #(\d+)", str(error))
    return int(match[1]) - 2 if match else None
