"""Predictions in a cluster: everything of docs/production.md, with real servers and KubeRay's own operator."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from chart import NAMESPACE, ROOT, Helm, Object
from controlplane.kubelet import Kubelet, PodNetwork
from controlplane.kubelet.network import lacking
from controlplane.kuberay import KubeRay
from controlplane.plane import ControlPlane
from postgres_server import PostgresServer

from kopt.core.settings import Settings
from kopt.models.registry.registry import Registry
from tests.features.conftest import RunningRedis
from tests.models.team_mlflow_server import TeamMlflow
from tests.rayservice.cluster import Predictions
from tests.serving.conftest import history, wave
from tests.serving.test_serve import fitted

PASSWORD = "geheim-7Qx"
SIZE = {"resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}}
#: The tests are about predictions alone.
OTHERS_OFF: Object = {name: {"enabled": False} for name in ("webhook", "extender", "guard", "switchOff", "sizing")}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, TeamMlflow]]:
    """A team's MLflow with two versions, of which the first is the champion."""
    folder = tmp_path_factory.mktemp("mlflow")
    names = {"TEAM_MLFLOW_HOSTS": "mlflow.mlops", "MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow.mlops:*,127.0.0.1:*"}
    server = TeamMlflow(folder, (folder / "artefacts").as_uri(), **names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_TOKEN", server.secret)
        settings = Settings(home=folder / "trainer", mlflow_uri=server.url)
        registry = Registry(settings, trusted_digests=())
        for version in ("1", "2"):
            registry.register(fitted(settings, folder / "model" / version, version))
        registry.promote("demand", "1", force=True, reason="test")
        yield registry, server
    server.stop()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, PodNetwork]]:
    """A control plane of its own, as the chart owns names of the whole cluster, and a network for pods."""
    if lacking():
        pytest.skip(lacking())
    if os.environ.get("KOPT_TEST_KUBECONFIG"):
        pytest.skip("the chart's tests install cluster-wide objects: unset KOPT_TEST_KUBECONFIG")
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    between = PodNetwork(plane.api, tmp_path_factory.mktemp("network"))
    yield plane, between
    between.close()
    plane.stop()


@pytest.fixture(scope="module")
def predictions(
    network: tuple[ControlPlane, PodNetwork],
    registry: tuple[Registry, TeamMlflow],
    helm: Path,
    kuberay_operator: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Predictions]:
    """The chart installed with one worker, and whatever it needs; nothing is ready yet."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    plane, between = network
    champion, mlflow = registry
    with ExitStack() as running:
        postgres = PostgresServer()
        running.callback(postgres.remove)
        redis = RunningRedis(tmp_path_factory.mktemp("redis"), PASSWORD)
        running.callback(redis.stop)
        for name, port in (("mlflow", mlflow.port), ("postgres", postgres.port), ("redis", redis.port)):
            between.lead_here(f"{name}.mlops.svc", port)
        running.enter_context(Kubelet(plane, resources={"cpu": "64", "memory": "64Gi"}, network=between))
        running.callback(KubeRay(plane, between).stop)
        plane.api.apply(yaml.safe_load((ROOT / "deploy" / "namespace.yaml").read_text()))
        public = next((champion.settings.keys).glob("*.pub"))
        database = postgres.new_database().replace("127.0.0.1", "postgres.mlops")
        secret(plane, "kopt-database", url=database)
        secret(plane, "kopt-keys", **{"trainer.pub": public.read_text()})
        secret(plane, "kopt-redis", password=PASSWORD)
        secret(plane, "kopt-mlflow", MLFLOW_TRACKING_TOKEN=mlflow.secret)
        values: Object = {
            **OTHERS_OFF,
            "predictions": {
                "deploy": True,
                "workers": 1,
                "mlflowUri": f"http://mlflow.mlops:{mlflow.port}",
                "database": {"secret": "kopt-database"},
                "gcsFaultTolerance": {"redisAddress": f"redis.mlops:{redis.port}", "passwordSecret": "kopt-redis"},
                "keysSecret": "kopt-keys",
                "envSecret": "kopt-mlflow",
                "head": SIZE,
                "worker": SIZE,
            },
        }
        question = {"series": [{**history(wave(700)), "name": "chat"}]}
        installer = Helm(helm, tmp_path_factory.mktemp("helm"))
        release = Predictions(plane, between, installer, values, question)
        release.install()
        release.let_in()
        yield release
        if request.config.getoption("capture") != "no":
            with contextlib.suppress(Exception):
                print(release.account())  # noqa: T201 - shown where a test failed
        installer.uninstall(plane)


def secret(plane: ControlPlane, name: str, **data: str) -> None:
    """A Secret in the chart's namespace."""
    meta = {"name": name, "namespace": NAMESPACE}
    plane.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})
