"""What a table needs of its database.

Schemas are written for SQLite: TEXT, INTEGER, REAL, ``rowid``. PostgreSQL gets the types that behave alike.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

Values = Sequence[Any]
NO_LIMIT = (1 << 63) - 1
"""SQLite takes OFFSET only after LIMIT, PostgreSQL no negative one."""


@dataclass(frozen=True)
class Column:
    """One that tables of earlier releases lack: it is added where it is not there. ``kind`` has to have a default."""

    table: str
    name: str
    kind: str


class DatabaseError(Exception):
    """The database does not answer, or refuses. The message never holds an address, a user or a password."""


class NoTableError(DatabaseError):
    """What is asked for was never stored: a reader that creates nothing finds no table."""


class Transaction(Protocol):
    """Statements that take effect together or not at all. Raises DatabaseError."""

    def execute(self, sql: str, values: Values = ()) -> int:
        """How many rows were written."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Values]) -> None: ...

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]: ...


class Database(Protocol):
    """Thread-safe; methods block. Connects on first use, and again after an error."""

    @property
    def shared(self) -> bool:
        """Whether replicas on other machines use it too: then what is accepted must be in it."""
        ...

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Rows of one SELECT. Raises DatabaseError."""
        ...

    def transaction(self, key: str = "") -> AbstractContextManager[Transaction]:
        """Committed where the block ends without an error, else undone. Raises DatabaseError.

        Transactions of the same ``key`` follow each other, in whichever process they are; those without one rely on
        the locks of the rows that they write.
        """
        ...

    def close(self) -> None: ...
