"""The chart rendered by the real helm, and a control plane of its own to install it into.

Not the shared one: the chart owns names of the whole cluster, and its tests read the whole audit log.
"""

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from chart import NAMESPACE, ROOT, Helm, Object
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane

VALUES = ROOT / "deploy" / "values"

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
    control_plane.install_crds("kuberay")
    # Before an installation, as some make Secrets for it.
    control_plane.api.apply(yaml.safe_load((ROOT / "deploy" / "namespace.yaml").read_text()))
    control_plane.api.namespace("kai-scheduler")

    def upgrade(values: Object, *options: str) -> None:
        charts.install(control_plane, values, *options)

    return upgrade


@pytest.fixture(scope="session")
def uninstall(charts: Helm, control_plane: ControlPlane) -> Callable[[], None]:
    """``uninstall()``: the chart is gone, and the Leases that its processes wrote; the next test finds nothing."""

    def gone() -> None:
        charts.uninstall(control_plane)

    return gone


@pytest.fixture(scope="module")
def here(control_plane: ControlPlane) -> Iterator[tuple[Kueue, Kwok]]:
    """Kueue and nodes of this folder's control plane: the shared fixtures are of the other."""
    kueue, kwok = Kueue(control_plane), Kwok(control_plane)
    yield kueue, kwok
    kwok.stop()
    kueue.stop()
