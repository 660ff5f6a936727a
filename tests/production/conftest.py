"""Everything of docs/production.md at the addresses of deploy/values/production.yaml: MLflow on PostgreSQL and S3,
Redis, Prometheus, KubeRay's operator, and three nodes."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import yaml
from chart import ROOT, Helm
from controlplane import object_store
from controlplane.kubelet import Kubelet, PodNetwork
from controlplane.kubelet.network import lacking
from controlplane.kuberay import KubeRay
from controlplane.plane import ControlPlane, Settings
from postgres_server import PostgresServer
from prometheus_server import RunningPrometheus, counters
from replicas import KOPT

from kopt.core.settings import Settings as Home
from kopt.data.demand.table import DemandSeries
from kopt.models.registry.registry import Registry
from tests.features.conftest import RunningRedis
from tests.models.s3_client import s3_client
from tests.models.team_mlflow_server import TeamMlflow
from tests.production.installation import COMPONENTS, GPU, SERVICES, VALUES, Installation
from tests.rayservice.cluster import Predictions
from tests.rayservice.conftest import secret
from tests.serving.conftest import history, wave
from tests.serving.test_serve import fitted

# The API server calls webhooks at the addresses of their pods, as there is no kube-proxy.
_PLANE = Settings(api_server_flags=("--enable-aggregator-routing=true",))
_TREE = ["env", f"PYTHONPATH={ROOT / 'src'}", *KOPT]
_STEP_S, _AHEAD_S = 300, 3 * 3600


@pytest.fixture(scope="module")
def installation(
    helm: Path, kuberay_operator: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """The chart, just installed; nothing is ready yet."""
    if lacking():
        pytest.skip(lacking())
    if os.environ.get("KOPT_TEST_KUBECONFIG"):
        pytest.skip("the chart's tests install cluster-wide objects: unset KOPT_TEST_KUBECONFIG")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    folder = tmp_path_factory.mktemp("production")

    def below(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    with ExitStack() as running:
        postgres = PostgresServer()
        running.callback(postgres.remove)
        s3 = running.enter_context(object_store.server(below("s3")))
        redis = RunningRedis(below("redis"))
        running.callback(redis.stop)
        prometheus = RunningPrometheus(below("prometheus"), counters(_demand()))
        running.callback(prometheus.stop)
        variables = {**s3.variables, "MLFLOW_S3_ENDPOINT_URL": s3.variables["AWS_ENDPOINT_URL"]}
        names = {"TEAM_MLFLOW_HOSTS": "mlflow.mlops", "MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow.mlops:*,127.0.0.1:*"}
        database = postgres.new_database().replace("postgresql://", "postgresql+psycopg://")
        packages = str(s3_client(below("boto")))
        mlflow = TeamMlflow(below("mlflow"), "s3://data/models", database, PYTHONPATH=packages, **variables, **names)
        running.callback(mlflow.stop)
        public = _champion(folder, mlflow)
        assert list((s3.folder / "models").rglob("*")), "artefacts lie in the bucket"

        plane = ControlPlane(below("plane"), _PLANE)
        running.callback(plane.stop)
        network = PodNetwork(plane.api, below("network"))
        running.callback(network.close)
        for name, port, to_port in (
            ("mlflow.mlops", 5000, mlflow.port),
            ("redis.mlops", 6379, redis.port),
            ("postgres.mlops", 5432, postgres.port),
            ("prometheus-operated.monitoring", 9090, int(prometheus.url.rpartition(":")[2])),
        ):
            network.lead_here(f"{name}.svc", port, to_port)
        nodes = [
            running.enter_context(
                Kubelet(
                    plane,
                    f"node-{number}",
                    {"cpu": "64", "memory": "64Gi", GPU: "8"},
                    entrypoints={"kopt-controllers": _TREE, "kopt-agents": _TREE},
                    network=network,
                    root=below(f"node-{number}"),
                )
            )
            for number in range(3)
        ]
        running.callback(KubeRay(plane, network).stop)
        plane.api.apply(yaml.safe_load((ROOT / "deploy" / "namespace.yaml").read_text()))
        state = postgres.new_database().replace(f"127.0.0.1:{postgres.port}", "postgres.mlops:5432")
        secret(plane, "kopt-database", url=state)
        secret(plane, "kopt-keys", **{"trainer.pub": public})
        secret(plane, "kopt-mlflow", MLFLOW_TRACKING_TOKEN=mlflow.secret)
        # What docs/production.md adds where MLflow asks for a token; the tree that is tested stands for the image.
        values = {
            "crds": {"upgrade": True},
            "predictions": {"envSecret": "kopt-mlflow", "env": {"PYTHONPATH": str(ROOT / "src")}},
        }
        question = {"series": [{**history(wave(700)), "name": "chat"}]}
        release = Predictions(plane, network, Helm(helm, below("helm")), values, question)
        release.helm.install(plane, values, "--values", str(VALUES))
        found = Installation(release, nodes)
        yield found
        print(found.account())  # noqa: T201 - shown where a test failed
        release.helm.uninstall(plane)


def _demand() -> list[DemandSeries]:
    """A day of each service, and as much ahead as the tests may take."""
    begin_s = int(time.time()) // _STEP_S * _STEP_S - 86_400
    value = np.full((86_400 + _AHEAD_S) // _STEP_S, 50.0)
    return [DemandSeries(name, float(begin_s), _STEP_S, value, start_known=True) for name in SERVICES]


def _champion(folder: Path, mlflow: TeamMlflow) -> str:
    """Registers a model and makes it the champion; the public key of who signed it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_TOKEN", mlflow.secret)
        home = Home(home=folder / "trainer", mlflow_uri=mlflow.url)
        registry = Registry(home, trusted_digests=())
        registry.register(fitted(home, folder / "model", "1"))
        registry.promote("demand", "1", force=True, reason="test")
        return next(home.keys.glob("*.pub")).read_text()


@pytest.fixture(scope="module")
def ready(installation: Installation) -> Installation:
    """All components have become ready, and do what they are for."""
    for component in COMPONENTS:
        installation.wait_ready(component)
    installation.predictions.wait_running()
    return installation
