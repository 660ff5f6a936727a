"""Rows of measured or asked collectives: CSV with the hardware described in words."""

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from kopt.core.hardware.bandwidth import MAX_BYTES, BandwidthError, Collective, collective
from kopt.data.tables import replace_table
from kopt.topology.hardware import HardwareRow, machine_of
from kopt.topology.set_links import GpuSet, gpu_set

NEEDED = ("gpu", "n_nodes", "gpus_per_node", "collective", "message_bytes")
_COLUMNS = (
    *(field.name for field in fields(HardwareRow)),
    *("which_gpus", "collective", "message_bytes", "latency_us", "machine", "machine_class", "source"),
)
_MOST_RANKS = 2**20
_MOST_GPUS = 256
_TEXT = 500


@dataclass(frozen=True)
class QueryRow:
    """One question of a table."""

    hardware: HardwareRow
    which_gpus: tuple[int, ...]
    collective: Collective
    bytes: int

    def gpus(self) -> GpuSet:
        return gpu_set(machine_of(self.hardware), self.which_gpus, self.hardware.n_nodes)


@dataclass(frozen=True)
class MeasuredRow:
    """And what was measured. ``machine_class`` and ``machine`` are labels to group by, ``source`` names its origin."""

    query: QueryRow
    latency_us: float
    machine: str
    machine_class: str
    source: str = ""
    which: str = ""


def read_queries(path: Path) -> list[QueryRow]:
    """Raises BandwidthError with the line and column of what cannot be understood."""
    return [_query(line, row) for line, row in _rows(path, NEEDED)]


def read_measured(path: Path) -> list[MeasuredRow]:
    """The same with ``latency_us``, ``machine`` and ``machine_class``; rows without a positive latency are refused."""
    measured_rows = []
    for line, row in _rows(path, (*NEEDED, "latency_us", "machine_class")):
        latency_us = _number(line, row, "latency_us")
        if not 0 < latency_us < float("inf"):
            raise BandwidthError(f"line {line}, latency_us: {row['latency_us']!r} is no time")
        label = row["machine_class"]
        source, which = row.get("source", ""), row.get("which_gpus", "")
        measured_rows.append(
            MeasuredRow(_query(line, row), latency_us, row.get("machine") or label, label, source, which)
        )
    return measured_rows


def merge_measured(path: Path, rows: Iterable[MeasuredRow]) -> int:
    """Put rows into such a table, which is made where there is none, in the place of older measurements of the same
    collective and size on the same machine; returns how many it has then.

    Raises BandwidthError for a file that is no such table, and then changes nothing.
    """
    kept = {_identity(row): row for row in read_measured(path)} if path.exists() else {}
    kept |= {_identity(row): row for row in rows}
    try:
        replace_table(path, _COLUMNS, map(_fields, kept.values()))
    except OSError as error:
        raise BandwidthError(f"{path}: cannot be written ({error.strerror or error})") from error
    return len(kept)


def _identity(row: MeasuredRow) -> tuple[object, ...]:
    return row.machine, row.query.collective, row.query.hardware.gpus_per_node, row.which, row.query.bytes


def _fields(row: MeasuredRow) -> dict[str, object]:
    return {
        **asdict(row.query.hardware),
        "which_gpus": row.which,
        "collective": row.query.collective.value,
        "message_bytes": row.query.bytes,
        "latency_us": f"{row.latency_us:.6g}",
        "machine": row.machine,
        "machine_class": row.machine_class,
        "source": row.source,
    }


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        with _opened(path) as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or []
            missing = [name for name in needed if name not in names]
            if missing:
                raise BandwidthError(f"{path.name}: no column {missing[0]!r}; columns are {', '.join(names) or 'none'}")
            for row in reader:
                if None in row or any(value is None for value in row.values()):
                    raise BandwidthError(f"line {reader.line_num}: {len(names)} columns are expected")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error, EOFError) as error:
        raise BandwidthError(f"{path}: cannot be read as CSV ({error})") from error


def _query(line: int, row: Mapping[str, str]) -> QueryRow:
    nodes, count = _whole(line, row, "n_nodes", _MOST_RANKS), _whole(line, row, "gpus_per_node", _MOST_GPUS)
    if nodes * count < 2:
        raise BandwidthError(f"line {line}: one GPU alone has nobody to talk to")
    hardware = HardwareRow(
        row["gpu"][:_TEXT],
        row.get("vendor", "")[:_TEXT],
        row.get("intra_link", "")[:_TEXT],
        nodes,
        count,
        row.get("nic_config", "")[:_TEXT],
        row.get("software", "")[:_TEXT],
        row.get("condition", "")[:_TEXT],
    )
    try:
        kind = collective(row["collective"])
    except BandwidthError as error:
        raise BandwidthError(f"line {line}: {error}") from error
    size_bytes = _whole(line, row, "message_bytes", MAX_BYTES)
    return QueryRow(hardware, _which(row.get("which_gpus", ""), count), kind, size_bytes)


def _which(text: str, count: int) -> tuple[int, ...]:
    """``0 1 2 3``, ``0,1`` or ``0..7``; where it says anything else (hosts), the first GPUs."""
    numbers = text.replace(",", " ").split()
    result = tuple(map(int, numbers)) if numbers and all(word.isdigit() and len(word) < 4 for word in numbers) else ()
    inside = len(set(result)) == count == len(result) and max(result) < 8
    return result if inside else tuple(range(count))


def _whole(line: int, row: Mapping[str, str], name: str, most: int) -> int:
    value = _number(line, row, name)
    if value != int(value) or not 1 <= value <= most:
        raise BandwidthError(f"line {line}, {name}: {row[name][:40]!r} is not a whole number from 1 to {most:,}")
    return int(value)


def _number(line: int, row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError as error:
        raise BandwidthError(f"line {line}, {name}: {row[name][:40]!r} is not a number") from error
    if value != value or abs(value) == float("inf"):
        raise BandwidthError(f"line {line}, {name}: {row[name][:40]!r} is not a number")
    return value
