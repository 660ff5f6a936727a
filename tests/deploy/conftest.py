"""The chart rendered by the real helm, and a control plane of its own to install it into.

Not the shared one: the chart owns names of the whole cluster, and its tests read the whole audit log.
"""

import copy
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml
from controlplane.plane import ControlPlane

Object: TypeAlias = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart"
VALUES = ROOT / "deploy" / "values"
NAMESPACE = "kopt-system"
RELEASE = "kopt"

#: Everything that the chart can install, at once.
EVERYTHING: Object = {
    "scheduler": {"deploy": True},
    "predictions": {
        "deploy": True,
        "mlflowUri": "http://mlflow.mlops:5000",
        "redisUrl": "redis://redis.mlops:6379/0",
        "database": {"secret": "kopt-database"},
        "gcsFaultTolerance": {"redisAddress": "redis.mlops:6380", "passwordSecret": "kopt-redis"},
    },
    "training": {
        "signingSecret": "kopt-signing",
        "jobs": [
            {
                "name": "demand",
                "predictor": "demand",
                "schedule": "30 2 * * 0",
                "arguments": ["--data=/data/demand.parquet", "--trials=20"],
                "dataClaim": "demand",
            },
            {
                "name": "checkpoint",
                "predictor": "checkpoint",
                "schedule": "@monthly",
                "arguments": ["--data=/data"],
                "dataClaim": "logs",
                "suspend": True,
            },
        ],
    },
    "tracing": {"endpoint": "http://collector.monitoring:4318"},
    "networkPolicy": {"schedulerCidrs": ["10.0.0.0/24"]},
    "policy": {
        "spec": {
            "queues": {"default": "best-effort"},
            "schedulers": {
                "packing": {
                    "scheduler": "kopt-scheduler",
                    "running": {"lease": {"namespace": NAMESPACE, "name": "kopt-scheduler"}},
                },
                "gang": {
                    "scheduler": "kai-scheduler",
                    "framework": "KAI",
                    "running": {"deployment": {"namespace": "kai-scheduler", "name": "scheduler"}},
                },
            },
        }
    },
}


class Helm:
    """The command, with everything it writes in ``folder``."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        self._numbers = iter(range(1_000_000))

    def run(self, *arguments: str | Path, values: Object | None = None) -> subprocess.CompletedProcess[str]:
        """Runs helm; the caller looks at the exit status."""
        command: list[str | Path] = [self._binary, *arguments]
        if values is not None:
            path = self._folder / f"values-{next(self._numbers)}.yaml"
            path.write_text(yaml.safe_dump(values))
            command += ["--values", path]
        homes = {f"HELM_{name}_HOME": str(self._folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **homes}
        )

    def render(self, values: Object | None = None, files: Sequence[Path] = ()) -> list[Object]:
        """The objects that the chart renders to, without the custom resource definitions."""
        options = [option for path in files for option in ("--values", path)]
        done = self.run("template", RELEASE, CHART, "--namespace", NAMESPACE, *options, values=values or {})
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(scope="session")
def charts(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """The real helm."""
    return Helm(helm, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def everything() -> Object:
    """Values that install everything the chart can; a copy to change."""
    return copy.deepcopy(EVERYTHING)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that only the chart is installed into."""
    if os.environ.get("KOPT_TEST_KUBECONFIG"):
        pytest.skip("the chart's tests install cluster-wide objects and read the audit log: unset KOPT_TEST_KUBECONFIG")
    plane = ControlPlane(tmp_path_factory.mktemp("deploy-control-plane"))
    yield plane
    plane.stop()


@pytest.fixture(scope="session")
def install(charts: Helm, control_plane: ControlPlane) -> Callable[..., None]:
    """``install(values)``: ``helm upgrade --install`` into the labelled namespace."""
    control_plane.api.apply(yaml.safe_load((ROOT / "deploy" / "namespace.yaml").read_text()))
    control_plane.install_crds("kuberay")
    control_plane.api.namespace("kai-scheduler")

    def upgrade(values: Object, *options: str) -> None:
        done = charts.run(
            "upgrade",
            "--install",
            RELEASE,
            CHART,
            "--namespace",
            NAMESPACE,
            "--kubeconfig",
            control_plane.kubeconfig,
            *options,
            values=values,
        )
        assert done.returncode == 0, done.stderr

    return upgrade


@pytest.fixture(scope="session")
def uninstall(charts: Helm, control_plane: ControlPlane) -> Callable[[], None]:
    """``uninstall()``: the chart is gone, and the Leases that its processes wrote; the next test finds nothing."""

    def gone() -> None:
        charts.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--kubeconfig", control_plane.kubeconfig)
        api = control_plane.api
        for lease in api.list("coordination.k8s.io/v1", "Lease", NAMESPACE):
            api.delete("coordination.k8s.io/v1", "Lease", lease["metadata"]["name"], NAMESPACE)

    return gone
