"""What every feature store is made of: a folder, Feast's registry and its two stores, each created on first use.

Feast is imported on first use too: ten seconds and hundreds of MiB.
"""

import contextlib
import fcntl
import hashlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from kopt.core.settings import Settings
from kopt.core.sqlite_files import write_ahead
from kopt.features.rows import FeatureStoreError
from kopt.features.session import quietly, store_errors


class FeastStore(ABC):
    """A store whose state lies in ``folder``, the folder ``name`` of ``settings.feast_repo``.

    Every method creates what is missing, and blocks. Errors are FeatureStoreError.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        if set("*?[") & set(str(settings.feast_repo)):
            raise FeatureStoreError(
                f"DuckDB takes *, ? and [ in {settings.feast_repo} for patterns; set another KOPT_HOME"
            )
        self._settings = settings
        self.folder = settings.feast_repo / name
        self._applied = False

    @abstractmethod
    def _schemas(self) -> Mapping[Path, Any]:
        """The folders of offline rows, each with its Arrow schema."""

    @property
    @abstractmethod
    def _repository(self) -> Any:
        """Feast's definitions."""

    @property
    @abstractmethod
    def _reader(self) -> Any:
        """What reads the online store."""

    def apply(self) -> None:
        """Creates the stores and registers the definitions; does nothing where that has been done."""
        marker = self.folder / f"applied-{'redis' if self._settings.redis_url else 'sqlite'}"
        if not (self._applied or marker.exists()):
            with self._errors(), self._locked():
                if not marker.exists():
                    self._create()
                    marker.touch()
        self._applied = True

    def connect(self) -> None:
        """Imports Feast and opens the online store, so that the first reader need not wait seconds for that."""
        self.apply()
        with self._errors():
            _ = self._reader

    def _create(self) -> None:
        from kopt.features.offline import replace_rows

        for folder, schema in self._schemas().items():
            folder.mkdir(parents=True, exist_ok=True)
            # Gives Feast the columns while there is no row yet.
            replace_rows(folder / "none.parquet", schema.empty_table())
        if not self._settings.redis_url:
            with contextlib.closing(sqlite3.connect(self.folder / "online.db")) as online:
                write_ahead(online, time.sleep)
        with quietly():
            self._feast.apply(list(self._repository))

    def _write_online(self, features: str, tables: Iterable[Any]) -> None:
        """Makes rows the newest of their groups: Arrow tables, of at most one row for each."""
        import pyarrow as pa

        filled = [table for table in tables if table.num_rows]
        if filled:
            newest = pa.concat_tables(filled).to_pandas()
            with self._errors():
                # Not Feast's materialise: it sorts all history for the newest row and logs every call in the registry.
                self._feast.write_to_online_store(features, newest)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @cached_property
    def _config(self) -> Any:
        from kopt.features.repository.definitions import repo_config

        return repo_config(self._settings, self.folder)

    @cached_property
    def _feast(self) -> Any:
        from kopt.features.repository.definitions import feature_store

        return feature_store(self._config)

    def _files(self) -> list[Path]:
        return sorted(file for folder in self._schemas() for file in folder.glob("*.parquet"))

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return store_errors(self.folder, self._torn)

    def _torn(self) -> FeatureStoreError | None:
        from kopt.features.offline import torn, unreadable

        broken = unreadable(self._files())
        return None if broken is None else torn(broken)


def source_digest(module: ModuleType) -> str:
    """Names a transformation by its source text, 12 hexadecimal digits."""
    return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:12]
