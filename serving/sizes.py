"""What is known of job types: summaries of traces, profiles and the newest answer, on SQLite under KOPT_HOME.

Shared by all replicas of a machine, kept by caller: what one caller sends changes no other caller's answers.
"""

import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RETENTION_S = 30 * 86_400
MOST_ROWS = 50_000
_PRUNE_EVERY = 1000
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS size (
    caller TEXT NOT NULL, job_type TEXT NOT NULL, at_s REAL NOT NULL, trace TEXT, profile TEXT, advice TEXT,
    PRIMARY KEY (caller, job_type)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS size_age ON size (at_s);
"""


@dataclass(frozen=True)
class Known:
    """Documents of a job type: ``models.sizing.summary``'s and ``core.sizing.WorkloadProfile``'s; None where none."""

    trace: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | None = None


class SizeTable:
    """The store. Methods block on the disk. Thread-safe, one lock per process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock, self._written = threading.Lock(), 0
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def known(self, caller: str, job_type: str) -> Known:
        """What has been sent about a job type."""
        with self._lock:
            found = self._db.execute(
                "SELECT trace, profile FROM size WHERE caller = ? AND job_type = ?", (caller, job_type)
            ).fetchone()
        return Known() if found is None else Known(*(None if one is None else json.loads(one) for one in found))

    def put(self, caller: str, job_type: str, at_s: float, *, sent: Known, advice: Mapping[str, Any],
            named: bool = True) -> None:  # fmt: skip
        """Keep the newest answer, and what was sent with its question; what was sent before stays otherwise.

        Without ``named`` the advice's name is made up, and one that is kept already stays.
        """
        texts = [None if one is None else json.dumps(one) for one in (sent.trace, sent.profile, advice)]
        with self._lock, self._db:
            self._db.execute(
                "INSERT INTO size VALUES (?,?,?,?,?,?) ON CONFLICT (caller, job_type) DO UPDATE SET "
                "at_s = excluded.at_s, advice = CASE WHEN ? THEN excluded.advice ELSE "
                "json_set(excluded.advice, '$.name', json_extract(advice, '$.name')) END, "
                "trace = coalesce(excluded.trace, trace), "
                "profile = coalesce(excluded.profile, profile)", (caller, job_type, at_s, *texts, named),
            )  # fmt: skip
            self._written += 1
            if self._written % _PRUNE_EVERY == 1:
                self._prune(at_s)

    def advice(self, caller: str | None, limit: int = 500) -> list[dict[str, Any]]:
        """The newest answers, of one caller or of all, newest first."""
        with self._lock:
            found = self._db.execute(
                "SELECT advice FROM size WHERE coalesce(?, caller) = caller ORDER BY at_s DESC LIMIT ?", (caller, limit)
            ).fetchall()
        return [json.loads(text) for (text,) in found]

    def _prune(self, now_s: float) -> None:
        self._db.execute("DELETE FROM size WHERE at_s < ?", (now_s - RETENTION_S,))
        edge = self._db.execute("SELECT at_s FROM size ORDER BY at_s DESC LIMIT 1 OFFSET ?", (MOST_ROWS,)).fetchone()
        if edge is not None:
            self._db.execute("DELETE FROM size WHERE at_s <= ?", edge)
