"""Runs with measured GPU memory: what ran, on what, and what was measured, in bytes."""

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kopt.core.units import Bytes
from kopt.core.workload.sizing import AllocationKind

MAX_BYTES = 1 << 46
"""More on one GPU is a wrong unit, not a measurement."""
_MAX_FIELD = 1 << 20


class MemoryDataError(ValueError):
    """A table that cannot be used; the message names file, line and column."""

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path.name}{'' if line is None else f', line {line}'}: "
        super().__init__(where + message)
        self.path, self.line = path, line


class Category(StrEnum):
    """Kinds of runs that errors are reported by."""

    CNN = "cnn"
    TRANSFORMER = "transformer"
    MLP = "mlp"
    DETECTION = "detection"
    LLM_FULL = "llm-full"
    LORA = "lora"
    SHARDED = "sharded"
    INFERENCE = "inference"


@dataclass(frozen=True)
class MemoryRun:
    """One run. ``family`` is left out together when unseen models are imitated; ``licence`` is "" where none is stated.

    ``measured`` is None where the run did not fit (``out_of_memory``); ``metric`` is None where the source does not
    say which figure it gives. ``censored``: the figure is near the card's capacity, more may have been wanted.
    ``crashed``: the figure is that of a run that ended early. ``gpu`` is as the source has it. ``per_gpu`` is False
    where the figure is a sum over ``gpus``. ``doubt``: why other runs of the same model speak against the figure.
    """

    name: str
    family: str
    source: str
    licence: str
    category: Category
    metric: AllocationKind | None
    measured: Bytes | None
    gpu: str
    gpus: int = 1
    arguments: Mapping[str, str | float | bool] = field(default_factory=dict)
    published: Mapping[str, Bytes] = field(default_factory=dict)
    censored: bool = False
    crashed: bool = False
    out_of_memory: bool = False
    per_gpu: bool = True
    doubt: str = ""

    def __post_init__(self) -> None:
        if (self.measured is None) != self.out_of_memory:
            raise ValueError(f"{self.name}: either a measured amount or out of memory")
        if self.measured is not None and not 0 < self.measured <= MAX_BYTES:
            raise ValueError(f"{self.name}: {self.measured} bytes is no measurement of a GPU")


@dataclass(frozen=True)
class MemoryTable:
    """All runs of a folder, and how many rows of each file were left out, with the reason."""

    runs: tuple[MemoryRun, ...]
    excluded: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.runs)

    def where(self, keep: Callable[[MemoryRun], bool]) -> "MemoryTable":
        return MemoryTable(tuple(run for run in self.runs if keep(run)), self.excluded)


@dataclass(frozen=True)
class Row:
    """One line of a file, with readers that name the place when a field is not what it should be."""

    path: Path
    line: int
    fields: Mapping[str, str]

    def text(self, column: str) -> str:
        return (self.fields.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """A finite number, None where the field is empty. Raises MemoryDataError."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{column} is {text[:40]!r}, not a number") from None
        if not math.isfinite(value):
            raise self.error(f"{column} is {text[:40]!r}, not a finite number")
        return value

    def required(self, column: str) -> float:
        value = self.number(column)
        if value is None:
            raise self.error(f"{column} is empty")
        return value

    def flag(self, column: str) -> bool:
        text = self.text(column).lower()
        if text not in ("true", "false", "1", "0", "1.0", "0.0", "yes", "no", ""):
            raise self.error(f"{column} is {text[:40]!r}, neither true nor false")
        return text in ("true", "1", "1.0", "yes")

    def amount(self, column: str, unit_bytes: int) -> Bytes | None:
        """Bytes of a number in a unit; None where the field is empty. Raises MemoryDataError."""
        value = self.number(column)
        if value is None:
            return None
        if not 0 < value * unit_bytes <= MAX_BYTES:
            raise self.error(
                f"{column} is {value:g}, which is no amount of GPU memory in units of {unit_bytes:,} bytes"
            )
        return Bytes(round(value * unit_bytes))

    def arguments(self, *columns: str) -> dict[str, str | float | bool]:
        """The named columns that are not empty, as numbers or flags where they are."""
        return {column: _typed(self.text(column)) for column in columns if self.text(column)}

    def error(self, message: str) -> MemoryDataError:
        return MemoryDataError(message, path=self.path, line=self.line)


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """Rows of a CSV file, gzipped or not, that must have ``columns``. Raises MemoryDataError."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            absent = [column for column in columns if column not in (reader.fieldnames or ())]
            if absent:
                raise MemoryDataError(f"no column {absent[0]!r}", path=path, line=1)
            for fields in reader:
                if None in fields or None in fields.values():
                    raise MemoryDataError("another number of fields than the head has", path=path, line=reader.line_num)
                if any(len(value) > _MAX_FIELD for value in fields.values()):
                    raise MemoryDataError("a field is longer than a mebibyte", path=path, line=reader.line_num)
                yield Row(path, reader.line_num, fields)
    except (csv.Error, UnicodeDecodeError, OSError, EOFError) as error:
        raise MemoryDataError(f"not a CSV table that can be read ({error})", path=path) from error


def _typed(text: str) -> str | float | bool:
    if text in ("True", "False"):
        return text == "True"
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text
