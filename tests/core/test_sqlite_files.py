"""Processes that open the same new file at the same moment."""

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from kopt.core.sqlite_files import write_ahead


def test_the_switch_waits_for_whoever_has_the_file(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "a.db", check_same_thread=False, isolation_level=None)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    connection = sqlite3.connect(tmp_path / "a.db", timeout=0.0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write_ahead(connection, time.sleep, within_s=0.1)
    timer = threading.Timer(0.3, other.execute, ["COMMIT"])
    timer.start()
    began_s = time.monotonic()
    write_ahead(connection, time.sleep)
    assert time.monotonic() - began_s >= 0.2
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    timer.join()


def test_what_cannot_be_written_is_no_matter_of_patience(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    sqlite3.connect(path).execute("CREATE TABLE t (a)")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    began_s = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        write_ahead(connection, time.sleep)
    assert time.monotonic() - began_s < 5.0
