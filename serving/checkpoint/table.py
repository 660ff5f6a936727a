"""Jobs whose logs are followed, on SQLite under KOPT_HOME: shared by all replicas of a machine, kept by caller.

Optimistic locking by ``stamp``: a replica stores a job only over the version that it loaded. The table is bounded: the
caller with most jobs, and within it the namespace with most, loses its longest silent jobs first. One agent sends the
lines of every tenant's jobs, so the caller alone would be no fair unit.
"""

import sqlite3
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from kopt.serving.http.sharing import trim
from kopt.serving.runtime.old_secrets import cleanse

RETENTION_S = 7 * 86_400
MOST_JOBS = 5000
_PRUNE_EVERY = 200
_NAMESPACE = "substr(job, 1, instr(job, '/'))"
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS job (
    owner TEXT NOT NULL, job TEXT NOT NULL, stamp TEXT NOT NULL, at_s REAL NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (owner, job)
);
CREATE INDEX IF NOT EXISTS job_age ON job (at_s);
"""


@dataclass(frozen=True)
class Row:
    """A job and its version: ``stamp`` changes with the content."""

    owner: str
    job: str
    stamp: str
    at_s: float


class JobTable:
    """The store; methods block on the disk. Thread-safe. Raises sqlite3.Error."""

    def __init__(self, path: Path, most: int = MOST_JOBS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._most, self._lock, self._written = most, threading.Lock(), 0
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
        self._db.executescript(_SCHEMA)
        cleanse(self._db, "job", ("owner", "job"), ("document",))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def stamp(self, owner: str, job: str) -> str | None:
        """None where nothing is kept."""
        with self._lock:
            result = self._db.execute("SELECT stamp FROM job WHERE owner = ? AND job = ?", (owner, job)).fetchone()
        return None if result is None else str(result[0])

    def load(self, owner: str, job: str) -> tuple[str, str] | None:
        """Stamp and document."""
        with self._lock:
            result = self._db.execute(
                "SELECT stamp, document FROM job WHERE owner = ? AND job = ?", (owner, job)
            ).fetchone()
        return None if result is None else (str(result[0]), str(result[1]))

    def store(self, owner: str, job: str, over: str | None, at_s: float, document: str) -> str | None:
        """Store the document over version ``over`` (None: no row yet). Returns the new stamp, None on a conflict."""
        fresh = uuid.uuid4().hex
        with self._lock, self._db:
            if over is None:
                done = self._db.execute(
                    "INSERT INTO job VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING", (owner, job, fresh, at_s, document)
                )
            else:
                done = self._db.execute(
                    "UPDATE job SET stamp = ?, at_s = ?, document = ? WHERE owner = ? AND job = ? AND stamp = ?",
                    (fresh, at_s, document, owner, job, over),
                )
            if done.rowcount != 1:
                return None
            self._written += 1
            if self._written % _PRUNE_EVERY == 1:
                self._prune(at_s)
        return fresh

    def rows(self, owner: str | None, since_s: float, limit: int, job: str | None = None) -> list[Row]:
        """Of one owner or of all, the latest first."""
        with self._lock:
            result = self._db.execute(
                "SELECT owner, job, stamp, at_s FROM job WHERE at_s >= ? AND coalesce(?, owner) = owner "
                "AND coalesce(?, job) = job ORDER BY at_s DESC, job LIMIT ?",
                (since_s, owner, job, limit),
            ).fetchall()
        return [Row(*item) for item in result]

    def _prune(self, now_s: float) -> None:
        self._db.execute("DELETE FROM job WHERE at_s < ?", (now_s - RETENTION_S,))
        trim(self._db, "job", "owner, job", "at_s", self._most, ("owner", _NAMESPACE))
