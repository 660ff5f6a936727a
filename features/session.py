"""What surrounds every use of Feast: its import, its output, its DuckDB, and its errors in our words."""

import contextlib
import importlib
import io
import os
import sqlite3
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kopt.features.rows import FeatureStoreError

JOIN_MEMORY = "2GB"
_METRICS = ("PROMETHEUS_MULTIPROC_DIR", "PROMETHEUS_MULTIPROCESS_DIR")


@contextlib.contextmanager
def importing_feast() -> Iterator[None]:
    """Imports of Feast without its side effects on the process.

    Feast turns all deprecation warnings on, and sets variables that move every later metric of ``prometheus_client``
    in this process and its children into files of a temporary folder. It also takes four times as long as it need.
    """
    # Decides where metrics live when it is first imported.
    import prometheus_client  # noqa: F401

    before = {name: os.environ.get(name) for name in _METRICS}
    try:
        with quietly(), _in_a_quarter_of_the_time():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextlib.contextmanager
def _in_a_quarter_of_the_time() -> Iterator[None]:
    """Feast parses its modules again for each method whose types it checks, and loads torch to offer it its answers.

    Types are not checked here, and torch is loaded only when Feast is asked for tensors.
    """
    import typeguard

    checked, wrapper = typeguard.typechecked, "feast.torch_wrapper"
    if "feast" in sys.modules:
        yield
        return
    typeguard.typechecked = _unchecked
    lazy = types.ModuleType(wrapper)
    lazy.get_torch = lambda: importlib.import_module("torch")  # type: ignore[attr-defined]
    sys.modules[wrapper] = lazy
    try:
        yield
    finally:
        typeguard.typechecked = checked
        del sys.modules[wrapper]


def _unchecked(target: Any = None, **_: Any) -> Any:
    """What ``typeguard.typechecked`` gives, with and without options, but for the checks."""
    return _unchecked if target is None else target


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keeps Feast's progress off standard output. Changes state of the whole process: not for the serving path."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextlib.contextmanager
def duckdb_session(folder: Path) -> Iterator[None]:
    """A DuckDB of bounded memory for Feast's joins, closed afterwards: it complains at exit otherwise."""
    import ibis  # type: ignore[import-untyped]

    before = ibis.options.default_backend
    backend = ibis.duckdb.connect(memory_limit=JOIN_MEMORY, temp_directory=str(folder / "spill"))
    ibis.set_backend(backend)
    try:
        yield
    finally:
        ibis.options.default_backend = before
        backend.disconnect()


@contextlib.contextmanager
def store_errors(folder: Path, torn: Callable[[], FeatureStoreError | None]) -> Iterator[None]:
    """Errors of the stores under ``folder`` as FeatureStoreError that says what to do.

    ``torn`` looks for a damaged file when DuckDB fails, and gives the error that names it.
    """
    import duckdb
    import redis
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except redis.RedisError as error:
        raise FeatureStoreError(
            f"Redis, the online feature store, does not answer ({type(error).__name__}); "
            "start it, correct KOPT_REDIS_URL, or unset that to use SQLite"
        ) from error
    except duckdb.Error as error:
        raise torn() or FeatureStoreError(f"the rows in {folder} cannot be joined: {error}") from error
    except (sqlite3.Error, SQLAlchemyError) as error:
        raise FeatureStoreError(
            f"the feature store in {folder} cannot be used: {error}; free space or mend the folder, "
            "or remove it and write the series again"
        ) from error
