"""What is known about each series beside its rows: step, unit, start, source, licence (SERIES.csv)."""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kopt.data.demand.table import DemandDataError

CATALOGUE = "SERIES.csv"
CATALOGUE_COLUMNS = ("name", "source", "dt", "start", "n", "days", "unit", "kind", "licence", "parent")
MAX_CATALOGUE_BYTES = 64 << 20
_CLIENT = re.compile(r"(?P<model>.+)_client[^_]*")


@dataclass(frozen=True)
class SeriesInfo:
    """One row of SERIES.csv.

    ``start_s`` is Unix time, None where the start is not known. ``parent`` names the series this one is a tenant of
    and nothing else; such rows are not series of their own.
    """

    name: str
    step_s: int
    source: str = ""
    days: float = 0.0
    unit: str = "requests"
    kind: str = ""
    licence: str = ""
    start_s: float | None = None
    parent: str = ""

    @property
    def group(self) -> str:
        """What must be left out together when unseen services are imitated (zero-shot groups of the benchmark).

        The source; ServeGen is split by model, each total beside its clients. Without a source: the service itself.
        """
        if not self.source:
            return model_of(self.parent or self.name)
        if "servegen" not in self.source.lower():
            return self.source
        return f"{self.source} {model_of(self.name).removeprefix('servegen_')}"


def model_of(series: str) -> str:
    """The model of ``<model>_total`` or ``<model>_clientN``; any other name is its own."""
    match = _CLIENT.fullmatch(series)
    return match["model"] if match else series.removesuffix("_total")


def client_of(series: str) -> str:
    """``<model>_total`` for ``<model>_clientN``, empty for a series that is no client."""
    match = _CLIENT.fullmatch(series)
    return f"{match['model']}_total" if match else ""


def read_catalogue(path: Path) -> Mapping[str, SeriesInfo]:
    """SERIES.csv in the folder ``path`` (or beside the file ``path``) by series name; empty where there is none.

    Columns ``name`` and ``dt`` (step in whole seconds) are required; ``source, start, days, unit, kind, licence,
    parent`` may be missing. ``start`` is an ISO time, without an offset taken as UTC, or begins with ``anon``.

    Raises:
        DemandDataError: the file cannot be read, or a row is wrong (``row`` from 0, the first below the header).
    """
    file = (path if path.is_dir() else path.parent) / CATALOGUE
    if not file.is_file():
        return {}
    if file.stat().st_size > MAX_CATALOGUE_BYTES:
        raise DemandDataError(f"{file} is larger than {MAX_CATALOGUE_BYTES >> 20} MiB; it should have a row per series")
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            rows = list(csv.DictReader(text))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DemandDataError(f"{file} is not a readable CSV file: {error}") from error
    series_infos_by_name: dict[str, SeriesInfo] = {}
    for number, row in enumerate(rows):
        info = _info(file, number, {key: value or "" for key, value in row.items() if key})
        if info.name in series_infos_by_name:
            raise DemandDataError(f"{file} names it twice", series=info.name, row=number)
        series_infos_by_name[info.name] = info
    return series_infos_by_name


def _info(file: Path, number: int, row: Mapping[str, str]) -> SeriesInfo:
    for needed in ("name", "dt"):
        if not row.get(needed):
            raise DemandDataError(f"{file} needs a value in column {needed!r}", series=row.get("name", ""), row=number)
    name = row["name"]
    step = _number(file, number, name, "dt", row["dt"])
    if step != int(step) or step < 1:
        raise DemandDataError(f"dt is {row['dt']!r}; steps are whole seconds of at least 1", series=name, row=number)
    return SeriesInfo(
        name,
        int(step),
        source=row.get("source", ""),
        days=_number(file, number, name, "days", row.get("days") or "0"),
        unit=row.get("unit") or "requests",
        kind=row.get("kind", ""),
        licence=row.get("licence", ""),
        start_s=_start(number, name, row.get("start", "")),
        parent=row.get("parent", ""),
    )


def _number(file: Path, row: int, series: str, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise DemandDataError(f"{file}: {column} is {text[:40]!r}, not a number", series=series, row=row)
    return number


def _start(row: int, series: str, text: str) -> float | None:
    if not text or text.lower().startswith("anon"):
        return None
    try:
        start = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "write an ISO time such as 2025-01-31T00:00:00Z, or anon"
        raise DemandDataError(f"start {text[:40]!r} is not a time; {hint}", series=series, row=row) from error
    return (start if start.tzinfo else start.replace(tzinfo=UTC)).timestamp()
