"""Jobs of a cluster trace: when each was submitted, how long it ran, on how many GPUs.

Read from CSV files, plain or gzipped, with the columns ``job_id, submit_time, duration, gpus`` (seconds from the
trace's start) and optionally ``vc`` (queue or cluster): Philly (Jeon et al., ATC 2019) as Sia publishes it, Microsoft's
ITP clusters as ElasticFlow publishes them, and others of that form.
"""

import csv
import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kopt.data.jobs.openb import TraceError

COLUMNS = ("job_id", "submit_time", "duration", "gpus")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job; it needs ``gpus`` whole GPUs for ``duration_s`` from when it is started."""

    name: str
    submitted_s: float
    duration_s: float
    gpus: int
    queue: str = ""


def read_jobs(path: Path) -> tuple[TraceJob, ...]:
    """All jobs that used GPUs for any time, by time of submission. Raises TraceError, OSError."""
    with open_text(path) as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"{path}: no column {missing[0]!r}; a job trace has {', '.join(COLUMNS)}")
        trace_jobs = sorted(_jobs(path, reader), key=lambda job: (job.submitted_s, job.name))
    return tuple(trace_jobs)


def open_text(path: Path) -> IO[str]:
    """A text file, unpacked where it is gzipped."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")


def _jobs(path: Path, reader: "csv.DictReader[str]") -> Iterator[TraceJob]:
    for line, row in enumerate(reader, start=2):
        submitted, duration, gpus = (_number(path, line, row, name) for name in COLUMNS[1:])
        if gpus != int(gpus):
            raise TraceError(f"{path}, line {line}: gpus is {row['gpus']!r}, not a whole number")
        if gpus and duration:
            yield TraceJob(str(row["job_id"]), submitted, duration, int(gpus), row.get("vc") or "")


def _number(path: Path, line: int, row: dict[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise TraceError(f"{path}, line {line}: {column} is {row[column]!r}, not a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{path}, line {line}: {column} is {value:g}, expected a number from 0 on")
    return value
