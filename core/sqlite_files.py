"""SQLite files that several processes of one machine share."""

import sqlite3
from collections.abc import Callable

_BETWEEN_S = 0.02
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def write_ahead(connection: sqlite3.Connection, sleep: Callable[[float], object], within_s: float = 10.0) -> None:
    """Keep the file with a write-ahead log, so that readers do not wait for the writer.

    SQLite's own timeout does not hold here: while another process opens the same new file, the switch is refused at
    once (https://www.sqlite.org/wal.html, "Activating And Configuring WAL Mode" and "Sometimes Queries Return
    SQLITE_BUSY In WAL Mode"). It is tried again after ``sleep``, for so long.

    Raises:
        sqlite3.OperationalError: it stayed locked, or cannot be written.
    """
    for retries in reversed(range(max(1, round(within_s / _BETWEEN_S)))):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _LOCKED or not retries:
                raise
            sleep(_BETWEEN_S)
        else:
            return
