"""``manifest.toml`` → the logs to record, and what has been recorded."""

import gzip
import json
import re
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_corpus.recording import Storage
from benchmarks.checkpoint_corpus.truth import PAUSE_S

HERE = Path(__file__).resolve().parent
MANIFEST, PROGRAMS, LOGS = HERE / "manifest.toml", HERE / "programs", HERE / "logs"
RECORDS = LOGS / "records.jsonl"


@dataclass(frozen=True)
class Entry:
    """One log; the fields are those of ``manifest.toml``."""

    name: str
    file: str
    framework: str
    environment: str
    arguments: str
    unit: str
    bytes_per_s: float = 2e6
    launcher: tuple[str, ...] = ()
    latency_ms: float = 15.0
    full_every: int = 0
    pause_s: float = PAUSE_S
    labels: str = ""

    @property
    def storage(self) -> Storage:
        return Storage(self.bytes_per_s, self.latency_ms, self.full_every)

    @property
    def rules(self) -> str:
        """The part of ``labels.toml`` that knows its text."""
        return self.labels or Path(self.file).stem

    @property
    def command(self) -> list[str]:
        """What follows the interpreter."""
        return [*self.launcher, str(PROGRAMS / self.file), *shlex.split(self.arguments)]


@dataclass(frozen=True)
class Written:
    """``after`` and ``by``: the last lines, by number, that had arrived when its writing began and when it was done.

    Lines ``after + 1`` to ``by`` arrived while it was written; ``step`` is what its name says. What is not ``complete``
    failed, or was being written when its program was killed: nothing can be resumed from it.
    """

    unit: str
    after: int
    by: int
    start_s: float
    end_s: float
    step: int | None
    complete: bool = True


@dataclass(frozen=True)
class Record:
    """A recorded log and the truth about it; ``arrivals_ms`` has a time for each line, from the program's start.

    ``labels``: what a line says, by its number from 1, whatever the files say of it (``labels.toml``).
    """

    name: str
    framework: str
    versions: dict[str, str]
    writes: tuple[Written, ...]
    arrivals_ms: tuple[int, ...]
    labels: dict[int, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log.gz"

    def read_log(self) -> bytes:
        return gzip.decompress(self.log.read_bytes())

    def write_log(self, log: bytes) -> None:
        """The same log gives the same file."""
        LOGS.mkdir(exist_ok=True)
        self.log.write_bytes(gzip.compress(log, mtime=0))

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Record":
        found: dict[str, Any] = json.loads(text)
        writes = tuple(Written(**one) for one in found.pop("writes"))
        labels = {int(number): label for number, label in found.get("labels", {}).items()}
        return cls(**found | {"writes": writes, "arrivals_ms": tuple(found["arrivals_ms"]), "labels": labels})


def read_manifest() -> list[Entry]:
    """Every log that is to be there. Raises ValueError for a name that is given twice or a unit without its group."""
    entries = [
        Entry(**{key: value for key, value in program.items() if key != "runs"} | run)
        for program in tomllib.loads(MANIFEST.read_text())["program"]
        for run in program["runs"]
    ]
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("two logs have one name")
    for entry in entries:
        if "unit" not in re.compile(entry.unit).groupindex:
            raise ValueError(f"{entry.name}: its unit has no group of that name")
    return entries


def read_records() -> list[Record]:
    """What has been recorded; nothing if nothing has."""
    return [Record.from_json(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def write_records(records: Iterable[Record]) -> None:
    """All of them, or the old ones stay."""
    temporary = Path(f"{RECORDS}.tmp")
    temporary.write_text("".join(f"{each.to_json()}\n" for each in sorted(records, key=lambda each: each.name)))
    temporary.replace(RECORDS)
