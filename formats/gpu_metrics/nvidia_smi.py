"""``nvidia-smi --query-gpu=… --format=csv`` and ``--query-compute-apps=… --format=csv``, also logged with ``-l``.

The header must be there (not ``noheader``), as it names columns and units; ``nounits`` is understood. Columns are found
by their names and may stand in any order. Source: ``nvidia-smi --help-query-gpu`` and ``--help-query-compute-apps``.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kopt.core.units import Bytes
from kopt.formats.gpu_metrics.samples import (
    GpuSample,
    MetricsError,
    ProcessSample,
    amount_bytes,
    checked,
    number,
    share,
)

GPU_COLUMNS = (
    "timestamp",
    "index",
    "uuid",
    "name",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "utilization.memory",
    "driver_version",
)
"""What to ask ``--query-gpu`` for."""
PROCESS_COLUMNS = ("timestamp", "gpu_uuid", "pid", "process_name", "used_gpu_memory")
"""What to ask ``--query-compute-apps`` for."""

_ABSENT = re.compile(
    r"\[?(N/A|Not Supported|Not Found|Insufficient Permissions|Unknown Error|GPU requires reset)\]?", re.IGNORECASE
)
_HEADING = re.compile(r"\s*([a-z_.]+)\s*(?:\[(MiB|%|[A-Za-z/]+)\])?\s*")
_ALIASES = {"used_memory": "used_gpu_memory", "gpu_name": "name", "gpu_uuid": "uuid"}


@dataclass(frozen=True)
class _Row:
    line: int
    cells: Mapping[str, str]
    units: Mapping[str, str]

    def text(self, column: str) -> str:
        cell = self.cells.get(column, "")
        return "" if _ABSENT.fullmatch(cell) else cell

    def memory(self, column: str) -> Bytes | None:
        cell = self.text(column)
        if not cell:
            return None
        value, _, unit = cell.partition(" ")
        return amount_bytes(number(value, column, self.line), unit or self.units.get(column) or "MiB", self.line)

    def share(self, column: str) -> float | None:
        cell = self.text(column)
        return share(number(cell.removesuffix("%").strip(), column, self.line), self.line) if cell else None


def parse_query_gpu(text: str) -> tuple[GpuSample, ...]:
    """Samples in the order of the rows. Raises MetricsError, also for a last row that is cut."""
    return tuple([_gpu(row) for row in _rows(text, "memory.used")])


def parse_compute_apps(text: str) -> tuple[ProcessSample, ...]:
    """Processes in the order of the rows; none when only the header is there. Raises MetricsError."""
    return tuple([_process(row) for row in _rows(text, "pid")])


def _gpu(row: _Row) -> GpuSample:
    gpu = row.text("uuid") or row.text("index")
    used, total = row.memory("memory.used"), row.memory("memory.total")
    if used is not None and total is not None and used > total:
        raise MetricsError(f"{used} of {total} bytes are used", row.line)
    return GpuSample(
        gpu or "0",
        row.text("name"),
        used,
        total,
        row.memory("memory.reserved"),
        row.share("utilization.gpu"),
        row.share("utilization.memory"),
        row.text("timestamp"),
        driver=row.text("driver_version"),
    )


def _process(row: _Row) -> ProcessSample:
    pid = row.text("pid")
    if not pid.isascii() or not pid.isdigit() or len(pid) > 10:
        raise MetricsError(f"{pid[:60]!r} is no process id", row.line)
    used = row.memory("used_gpu_memory")
    return ProcessSample(int(pid), row.text("uuid"), used, row.text("process_name"), row.text("timestamp"))


def _rows(text: str, required: str) -> Iterator[_Row]:
    lines = checked(text.removeprefix("\ufeff")).splitlines()
    if not text.endswith(("\n", "\r")):
        # Every tool ends its last line; a file that was cut in the middle of a number reads as a smaller number.
        raise MetricsError("the last line is cut: it has no end", len(lines))
    names: Sequence[str] = ()
    units: Mapping[str, str] = {}
    for count, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True, strict=True))]
        except (csv.Error, StopIteration) as error:
            raise MetricsError(f"not CSV ({error})", count) from error
        if not names:
            names, units = _header(cells, count, required)
            continue
        if len(cells) != len(names):
            raise MetricsError(f"{len(cells)} cells where the header has {len(names)}", count)
        yield _Row(count, dict(zip(names, cells, strict=True)), units)
    if not names:
        raise MetricsError("there is no header")


def _header(cells: Sequence[str], line: int, required: str) -> tuple[Sequence[str], Mapping[str, str]]:
    result = [_HEADING.fullmatch(cell) for cell in cells]
    names = [_ALIASES.get(match[1], match[1]) if match else "" for match in result]
    if required not in names:
        raise MetricsError(f"the header does not name {required!r}; run nvidia-smi with --format=csv", line)
    if len(set(names)) != len(names):
        raise MetricsError("the header names a column twice", line)
    return names, {name: match[2] for name, match in zip(names, result, strict=True) if match and match[2]}
