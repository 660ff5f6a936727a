"""Runs of jobs from tables: when each started and ended, on how many GPUs, in which queue.

CSV files, plain or gzipped, with a header. Columns, in any order; the first name that is there counts:

- ``job_id``;
- ``start_time`` or, where waiting was not recorded, ``submit_time``: seconds from any moment, or ISO 8601;
- ``end_time``, or ``duration`` in seconds; empty while a job runs;
- ``gpus``; rows without a GPU are left out;
- optionally ``queue`` or ``vc``, ``name`` (the type of job), ``user``, ``cluster``: whose runs share a history,
  ``interrupted``: ``true`` where it was evicted at its end, ``submit_time`` beside ``start_time``: since when it had
  waited, and ``pool``: the GPUs that it ran on.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kopt.core.workload.run_time import JobKind, JobRun, RunTimeError
from kopt.data.jobs.openb import TraceError
from kopt.data.jobs.training import open_text
from kopt.data.tables import replace_table

_ELASTICFLOW = "ms_itp"
"""Files of Microsoft's ITP traces, as ElasticFlow publishes them: their column ``vc`` names clusters."""
_STARTS, _QUEUES = ("start_time", "submit_time"), ("queue", "vc")
_MOST_CHARACTERS = 512
_FIRST_LINE = 2
"""Of a file, after its header."""
_WRITTEN = (
    *("job_id", "submit_time", "start_time", "end_time", "gpus", "queue", "name", "user", "cluster", "interrupted"),
    "pool",
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A run of a table: the number of its row from 0, counting every row, and the cluster that it is of."""

    row: int
    cluster: str
    run: JobRun


def read_runs(path: Path) -> dict[str, tuple[JobRun, ...]]:
    """The runs of each cluster of a file, by start; a file without a column ``cluster`` is of one cluster, ''.

    Raises TraceError, with the line, and OSError.
    """
    return by_start(read_rows(path))


def by_start(rows: Iterable[TableRow]) -> dict[str, tuple[JobRun, ...]]:
    """The runs of each cluster, by start."""
    by_cluster: dict[str, list[JobRun]] = {}
    for row in rows:
        by_cluster.setdefault(row.cluster, []).append(row.run)
    return {
        cluster: tuple(sorted(runs, key=lambda run: (run.started_s, run.job))) for cluster, runs in by_cluster.items()
    }


def read_rows(path: Path) -> tuple[TableRow, ...]:
    """The runs of a file in its order; rows without a GPU are left out. Raises TraceError, with the line, OSError."""
    result: list[TableRow] = []
    keys: set[tuple[str, str]] = set()
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            _check(path, columns)
            cluster_column = "vc" if path.name.startswith(_ELASTICFLOW) else "cluster"
            for line, run, cells in _runs(path, reader, columns):
                cluster = cells.get(cluster_column) or ""
                if (cluster, run.job) in keys:
                    raise TraceError(f"{path}, line {line}: job {run.job[:64]!r} is there twice")
                keys.add((cluster, run.job))
                result.append(TableRow(line - _FIRST_LINE, cluster, run))
    except (UnicodeDecodeError, EOFError, csv.Error) as error:
        raise TraceError(f"{path} is no table of jobs: {error}") from error
    return tuple(result)


def write_runs(path: Path, by_cluster: Mapping[str, Sequence[JobRun]]) -> int:
    """A table that ``read_runs`` reads, in place of the one that was there; how many runs it has. Raises OSError."""
    rows = [
        {
            "job_id": run.job,
            "submit_time": "" if run.submitted_s is None else repr(run.submitted_s),
            "start_time": repr(run.started_s),
            "end_time": "" if run.ended_s is None else repr(run.ended_s),
            "gpus": run.kind.gpus,
            "queue": run.kind.queue,
            "name": run.kind.name,
            "user": run.kind.user,
            "cluster": cluster,
            "interrupted": str(run.interrupted).lower(),
            "pool": run.pool,
        }
        for cluster, runs in sorted(by_cluster.items())
        for run in runs
    ]
    replace_table(path, _WRITTEN, rows)
    return len(rows)


def _check(path: Path, columns: tuple[str, ...]) -> None:
    for needed in (("job_id",), ("gpus",), _STARTS, ("end_time", "duration")):
        if not any(name in columns for name in needed):
            raise TraceError(f"{path}: no column {' or '.join(needed)}; there are {', '.join(columns) or 'none'}")


def _runs(
    path: Path, reader: "csv.DictReader[str]", columns: tuple[str, ...]
) -> Iterator[tuple[int, JobRun, Mapping[str, str]]]:
    start = next(name for name in _STARTS if name in columns)
    queue = next((name for name in _QUEUES if name in columns), "")
    for line, row in enumerate(reader, start=_FIRST_LINE):
        where = f"{path}, line {line}"
        gpus = _number(where, row, "gpus")
        if gpus is None or gpus != int(gpus):
            raise TraceError(f"{where}: gpus is {row['gpus']!r}, not a whole number")
        started_s = _time(where, row, start)
        if not gpus or started_s is None:
            continue
        if "end_time" in columns:
            ended_s = _time(where, row, "end_time")
        else:
            duration = _number(where, row, "duration")
            ended_s = None if duration is None else started_s + duration
        submitted_s = _time(where, row, "submit_time") if start == "start_time" else None
        names = ("name", "user", "pool", queue)
        texts = {name: (row.get(name) or "").strip()[:_MOST_CHARACTERS] for name in names if name}
        try:
            kind = JobKind(texts.get(queue, ""), int(gpus), texts["name"], texts["user"])
            interrupted = (row.get("interrupted") or "").strip().lower() in ("true", "1", "yes")
            job = str(row["job_id"])[:_MOST_CHARACTERS]
            yield line, JobRun(job, kind, started_s, ended_s, interrupted, submitted_s, texts["pool"]), row
        except RunTimeError as error:
            raise TraceError(f"{where}: {error}") from None


def _number(where: str, row: Mapping[str, str], column: str) -> float | None:
    text = (row.get(column) or "").strip()
    if not text or text.lower() in ("nan", "none", "null"):
        return None
    try:
        value = float(text)
    except ValueError:
        raise TraceError(f"{where}: {column} is {text[:64]!r}, not a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{where}: {column} is {value:g}, expected a number from 0 on")
    return value


def _time(where: str, row: Mapping[str, str], column: str) -> float | None:
    text = (row.get(column) or "").strip()
    if "-" not in text[1:] or ":" not in text:
        return _number(where, row, column)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(f"{where}: {column} is {text[:64]!r}, neither seconds nor ISO 8601") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
