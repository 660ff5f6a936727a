"""MLflow's server reads artifacts below one folder, and writes none.

A client may give an experiment, a model version or a trace any place for its artifacts, and MLflow's server reads
there with its own rights. Here every place is checked where MLflow turns it into something to read from, so that no
route is forgotten; and new ones are refused when they are made.
"""

import functools
from pathlib import Path
from typing import Any, NoReturn

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.server import handlers
from mlflow.store.artifact import artifact_repository_registry
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.db.db_types import DATABASE_ENGINES
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as ModelStore
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as TrackingStore
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import get_uri_scheme

_LOCAL = ("", "file")


def confine(root: Path) -> None:
    """From now on MLflow's server in this process knows no artifacts but those below ``root``."""

    def repository(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
        return ReadOnlyRepository(artifact_uri, root)

    repositories = artifact_repository_registry._artifact_repository_registry
    for scheme in (*_LOCAL, *repositories.get_registered_artifact_repositories()):
        repositories.register(scheme, repository)
    for engine in DATABASE_ENGINES:
        handlers._tracking_store_registry.register(engine, functools.partial(_tracking, root))
        handlers._model_registry_store_registry.register(engine, functools.partial(_registry, root))


def check_location(uri: str, root: Path) -> Path:
    """The folder or file that an artifact URI names, with links followed.

    Raises MlflowException (403) unless it is ``root`` or lies below it.
    """
    if get_uri_scheme(uri) not in _LOCAL:
        _deny(f"artifacts at {uri!r} are not served here: they must lie below {root}")
    try:
        path = Path(local_file_uri_to_path(uri)).resolve()
    except (OSError, ValueError, RuntimeError):
        _deny(f"{uri!r} is no place for artifacts")
    if not path.is_relative_to(root.resolve()):
        _deny(f"artifacts at {uri!r} are not served here: they must lie below {root}")
    return path


class ReadOnlyRepository(LocalArtifactRepository):  # type: ignore[misc]
    """Artifacts below a folder; links that lead out of it are not followed, and nothing is written."""

    def __init__(self, artifact_uri: str, root: Path) -> None:
        folder = check_location(artifact_uri, root)
        super().__init__(folder.as_uri())
        self._root = root

    def list_artifacts(self, path: str | None = None) -> Any:
        # MLflow asks for the size of each file, and follows links for it.
        return [info for info in super().list_artifacts(path) if self._is_inside(info.path)]

    def download_trace_data(self) -> dict[str, Any]:
        for path in Path(self.artifact_dir).glob("*"):
            check_location(path.as_uri(), self._root)
        data: dict[str, Any] = super().download_trace_data()
        return data

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        _deny_writing()

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        _deny_writing()

    def log_artifact_from_stream(self, *_: Any, **__: Any) -> None:
        _deny_writing()

    async def log_artifact_from_async_stream(self, *_: Any, **__: Any) -> None:
        _deny_writing()

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        _deny_writing()

    def _is_inside(self, path: str) -> bool:
        return (Path(self.artifact_dir) / path).resolve().is_relative_to(self._root.resolve())


def _tracking(root: Path, store_uri: str, artifact_uri: str) -> TrackingStore:
    class Confined(TrackingStore):  # type: ignore[misc]
        def create_experiment(self, name: str, artifact_location: str | None = None, tags: Any = None) -> Any:
            if artifact_location:
                check_location(artifact_location, root)
            return super().create_experiment(name, artifact_location, tags)

    return Confined(store_uri, artifact_uri)


def _registry(root: Path, store_uri: str) -> ModelStore:
    class Confined(ModelStore):  # type: ignore[misc]
        def create_model_version(self, name: str, source: str, *more: Any, **options: Any) -> Any:
            # A source "models:/…" names another version, whose own place is checked.
            if get_uri_scheme(source) != "models":
                check_location(source, root)
            return super().create_model_version(name, source, *more, **options)

    return Confined(store_uri)


def _deny(text: str) -> NoReturn:
    raise MlflowException(text, error_code=PERMISSION_DENIED)


def _deny_writing() -> NoReturn:
    _deny("artifacts are not written through this server: clients on this machine write them themselves")
