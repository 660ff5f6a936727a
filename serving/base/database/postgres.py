"""PostgreSQL, shared by all replicas wherever they run."""

import contextlib
import functools
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kopt.serving.base.database.interface import Column, DatabaseError, NoTableError, Values

if TYPE_CHECKING:
    import psycopg

_MOST_CONNECTIONS = 4
"""Of one table in one process; its threads are few."""
_CONNECT_S = 2
_WAIT_S = 5.0
_DOWN_S = 0.5
"""After a failed connection callers fail at once for so long, and wait for no further one."""
_OPTIONS = (
    "-c search_path=kopt -c statement_timeout=5000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=10000"
)
# The order of names is then the one of their bytes, as in SQLite.
_TYPES = {"TEXT": 'TEXT COLLATE "C"', "REAL": "DOUBLE PRECISION", "INTEGER": "BIGINT"}


class PostgresTransaction:
    """Statements on the connection whose transaction has begun."""

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._connection = connection

    def execute(self, sql: str, values: Values = ()) -> int:
        return self._connection.execute(_translated(sql), _values(values)).rowcount

    def execute_many(self, sql: str, rows: Iterable[Values]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(sql), [_values(row) for row in rows])

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(_translated(sql), _values(values)).fetchall()


class PostgresDatabase:
    """A pool of connections that are made when they are needed. ``url`` as of libpq: ``postgresql://…``.

    What the driver says of an error is not passed on, as it quotes the address; only the SQLSTATE is.
    """

    shared = True

    def __init__(self, url: str, schema: str, *, added: Sequence[Column] = (), read_only: bool = False) -> None:
        self._url, self._schema, self._added, self._created = url, schema, tuple(added), read_only
        self._options = f"{_OPTIONS} -c default_transaction_read_only=on" if read_only else _OPTIONS
        self._idle: list[psycopg.Connection[tuple[Any, ...]]] = []
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._down_until_s = 0.0

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return PostgresTransaction(connection).query(sql, values)

    @contextlib.contextmanager
    def transaction(self, key: str = "") -> Iterator[PostgresTransaction]:
        with self._connection() as connection, connection.transaction():
            if key:
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", _values((key,)))
            yield PostgresTransaction(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
        import psycopg

        if not self._free.acquire(timeout=_WAIT_S):
            raise DatabaseError("the database is too slow: all connections to it are in use")
        connection = None
        try:
            connection = self._idle_connection() or self._connect()
            yield connection
        except psycopg.Error as error:
            kind = NoTableError if isinstance(error, psycopg.errors.UndefinedTable) else DatabaseError
            raise kind(_message(error)) from None
        finally:
            try:
                self._give_back(connection)
            finally:
                self._free.release()

    def _idle_connection(self) -> "psycopg.Connection[tuple[Any, ...]] | None":
        """One that the server has not closed meanwhile, as it does when it is stopped."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _is_open(connection):
                return connection
            connection.close()

    def _give_back(self, connection: "psycopg.Connection[tuple[Any, ...]] | None") -> None:
        import psycopg

        if connection is None:
            return
        if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)

    def _connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        import psycopg

        if time.monotonic() < self._down_until_s:
            raise DatabaseError("the database does not answer")
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                application_name="kopt",
                options=self._options,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=5000,
            )
            if not self._created:
                self._create_tables(connection)
        except psycopg.Error:
            self._down_until_s = time.monotonic() + _DOWN_S
            raise
        return connection

    def _create_tables(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Two that create the same table at once would be an error of one of them."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('kopt schema', 0))")
            connection.execute("CREATE SCHEMA IF NOT EXISTS kopt")
            for statement in _postgres_schema(self._schema).split(";"):
                if statement.strip():
                    connection.execute(statement)
            for column in self._added:
                _add(connection, column)
        self._created = True


def _add(connection: "psycopg.Connection[tuple[Any, ...]]", column: Column) -> None:
    """Looked for first: ALTER locks the table also where there is nothing to add."""
    there = "SELECT 1 FROM information_schema.columns WHERE table_schema = %s AND table_name = %s AND column_name = %s"
    if connection.execute(there, _values(("kopt", column.table, column.name))).fetchone() is None:
        kind = _postgres_schema(column.kind)
        connection.execute(f"ALTER TABLE {column.table} ADD COLUMN {column.name} {kind}")


def _is_open(connection: "psycopg.Connection[tuple[Any, ...]]") -> bool:
    """Whether nothing waits to be read: on an idle connection that is the server's farewell, or the end."""
    import select

    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _postgres_schema(schema: str) -> str:
    result = schema.replace("WITHOUT ROWID", "")
    for name, translated in _TYPES.items():
        result = re.sub(rf"\b{name}\b", translated, result)
    return result.replace("/* rowid */", "rowid BIGINT GENERATED ALWAYS AS IDENTITY,")


@functools.lru_cache(maxsize=256)
def _translated(sql: str) -> Any:
    return sql.replace("%", "%%").replace("?", "%s").replace("instr(", "strpos(")


def _values(values: Values) -> list[Any]:
    """PostgreSQL keeps no NUL in texts; nobody's name has one."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values]


def _message(error: "psycopg.Error") -> str:
    if error.sqlstate:
        return f"the database refuses (SQLSTATE {error.sqlstate})"
    return f"the database does not answer ({type(error).__name__})"
