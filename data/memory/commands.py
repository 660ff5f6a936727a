"""Commands whose GPU memory was measured: the table that users keep of their own runs.

CSV with a head. ``command`` (as typed), ``gpu`` (a name of the catalogue) and ``measured_mib`` (the peak of the process
that needs most) are needed; ``metric`` (``process``, ``reserved`` or ``allocated``), ``processes`` (of the whole job),
``family`` (what is left out together when unseen work is imitated) and ``folder`` (where the command's files lie, from
the table's own folder) may be left out. ``kopt profile --append`` writes such rows.
"""

import csv
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from kopt.core.units import MIB, Bytes
from kopt.core.workload.sizing import AllocationKind
from kopt.data.memory.table import MemoryDataError, Row, read_rows
from kopt.data.tables import replace_table

PATTERN = "runs*.csv*"
"""Names of such tables in a folder."""
COLUMNS = ("command", "gpu", "measured_mib", "metric", "processes", "family", "folder")
_NEEDED = COLUMNS[:3]
_MOST_PROCESSES = 1 << 16


@dataclass(frozen=True)
class MeasuredCommand:
    """One run. ``processes`` is None where the command itself says how many it starts."""

    command: str
    gpu: str
    measured: Bytes
    folder: Path
    family: str
    metric: AllocationKind = AllocationKind.PROCESS
    processes: int | None = None


def tables_in(where: Path) -> list[Path]:
    """The tables of a folder, or the file itself where it is one."""
    if where.is_file():
        with_command = where.name.startswith("runs") and ".csv" in where.suffixes
        return [where] if with_command else []
    return sorted(where.glob(PATTERN))


def read_measured_commands(path: Path) -> Iterator[MeasuredCommand]:
    """Raises MemoryDataError with the line and column of what cannot be used."""
    for row in read_rows(path, _NEEDED):
        measured = row.amount("measured_mib", MIB)
        if measured is None:
            raise row.error("measured_mib is empty")
        yield MeasuredCommand(
            _command(row),
            _required(row, "gpu"),
            measured,
            path.parent / row.text("folder"),
            row.text("family") or family_of(row.text("command")),
            _metric(row),
            _processes(row),
        )


def append_measured_command(path: Path, run: MeasuredCommand) -> None:
    """Add a row at the end; a new file gets its head. Raises MemoryDataError for a file that is another table."""
    if path.exists() and path.stat().st_size:
        # Whatever is wrong with it is said before anything is added.
        for _ in read_measured_commands(path):
            pass
        with path.open(encoding="utf-8", newline="") as file:
            columns = next(csv.reader(file))
    else:
        columns = list(COLUMNS)
    values = _fields(run, path.parent)
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns, extrasaction="ignore", restval="", lineterminator="\n")
            if file.tell() == 0:
                table.writeheader()
            table.writerow(values)
    except OSError as error:
        raise MemoryDataError(f"cannot be written ({error.strerror or error})", path=path) from error


def merge_measured_commands(path: Path, runs: Iterable[MeasuredCommand]) -> int:
    """Put runs into a table of such runs, which is made where there is none; returns how many rows it has then.

    A command that was measured on the GPU before gets its new peak, and keeps the family and folder that somebody may
    have set; of several in ``runs`` the highest peak counts. Raises MemoryDataError, and then changes nothing.
    """
    rows = {_identity(run): run for run in read_measured_commands(path)} if path.exists() else {}
    newest: dict[tuple[str, ...], MeasuredCommand] = {}
    for run in runs:
        before = newest.get(_identity(run))
        if before is None or before.measured < run.measured:
            newest[_identity(run)] = run
    for identity, run in newest.items():
        before = rows.get(identity)
        rows[identity] = run if before is None else replace(before, measured=run.measured)
    try:
        replace_table(path, COLUMNS, (_fields(run, path.parent) for run in rows.values()))
    except OSError as error:
        raise MemoryDataError(f"cannot be written ({error.strerror or error})", path=path) from error
    return len(rows)


def _identity(run: MeasuredCommand) -> tuple[str, ...]:
    return run.command, run.gpu, run.metric.value, str(run.processes)


def _fields(run: MeasuredCommand, folder: Path) -> dict[str, str]:
    """A row of the table that lies in ``folder``."""
    return {
        "command": run.command,
        "gpu": run.gpu,
        "measured_mib": f"{run.measured / MIB:.0f}",
        "metric": run.metric.value,
        "processes": "" if run.processes is None else str(run.processes),
        "family": run.family,
        "folder": os.path.relpath(run.folder, folder),
    }


def _required(row: Row, column: str) -> str:
    if not row.text(column):
        raise row.error(f"{column} is empty")
    return row.text(column)


def _command(row: Row) -> str:
    command = _required(row, "command")
    try:
        shlex.split(command)
    except ValueError as error:
        raise row.error(f"command is no line of a shell ({str(error).lower()})") from None
    return command


def _metric(row: Row) -> AllocationKind:
    text = row.text("metric") or AllocationKind.PROCESS.value
    if text not in set(AllocationKind):
        raise row.error(f"metric {text[:40]!r} is none of {', '.join(AllocationKind)}")
    return AllocationKind(text)


def _processes(row: Row) -> int | None:
    count = row.number("processes")
    if count is None:
        return None
    if count != int(count) or not 1 <= count <= _MOST_PROCESSES:
        raise row.error(
            f"processes is {row.text('processes')[:40]!r}, not a whole number from 1 to {_MOST_PROCESSES:,}"
        )
    return int(count)


def family_of(command: str) -> str:
    """What a command belongs to where nobody says so: the script's name without its ending, or the program."""
    arguments = shlex.split(command)
    scripts = (word for word in arguments if word.endswith((".py", ".ipynb")))
    return PurePosixPath(next(scripts, arguments[0])).stem
