"""``python -P -m kopt.cli.training.tracking``: MLflow's pages and API over the home's registry, until SIGTERM.

MLflow's own application behind a gate that asks for the home's secret, and confined to the home's artifacts. One
process: ``mlflow server`` would start the application without either.
"""

import os
from typing import Any

from kopt.core.settings import Settings
from kopt.serving.base.environment import load_settings
from kopt.serving.mlflow_server.gate import Gate
from kopt.serving.mlflow_server.secret import tracking_secret

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNSET = (
    "_MLFLOW_SERVER_SERVE_ARTIFACTS",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE",
    "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS",
)


def application(settings: Settings, hosts: tuple[str, ...] = ()) -> Gate:
    """MLflow's application behind the gate. MLflow reads its environment when it is imported: once in a process."""
    os.environ.update(_environment(settings))
    for name in _UNSET:
        os.environ.pop(name, None)
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    from kopt.serving.mlflow_server.artifacts import confine

    confine(settings.artifacts)
    initialize_backend_stores(settings.tracking_uri, settings.tracking_uri, settings.artifacts.as_uri())
    return Gate(app, secret=tracking_secret(settings), hosts=(*LOOPBACK, *_own(settings.api_host), *hosts))


def _environment(settings: Settings) -> dict[str, str]:
    return {
        "_MLFLOW_SERVER_FILE_STORE": settings.tracking_uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": settings.tracking_uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": settings.artifacts.as_uri(),
        "_MLFLOW_SGI_NAME": "uvicorn",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
        # The gate has looked at the Host header.
        "MLFLOW_SERVER_ALLOWED_HOSTS": "*",
        "MLFLOW_ENABLE_WORKSPACES": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def _own(host: str) -> tuple[str, ...]:
    return (f"[{host}]" if ":" in host else host,) if host not in ("", "0.0.0.0", "::") else ()


def main() -> None:
    """Serve until a signal comes."""
    import uvicorn

    settings = load_settings()
    more = [name.strip() for name in os.environ.get("KOPT_PAGES_HOSTS", "").split(",")]
    options: dict[str, Any] = {"log_level": "warning", "server_header": False, "access_log": False, "lifespan": "off"}
    uvicorn.run(
        application(settings, tuple(name for name in more if name)),
        host=settings.api_host,
        port=settings.mlflow_port,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
        **options,
    )


if __name__ == "__main__":
    main()
