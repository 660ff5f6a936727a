"""Records in the order in which they arrived, each linked to all before it; nothing is ever changed.

The oldest go by age alone; where the store begins is then written down, so that the rest can still be verified.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kopt.core.audit import FIRST, AuditEntry, Head, SealedRecord, StoredRecord, link_of
from kopt.serving.base.database.interface import Transaction
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.contract.audit_answers import AuditQuery

RETENTION_S = 400 * 86_400.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS audit_record (
    position INTEGER NOT NULL PRIMARY KEY, caller TEXT NOT NULL, chain TEXT NOT NULL, sequence INTEGER NOT NULL,
    at_s REAL NOT NULL, component TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    text TEXT NOT NULL, digest TEXT NOT NULL, link TEXT NOT NULL, kept_s REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS audit_record_chain ON audit_record (caller, chain, sequence);
CREATE INDEX IF NOT EXISTS audit_record_object ON audit_record (namespace, name, position);
CREATE INDEX IF NOT EXISTS audit_record_at ON audit_record (at_s);
CREATE TABLE IF NOT EXISTS audit_start (
    id INTEGER NOT NULL PRIMARY KEY, position INTEGER NOT NULL, link TEXT NOT NULL
);
"""
_LOCK = "audit"
_STORED = "position, caller, text, digest, link"


class Rewritten(ValueError):
    """A record whose place in its chain has another one already."""


class AuditTable:
    """The store; methods block. Thread-safe. Raises DatabaseError."""

    def __init__(
        self, where: Location, *, retention_s: float = RETENTION_S, clock: Callable[[], float] = time.time
    ) -> None:
        self._retention_s, self._clock = retention_s, clock
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def append(self, caller: str, records: Sequence[tuple[SealedRecord, AuditEntry]]) -> tuple[int, Head]:
        """How many were new, and the head behind them. Raises Rewritten, and then keeps none of them."""
        now_s = self._clock()
        with self._db.transaction(_LOCK) as transaction:
            self._give_up(transaction, now_s - self._retention_s)
            head, kept = _head(transaction.query), 0
            for record, entry in records:
                stored = transaction.query(
                    "SELECT digest FROM audit_record WHERE caller = ? AND chain = ? AND sequence = ?",
                    (caller, entry.chain, entry.sequence),
                )
                if stored:
                    if stored[0][0] != record.digest:
                        raise Rewritten(f"record {entry.sequence} of {entry.chain} is kept with another text")
                    continue
                head = Head(head.position + 1, link_of(head.link, caller, record.digest))
                kept += 1
                transaction.execute(
                    "INSERT INTO audit_record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        head.position, caller, entry.chain, entry.sequence, entry.at_s, entry.component, entry.kind,
                        entry.namespace, entry.name, record.text, record.digest, head.link, now_s,
                    ),
                )  # fmt: skip
            return kept, head

    def read(self, query: AuditQuery, caller: str | None) -> tuple[list[StoredRecord], Head, Head]:
        """Records that a query asks for, of one caller or of all (None); where the store begins, and its head."""
        where, values = _conditions(query, caller)
        order = "DESC" if query.after is None else "ASC"
        rows = self._db.query(
            f"SELECT {_STORED} FROM audit_record WHERE {where} ORDER BY position {order} LIMIT ?",
            (*values, query.limit),
        )
        records = [StoredRecord(int(at), who, SealedRecord(text, digest), link) for at, who, text, digest, link in rows]
        return sorted(records, key=lambda record: record.position), _start(self._db.query), _head(self._db.query)

    def _give_up(self, transaction: Transaction, before_s: float) -> None:
        """Forget the oldest, up to the first that is not too old."""
        oldest = transaction.query("SELECT kept_s FROM audit_record ORDER BY position LIMIT 1")
        if not oldest or oldest[0][0] >= before_s:
            return
        rows = transaction.query("SELECT min(position) FROM audit_record WHERE kept_s >= ?", (before_s,))
        head = _head(transaction.query)
        last = head.position if rows[0][0] is None else int(rows[0][0]) - 1
        links = transaction.query("SELECT link FROM audit_record WHERE position = ?", (last,))
        if links:
            transaction.execute("DELETE FROM audit_start WHERE id = 1")
            transaction.execute("INSERT INTO audit_start VALUES (1, ?, ?)", (last, links[0][0]))
            transaction.execute("DELETE FROM audit_record WHERE position <= ?", (last,))


Query = Callable[..., list[tuple[Any, ...]]]


def _start(query: Query) -> Head:
    rows = query("SELECT position, link FROM audit_start WHERE id = 1")
    return Head(int(rows[0][0]), rows[0][1]) if rows else Head(0, FIRST)


def _head(query: Query) -> Head:
    rows = query("SELECT position, link FROM audit_record ORDER BY position DESC LIMIT 1")
    return Head(int(rows[0][0]), rows[0][1]) if rows else _start(query)


def _conditions(query: AuditQuery, caller: str | None) -> tuple[str, tuple[Any, ...]]:
    """SQL of what is limited, and its values."""
    limits = {
        "position > ?": query.after,
        "position < ?": query.before,
        "at_s >= ?": query.since_s,
        "at_s < ?": query.until_s,
        "component = ?": query.component or None,
        "kind = ?": query.kind or None,
        "namespace = ?": query.namespace or None,
        "name = ?": query.name or None,
        "caller = ?": caller,
    }
    conditions = {condition: value for condition, value in limits.items() if value is not None}
    return " AND ".join(conditions) or "1 = 1", tuple(conditions.values())
