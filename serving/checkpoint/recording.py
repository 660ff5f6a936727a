"""Logs beside what their checkpoint folders held, kept for training where ``KOPT_RECORD_LOGS_MIB`` allows it.

Off by default: otherwise no more of a log is stored than its lines of evidence. Lines are redacted and cut; jobs whose
folders nobody looks at are not kept, as nothing tells when they wrote. What is kept is bounded in bytes and age, and
the job that holds most loses its oldest part first.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.units import MIB
from kopt.models.checkpoint.files import FileFact
from kopt.serving.base.database.interface import Transaction
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.checkpoint.redaction import kept_text

RETENTION_S = 30 * 86_400.0
_PRUNE_EVERY = 20
_SCHEMA = """
CREATE TABLE IF NOT EXISTS recording (
    id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, job TEXT NOT NULL, at_s REAL NOT NULL, size INTEGER NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS recording_of_job ON recording (owner, job, at_s);
"""


@dataclass(frozen=True)
class Listing:
    """What one looker saw in the folders at ``at_s`` (Unix seconds)."""

    by: str
    at_s: float
    files: tuple[FileFact, ...]


@dataclass(frozen=True)
class RecordedJob:
    """One job's lines with their arrivals (Unix seconds), and the listings of its folders, both in their order."""

    owner: str
    job: str
    lines: tuple[tuple[float, str], ...]
    listings: tuple[Listing, ...]


class RecordingTable:
    """The store; methods block. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location, most_bytes: int = 0) -> None:
        self._most_bytes, self._written = most_bytes, 0
        self._db = open_database(where, _SCHEMA)

    @classmethod
    def of_mib(cls, where: Location, most_mib: int) -> "RecordingTable | None":
        """None where nothing may be recorded."""
        return cls(where, most_mib * MIB) if most_mib else None

    def close(self) -> None:
        self._db.close()

    def add(
        self, owner: str, job: str, lines: Iterable[tuple[float, str]], listings: Iterable[Listing], now_s: float
    ) -> None:
        """Keep what is new of a job."""
        entry = {
            "lines": [(at_s, kept_text(text)) for at_s, text in lines],
            "listings": [_written(listing) for listing in listings],
        }
        if not entry["lines"] and not entry["listings"]:
            return
        document = json.dumps(entry, separators=(",", ":"))
        with self._db.transaction() as db:
            values = (uuid.uuid4().hex, owner, job, now_s, len(document), document)
            db.execute("INSERT INTO recording VALUES (?,?,?,?,?,?)", values)
            self._written += 1
            if self._written % _PRUNE_EVERY == 1 or len(document) > self._most_bytes // _PRUNE_EVERY:
                self._prune(db, now_s)

    def jobs(self) -> list[tuple[str, str]]:
        """Owner and name of every job that is kept."""
        return [(str(owner), str(job)) for owner, job in self._db.query("SELECT DISTINCT owner, job FROM recording")]

    def load(self, owner: str, job: str) -> RecordedJob:
        """One job. What cannot be read any more is passed over."""
        rows = self._db.query("SELECT document FROM recording WHERE owner = ? AND job = ? ORDER BY at_s", (owner, job))
        lines: list[tuple[float, str]] = []
        listings: list[Listing] = []
        for (document,) in rows:
            try:
                entry = json.loads(document)
                lines += [(float(at_s), str(text)) for at_s, text in entry["lines"]]
                listings += [_read(listing) for listing in entry["listings"]]
            except (ValueError, KeyError, TypeError):
                continue
        lines.sort(key=lambda line: line[0])
        listings.sort(key=lambda listing: listing.at_s)
        return RecordedJob(owner, job, tuple(lines), tuple(listings))

    def _prune(self, db: Transaction, now_s: float) -> None:
        db.execute("DELETE FROM recording WHERE at_s < ?", (now_s - RETENTION_S,))
        for owner, job, oldest_s, newest_s in self._excess(db):
            middle_s = (oldest_s + newest_s) / 2
            db.execute(
                "DELETE FROM recording WHERE owner = ? AND job = ? AND at_s <= ?",
                (owner, job, middle_s if newest_s > oldest_s else newest_s),
            )

    def _excess(self, db: Transaction) -> Iterator[tuple[str, str, float, float]]:
        """The job that holds most, as long as all of them hold too much."""
        while True:
            rows = db.query("SELECT owner, job, sum(size), min(at_s), max(at_s) FROM recording GROUP BY owner, job")
            if sum(row[2] for row in rows) <= self._most_bytes:
                return
            owner, job, _, oldest_s, newest_s = max(rows, key=lambda row: (row[2], row[0], row[1]))
            yield owner, job, float(oldest_s), float(newest_s)


def _written(listing: Listing) -> dict[str, Any]:
    files = [
        (file.path, file.size_bytes, file.modified_at_s, file.is_folder, file.folder, file.ephemeral)
        for file in listing.files
    ]
    return {"by": listing.by, "at": listing.at_s, "files": files}


def _read(document: Mapping[str, Any]) -> Listing:
    files = tuple(FileFact(*entry) for entry in document["files"])
    return Listing(str(document["by"]), float(document["at"]), files)
