"""An MLflow registry without a model, made once: the migrations of a new SQLite file take two seconds."""

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from kopt.core.settings import Settings
from kopt.models.registry.mlflow import connect


def with_empty_registry(home: Path) -> Path:
    """``home`` with the file that connecting to its registry would make."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    (home / "mlflow.db").write_bytes(_file())
    return home


@functools.cache
def _file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        connect(settings)
        with closing(sqlite3.connect(settings.home / "mlflow.db")) as database:
            return database.serialize()
