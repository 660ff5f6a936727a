"""MLflow's client of S3, installed for tests alone."""

import shutil
import subprocess
import sys
from pathlib import Path


def s3_client(folder: Path) -> Path:
    """Installs it into ``folder``, which belongs into PYTHONPATH of MLflow's server."""
    requirements = Path(__file__).with_name("environments") / "mlflow-s3.txt"
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "-q", "--no-deps", "--target", str(folder), "-r", str(requirements)]
    subprocess.run(command, check=True, timeout=600)
    return folder
