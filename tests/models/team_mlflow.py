"""``python team_mlflow.py HOME ARTEFACTS PORT [DATABASE]``: an MLflow server that takes artefacts over HTTP, as a team
would run one. ``ARTEFACTS`` and ``DATABASE`` are URLs; without the second, SQLite in the home.

Behind the same gate as MLflow of a home: without that home's secret it answers nobody. MLflow's own artifact proxy is
open to those who have it. ``TEAM_MLFLOW_HOSTS`` are further names by which it may be called.
"""

import os
import re
import sys
from pathlib import Path

import uvicorn

from kopt.core.settings import Settings
from kopt.serving.mlflow_server.gate import ROUTES, Gate
from kopt.serving.mlflow_server.secret import tracking_secret

PROXY = re.compile(rf"{ROUTES.pattern}|/api/2\.0/mlflow-artifacts/.+")


def main(home: Path, artefacts: str, port: int, database: str = "") -> None:
    settings = Settings(home=home, mlflow_uri=database)
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": settings.tracking_uri,
            "_MLFLOW_SERVER_REGISTRY_STORE": settings.tracking_uri,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artefacts,
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        }
    )
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(settings.tracking_uri, settings.tracking_uri, "mlflow-artifacts:/")
    gate = Gate(
        app,
        secret=tracking_secret(settings),
        hosts=("127.0.0.1", *os.environ.get("TEAM_MLFLOW_HOSTS", "").split()),
        routes=PROXY,
    )
    uvicorn.run(gate, host="127.0.0.1", port=port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
