"""Reads every known table of a folder into one."""

from pathlib import Path

from kopt.data.memory.sources import READERS, read_source
from kopt.data.memory.table import MemoryDataError, MemoryRun, MemoryTable


def read_memory_runs(where: Path) -> MemoryTable:
    """All runs of a folder, or of one file of it. Raises MemoryDataError where nothing known lies there."""
    paths = [where] if where.is_file() else [where / name for name in READERS if (where / name).is_file()]
    if not paths:
        raise MemoryDataError(f"{where} holds none of the tables {', '.join(READERS)}")
    runs: list[MemoryRun] = []
    excluded: dict[str, int] = {}
    for path in paths:
        for run in read_source(path):
            if run is None:
                excluded[path.name] = excluded.get(path.name, 0) + 1
            else:
                runs.append(run)
    return MemoryTable(tuple(runs), excluded)
