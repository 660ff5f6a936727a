"""Secrets that an earlier version wrote into a table are taken out once, and the disk keeps no copy of them."""

import json
import logging
import sqlite3
from collections.abc import Sequence

from kopt.core.redaction import redact, redact_document

_LOG = logging.getLogger(__name__)
CLEANSED = 1
"""The database's ``user_version`` from which on only redacted documents are written."""


def cleanse(database: sqlite3.Connection, table: str, key: Sequence[str], documents: Sequence[str]) -> None:
    """Redact the JSON ``documents`` of every row of ``table``, unless that was done before; ``key`` identifies rows.

    Where another process keeps the database busy it is done at the next start; nothing is lost.
    """
    if database.execute("PRAGMA user_version").fetchone()[0] >= CLEANSED:
        return
    try:
        changed = _rewrite(database, table, key, documents)
        # The replaced text is still in free pages and in the write-ahead log.
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute(f"PRAGMA user_version = {CLEANSED}")
    except sqlite3.OperationalError:
        _LOG.exception("old rows of %s may hold secrets; they are looked through at the next start", table)
        return
    if changed:
        _LOG.warning("secrets were taken out of %d rows of %s", changed, table)


def _rewrite(database: sqlite3.Connection, table: str, key: Sequence[str], documents: Sequence[str]) -> int:
    columns = ", ".join((*key, *documents))
    where = " AND ".join(f"{name} = ?" for name in key)
    changed = 0
    with database:
        rows = database.execute(f"SELECT {columns} FROM {table}").fetchall()
        for row in rows:
            identity, texts = row[: len(key)], row[len(key) :]
            for name, text in zip(documents, texts, strict=True):
                if text is not None and (clean := _clean(text)) != text:
                    database.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (clean, *identity))
                    changed += 1
    return changed


def _clean(text: str) -> str:
    """The document redacted; left as it is written where nothing in it is hidden."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return redact(text)
    result = redact_document(document)
    return text if result == document else json.dumps(result)
