"""How ``kopt up`` decides about the example cluster and starts it."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from kopt.cli.local.checks import free_port
from kopt.cli.local.example.kubeconfig import HOST, folder_of, kubeconfig_of, write_kubeconfig
from kopt.cli.local.supervisor import Service
from kopt.core.settings import Settings


def wants_example(home: Path, environ: Mapping[str, str]) -> bool:
    """Whether there is nothing else to show: no cluster is named, and the home has no services of its own."""
    if environ.get("KUBECONFIG") or environ.get("KUBERNETES_SERVICE_HOST"):
        return False
    demand = home / "demand"
    if not demand.exists():
        return True
    from kopt.data.demand.catalogue import read_catalogue
    from kopt.data.demand.table import DemandDataError

    try:
        return {info.source for info in read_catalogue(demand).values()} == {"generator"}
    except (DemandDataError, OSError):
        return False


def prepare_example(settings: Settings) -> int:
    """A port and a kubeconfig with a new token; what the last example left is removed."""
    shutil.rmtree(folder_of(settings.home), ignore_errors=True)
    port = free_port(HOST, reserved={settings.api_port, settings.pages_port, settings.mlflow_port})
    write_kubeconfig(settings.home, port)
    return port


def example_service(settings: Settings, environ: Mapping[str, str], port: int) -> list[Service]:
    """The process of the example cluster."""
    command = (sys.executable, "-P", "-m", "kopt.cli.local.example")
    log = settings.home / "logs" / "example.log"
    return [Service("example", command, f"http://{HOST}:{port}/healthz", log, dict(environ), nice=5)]


def example_environ(home: Path) -> dict[str, str]:
    """By which the pages find the example cluster, and say that it is one."""
    return {"KUBECONFIG": str(kubeconfig_of(home)), "KOPT_PAGES_EXAMPLE": "true"}
