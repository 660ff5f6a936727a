"""The connection to MLflow: imported late (4 s), never allowed to unpickle, errors in words.

Works on the embedded SQLite file and on any MLflow server.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kopt.core.redaction import redact
from kopt.core.settings import Settings
from kopt.models.registry.locks import exclusive

_ENVIRONMENT = {
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    # A server with its artefacts in S3 would send clients to the bucket, by addresses of its choice. They speak to that
    # server alone: network policies let nobody else through, and each file would be tried for minutes.
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
}
# MLflow's own defaults wait minutes for a server that is down and report to its makers.
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


class RegistryError(RuntimeError):
    """The registry cannot do what was asked; the message says why and what to do."""


class NotRegisteredError(RegistryError):
    """There is no such model, version or alias."""


def connect(settings: Settings) -> Any:
    """An ``MlflowClient`` on the settings' tracking URI; makes the SQLite file on first use.

    Raises RegistryError when the database or the server cannot be reached.
    """
    os.environ.update(_ENVIRONMENT)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    from mlflow.tracking import MlflowClient

    for noisy in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Two processes that create the tables of a new SQLite file at once leave it half made.
    with explained(redact(f"connecting to {settings.tracking_uri}")), exclusive(settings.home / "mlflow.lock"):
        client = MlflowClient(settings.tracking_uri, settings.tracking_uri)
        client.search_experiments(max_results=1)
        return client


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Turns MLflow's exceptions inside the block into RegistryError."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        text = redact(str(error)).strip().split("\n")[0][:400]
        if _is_absent(error):
            raise NotRegisteredError(f"{action}: {text}") from error
        if "database is locked" in str(error):
            raise RegistryError(
                f"{action}: the registry's SQLite file is locked by another process; try again, or run an MLflow "
                "server and name it in KOPT_MLFLOW_URI"
            ) from error
        raise RegistryError(f"{action}: {text}") from error
    except (OSError, ConnectionError) as error:
        raise RegistryError(f"{action}: {redact(str(error))}") from error


def _is_absent(error: Exception) -> bool:
    code = getattr(error, "error_code", "")
    return code == "RESOURCE_DOES_NOT_EXIST" or (code == "INVALID_PARAMETER_VALUE" and "not found" in str(error))
