"""Tables as CSV files, which are whole at any time."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def replace_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write the table beside ``path`` and put it in its place. Raises OSError, and then ``path`` is as it was."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    fresh.replace(path)
