"""Evidence of job types: summaries of traces, profiles and the newest answer, on SQLite under KOPT_HOME.

Shared by all replicas of a machine, kept by owner: a caller, or a namespace (``owner_of``). What is sent for one owner
changes no other owner's answers. Evidence is on the disk before its sender has an answer; the answers themselves are
written by a thread of their own, as no caller should wait for a disk that only the pages need.
"""

import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.core.redaction import redact_document
from kopt.serving.http.sharing import trim
from kopt.serving.runtime.old_secrets import cleanse

_LOG = logging.getLogger(__name__)
RETENTION_S = 30 * 86_400
MOST_ROWS = 50_000
_PRUNE_EVERY = 1000
_MAX_QUEUED = 2000
"""Answers that are still to be written; further ones are not kept."""
_READ_WITHIN_S = 0.05
_NAMESPACES = "/namespaces/"
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS size (
    caller TEXT NOT NULL, job_type TEXT NOT NULL, at_s REAL NOT NULL, trace TEXT, profile TEXT, advice TEXT,
    PRIMARY KEY (caller, job_type)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS size_age ON size (at_s);
"""


def owner_of(caller: str, namespace: str = "") -> str:
    """Whose evidence counts: the namespace's, where one is given, else the caller's. No two share a key."""
    if namespace:
        return _NAMESPACES + namespace
    return f"/{caller}" if caller.startswith("/") else caller


@dataclass(frozen=True)
class Known:
    """Documents of a job type, of ``models.sizing.trace_summary`` and ``WorkloadProfile``; None where unknown."""

    trace: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | None = None

    @property
    def empty(self) -> bool:
        return self.trace is None and self.profile is None


@dataclass(frozen=True)
class Kept:
    """The same documents as JSON text, which compares faster."""

    trace: str | None = None
    profile: str | None = None

    def __len__(self) -> int:
        """Characters."""
        return len(self.trace or "") + len(self.profile or "")

    def read(self) -> Known:
        return Known(*(None if name is None else json.loads(name) for name in (self.trace, self.profile)))


@dataclass(frozen=True)
class _Row:
    at_s: float
    sent: Known
    advice: Mapping[str, Any]
    named: bool


class SizeTable:
    """The store. Methods block on the disk, ``put_later`` does not. Thread-safe, one lock per connection."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock, self._written = threading.Lock(), 0
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
        self._db.executescript(_SCHEMA)
        cleanse(self._db, "size", ("caller", "job_type"), ("trace", "profile", "advice"))
        # A connection of its own, so that reads do not wait for writes.
        self._reading = threading.Lock()
        self._reader = sqlite3.connect(path, check_same_thread=False, timeout=_READ_WITHIN_S)
        self._queued: dict[tuple[str, str], _Row] = {}
        self._news, self._ending = threading.Condition(), False
        self._writer = threading.Thread(target=self._write_queued, name="sizes", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Flushes queued answers."""
        with self._news:
            self._ending = True
            self._news.notify()
        self._writer.join(timeout=10.0)
        with self._lock, self._reading:
            self._db.close()
            self._reader.close()

    def evidence(self, owner: str, job_type: str) -> Kept:
        """What has been sent about a job type; quick."""
        with self._reading:
            result = self._reader.execute(
                "SELECT trace, profile FROM size WHERE caller = ? AND job_type = ?", (owner, job_type)
            ).fetchone()
        return Kept() if result is None else Kept(*result)

    def put(
        self,
        owners: Sequence[str],
        job_type: str,
        at_s: float,
        *,
        sent: Known,
        advice: Mapping[str, Any],
        named: bool = True,
    ) -> None:
        """Keep the newest answer, and what was sent with its question; what was sent before stays otherwise.

        Without ``named`` the advice's name is generated, and an existing name stays.
        """
        rows = {(owner, job_type): _Row(at_s, sent, advice, named) for owner in owners}
        with self._news:
            for key in rows:
                self._queued.pop(key, None)
        self._write(rows)

    def put_later(self, owner: str, job_type: str, at_s: float, *, advice: Mapping[str, Any], named: bool) -> None:
        """Queue an answer for writing; of several only the newest is written."""
        with self._news:
            if len(self._queued) < _MAX_QUEUED or (owner, job_type) in self._queued:
                self._queued[owner, job_type] = _Row(at_s, Known(), advice, named)
                self._news.notify()

    def _write_queued(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._queued or self._ending)
                if not self._queued:
                    return
            self.flush()

    def flush(self) -> None:
        """Write queued answers now."""
        with self._news:
            rows, self._queued = self._queued, {}
        try:
            self._write(rows)
        except sqlite3.Error:
            _LOG.exception("%d sizes were not kept", len(rows))

    def _write(self, rows: Mapping[tuple[str, str], _Row]) -> None:
        with self._lock, self._db:
            for (owner, job_type), row in rows.items():
                sent = (row.sent.trace, row.sent.profile)
                texts = [None if item is None else json.dumps(redact_document(item)) for item in sent]
                self._db.execute(
                    "INSERT INTO size VALUES (?,?,?,?,?,?) ON CONFLICT (caller, job_type) DO UPDATE SET "
                    "at_s = excluded.at_s, advice = CASE WHEN ? THEN excluded.advice ELSE "
                    "json_set(excluded.advice, '$.name', json_extract(advice, '$.name')) END, "
                    "trace = coalesce(excluded.trace, trace), "
                    "profile = coalesce(excluded.profile, profile) "
                    # A queued answer may be older than one that came with evidence meanwhile.
                    "WHERE excluded.at_s >= at_s OR coalesce(excluded.trace, excluded.profile) IS NOT NULL",
                    (owner, job_type, row.at_s, *texts, json.dumps(redact_document(row.advice)), row.named),
                )
                self._written += 1
                if self._written % _PRUNE_EVERY == 1:
                    self._prune(row.at_s)

    def advice(self, owner: str | None, limit: int = 500) -> list[dict[str, Any]]:
        """The newest answers, of one owner or of all, newest first."""
        self.flush()
        with self._lock:
            result = self._db.execute(
                "SELECT advice FROM size WHERE coalesce(?, caller) = caller ORDER BY at_s DESC LIMIT ?", (owner, limit)
            ).fetchall()
        return [json.loads(text) for (text,) in result]

    def _prune(self, now_s: float) -> None:
        self._db.execute("DELETE FROM size WHERE at_s < ?", (now_s - RETENTION_S,))
        trim(self._db, "size", "caller, job_type", "at_s", MOST_ROWS, ("caller",))
