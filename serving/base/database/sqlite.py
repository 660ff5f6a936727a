"""One SQLite file, shared by the processes of one machine."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kopt.core.sqlite_files import write_ahead
from kopt.serving.base.database.interface import Column, DatabaseError, Values

_PRAGMAS = "PRAGMA synchronous = NORMAL;"
_WITHIN_S = 10.0
Prepare = Callable[[sqlite3.Connection], None]


class SqliteTransaction:
    """Statements on the connection whose transaction has begun."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Values = ()) -> int:
        return self._connection.execute(sql, values).rowcount

    def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        self._connection.executemany(sql, rows)

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()


class SqliteDatabase:
    """Two connections, so that reads do not wait for writes. A file that is torn, or a disk that is full, is an error
    of that call: the next one opens the file again.

    ``prepare`` is called once with a connection to a file that has the ``schema``.
    """

    shared = False

    def __init__(
        self,
        path: Path,
        schema: str,
        *,
        added: Sequence[Column] = (),
        prepare: Prepare | None = None,
        read_within_s: float = _WITHIN_S,
    ) -> None:
        self._path, self._schema, self._added = path, schema, tuple(added)
        self._prepare, self._read_within_s = prepare, read_within_s
        self._writing, self._reading = threading.RLock(), threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        # Opened again at the first use where it cannot be opened now.
        with contextlib.suppress(DatabaseError), self._errors():
            self._open_writer()

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        with self._errors(), self._reading:
            return self._open_reader().execute(sql, values).fetchall()

    @contextlib.contextmanager
    def transaction(self, key: str = "") -> Iterator[SqliteTransaction]:
        with self._errors(), self._writing:
            connection = self._open_writer()
            # All writers of a file follow each other, whatever their key.
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield SqliteTransaction(connection)

    def close(self) -> None:
        with self._writing:
            writer, self._writer = self._writer, None
            _close(writer)
        # After it, not within: whoever opens the reader holds its lock and waits for the writer's.
        with self._reading:
            reader, self._reader = self._reader, None
            _close(reader)

    def _open_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._connect(_WITHIN_S)
            try:
                write_ahead(connection, time.sleep, _WITHIN_S)
                connection.executescript(_PRAGMAS + self._schema)
                for column in self._added:
                    _add(connection, column)
                if self._prepare is not None:
                    self._prepare(connection)
                    self._prepare = None
            except sqlite3.Error:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def _open_reader(self) -> sqlite3.Connection:
        if self._reader is None:
            with self._writing:
                self._open_writer()
            self._reader = self._connect(self._read_within_s)
        return self._reader

    def _connect(self, within_s: float) -> sqlite3.Connection:
        return sqlite3.connect(self._path, check_same_thread=False, timeout=within_s)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise DatabaseError(f"{self._path.name} cannot be used: {error}") from error


def _add(connection: sqlite3.Connection, column: Column) -> None:
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({column.table})")}
    if column.name not in there:
        connection.execute(f"ALTER TABLE {column.table} ADD COLUMN {column.name} {column.kind}")


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
