"""The database that the settings name."""

from collections.abc import Sequence
from pathlib import Path

from kopt.core.settings import Settings
from kopt.serving.base.database.interface import Column, Database
from kopt.serving.base.database.postgres import PostgresDatabase
from kopt.serving.base.database.sqlite import Prepare, SqliteDatabase

Location = Path | str
"""A SQLite file, or the URL of a PostgreSQL database."""


def location(settings: Settings, name: str) -> Location:
    """Where the tables of ``name`` lie: a file of their own below the state folder, or the database that all share."""
    return settings.database_url or settings.state / f"{name}.db"


def open_database(
    where: Location,
    schema: str,
    *,
    added: Sequence[Column] = (),
    prepare: Prepare | None = None,
    read_within_s: float = 10.0,
    read_only: bool = False,
) -> Database:
    """Does not fail where the database cannot be reached yet. ``added`` are columns that ``schema`` does not name, as
    tables of earlier releases lack them. ``prepare`` and ``read_within_s`` are for SQLite;
    ``read_only``, for PostgreSQL, creates nothing, and needs no right but to read."""
    if isinstance(where, str):
        return PostgresDatabase(where, schema, added=added, read_only=read_only)
    return SqliteDatabase(where, schema, added=added, prepare=prepare, read_within_s=read_within_s)
