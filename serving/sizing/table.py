"""Evidence of job types: summaries of traces, profiles and the newest answer, in the database that the replicas share.

Kept by owner, a caller or a namespace (``runtime.owners``). What is sent for one owner changes no other's answers.
Evidence is kept before its sender has an answer, or as soon as the database is back; the answers themselves are written
by a thread of their own, as no caller should wait for what only the pages need.
"""

import functools
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kopt.core.redaction import redact_document
from kopt.serving.base.database.interface import DatabaseError, Transaction
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.base.old_secrets import cleanse
from kopt.serving.base.owners import namespace_of
from kopt.serving.http.sharing import trim

_LOG = logging.getLogger(__name__)
RETENTION_S = 30 * 86_400
MOST_ROWS = 50_000
_PRUNE_EVERY = 1000
_MAX_QUEUED = 2000
"""Answers that are still to be written; further ones are not kept."""
_READ_WITHIN_S = 0.05
_AGAIN_S = 2.0
"""After the database has failed."""
_LOCK = "sizes"
"""Batches of several replicas follow each other: in another order they would block each other."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS size (
    caller TEXT NOT NULL, job_type TEXT NOT NULL, at_s REAL NOT NULL, trace TEXT, profile TEXT, advice TEXT,
    PRIMARY KEY (caller, job_type)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS size_age ON size (at_s);
"""

_UPSERT = """
INSERT INTO size VALUES (?,?,?,?,?,?) ON CONFLICT (caller, job_type) DO UPDATE SET at_s = excluded.at_s,
advice = excluded.advice, trace = coalesce(excluded.trace, size.trace),
profile = coalesce(excluded.profile, size.profile)
WHERE excluded.at_s >= size.at_s OR coalesce(excluded.trace, excluded.profile) IS NOT NULL
"""
"""A queued answer may be older than one that came with evidence meanwhile."""


def _of_namespace(advice: dict[str, Any], namespace: str) -> dict[str, Any]:
    return advice | {"namespace": namespace} if namespace else advice


@dataclass(frozen=True)
class StoredEvidence:
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

    def read(self) -> StoredEvidence:
        return StoredEvidence(*(None if name is None else json.loads(name) for name in (self.trace, self.profile)))


@dataclass(frozen=True)
class _Row:
    at_s: float
    sent: StoredEvidence
    advice: Mapping[str, Any]
    named: bool


class SizeTable:
    """The store. Methods block on the disk or the network, except ``put_later``. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location) -> None:
        self._written = 0
        key, documents = ("caller", "job_type"), ("trace", "profile", "advice")
        old_secrets = functools.partial(cleanse, table="size", key=key, documents=documents)
        self._db = open_database(where, _SCHEMA, prepare=old_secrets, read_within_s=_READ_WITHIN_S)
        self._queued: dict[tuple[str, str], _Row] = {}
        self._news, self._flushing, self._ending = threading.Condition(), threading.Lock(), False
        self._writer = threading.Thread(target=self._write_queued, name="sizes", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Flushes queued answers."""
        with self._news:
            self._ending = True
            self._news.notify()
        self._writer.join(timeout=10.0)
        self._db.close()

    @property
    def shared(self) -> bool:
        """Whether it is reached over the network."""
        return self._db.shared

    def evidence(self, owner: str, job_type: str) -> Kept:
        """What has been sent about a job type; quick."""
        rows = self._db.query("SELECT trace, profile FROM size WHERE caller = ? AND job_type = ?", (owner, job_type))
        return Kept(*rows[0]) if rows else Kept()

    def put(
        self,
        owners: Sequence[str],
        job_type: str,
        at_s: float,
        *,
        sent: StoredEvidence,
        advice: Mapping[str, Any],
        named: bool = True,
    ) -> None:
        """Keep the newest answer, and what was sent with its question; what was sent before stays otherwise.

        Without ``named`` the advice's name is generated, and an existing name stays.
        """
        rows = {(owner, job_type): _Row(at_s, sent, advice, named) for owner in owners}
        with self._news:
            rows = {key: _merged(self._queued.pop(key, None), row) for key, row in rows.items()}
        try:
            self._write(rows)
        except DatabaseError:
            self._queue_again(rows)
            raise

    def put_later(self, owner: str, job_type: str, at_s: float, *, advice: Mapping[str, Any], named: bool) -> None:
        """Queue an answer for writing; of several only the newest is written."""
        with self._news:
            if len(self._queued) < _MAX_QUEUED or (owner, job_type) in self._queued:
                row = _Row(at_s, StoredEvidence(), advice, named)
                self._queued[owner, job_type] = _merged(self._queued.get((owner, job_type)), row)
                self._news.notify()

    def _write_queued(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._queued or self._ending)
                if not self._queued:
                    return
            if not self.flush():
                with self._news:
                    if self._ending:
                        return
                    self._news.wait_for(lambda: self._ending, _AGAIN_S)

    def flush(self) -> bool:
        """Write queued answers now; False where they stay queued, as the database does not take them.

        What another thread is writing has been written on return.
        """
        with self._flushing:
            with self._news:
                rows, self._queued = self._queued, {}
            try:
                self._write(rows)
            except DatabaseError as error:
                self._queue_again(rows)
                _LOG.warning("%d sizes are kept later: %s", len(rows), error)
                return False
            return True

    def _queue_again(self, rows: Mapping[tuple[str, str], _Row]) -> None:
        with self._news:
            for key, row in rows.items():
                newer = self._queued.get(key)
                if newer is not None or len(self._queued) < _MAX_QUEUED:
                    self._queued[key] = row if newer is None else _merged(row, newer)
            self._news.notify()

    def _write(self, rows: Mapping[tuple[str, str], _Row]) -> None:
        if not rows:
            return
        with self._db.transaction(_LOCK) as db:
            for (owner, job_type), row in rows.items():
                sent = (row.sent.trace, row.sent.profile)
                texts = [None if item is None else json.dumps(redact_document(item)) for item in sent]
                advice = redact_document(row.advice)
                if not row.named:
                    advice = {**advice, **_name_in(db, owner, job_type)}
                db.execute(_UPSERT, (owner, job_type, row.at_s, *texts, json.dumps(advice)))
                self._written += 1
                if self._written % _PRUNE_EVERY == 1:
                    self._prune(db, row.at_s)

    def advice(self, owner: str | None, limit: int = 500) -> list[dict[str, Any]]:
        """The newest answers, of one owner or of all, newest first."""
        self.flush()
        result = self._db.query(
            "SELECT caller, advice FROM size WHERE coalesce(?, caller) = caller ORDER BY at_s DESC LIMIT ?",
            (owner, limit),
        )
        return [_of_namespace(json.loads(text), namespace_of(caller)) for caller, text in result]

    def _prune(self, db: Transaction, now_s: float) -> None:
        db.execute("DELETE FROM size WHERE at_s < ?", (now_s - RETENTION_S,))
        trim(db, "size", "caller, job_type", "at_s", MOST_ROWS, ("caller",))


def _merged(before: _Row | None, row: _Row) -> _Row:
    """The newer row, with the evidence that is still to be written."""
    if before is None or before.sent.empty:
        return row
    sent = StoredEvidence(row.sent.trace or before.sent.trace, row.sent.profile or before.sent.profile)
    return replace(row, sent=sent)


def _name_in(db: Transaction, owner: str, job_type: str) -> dict[str, Any]:
    """The name that the kept advice has; empty where nothing is kept."""
    rows = db.query("SELECT advice FROM size WHERE caller = ? AND job_type = ?", (owner, job_type))
    kept = json.loads(rows[0][0]) if rows and rows[0][0] else {}
    return {"name": kept["name"]} if "name" in kept else {}
