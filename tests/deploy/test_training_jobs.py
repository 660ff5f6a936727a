"""A training job of the chart runs as a pod; what it registers is served by replicas that trust its key."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from replicas import KOPT

from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from kopt.models.registry.registry import RegisteredModel, Registry
from kopt.serving.base.model_slot import ModelSlot
from tests.models.team_mlflow_server import TeamMlflow

from .rights import audited

pytestmark = [pytest.mark.services, pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
NAMESPACE, CRON_JOB = "kopt-system", "kopt-training-demand"
Object = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A job that has ended, with the server that it registered its model at and the keys that it signed with."""

    job: Object
    log: str
    requests: list[Object]
    url: str
    keys: Path


def values_of(url: str) -> Object:
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "6Gi"}}
    # What is registered is not promoted, whatever the gate says of a model of three days.
    arguments = ["--data=/data/requests", "--no-promote"]
    job = {
        "name": "demand",
        "predictor": "demand",
        "schedule": "0 3 * * 0",
        "suspend": True,
        "arguments": arguments,
        "dataClaim": "demand",
        "resources": resources,
    }
    return {
        **{name: {"enabled": False} for name in ("webhook", "extender", "sizing", "switchOff")},
        "predictions": {
            "mlflowUri": url,
            "envSecret": "kopt-registry",
            "keysSecret": "kopt-keys",
            # Ray gives its workers way to all other processes of this machine, and a fit then never ends.
            "env": {"RAY_worker_niceness": 0},
        },
        "training": {"jobs": [job], "signingSecret": "kopt-signing"},
    }


def claim_on(folder: Path) -> tuple[Object, Object]:
    """A volume that is this folder, and the claim that is bound to it."""
    size, modes = {"storage": "1Gi"}, ["ReadOnlyMany"]
    meta = {"name": "demand", "namespace": NAMESPACE}
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": str(folder)}, "claimRef": meta}
    claim = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": ""}
    return (
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "training-demand"}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim},
    )


def secret(name: str, data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "stringData": data,
    }


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamMlflow]:
    folder = tmp_path_factory.mktemp("mlflow")
    running = TeamMlflow(folder, (folder / "store").as_uri())
    yield running
    running.stop()


@pytest.fixture(scope="module")
def trained(
    mlflow: TeamMlflow,
    control_plane: ControlPlane,
    install: Callable[..., None],
    uninstall: Callable[[], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Trained]:
    """The chart installed with one training job, which has run once: ``kubectl create job once --from=cronjob/…``."""
    uninstall()
    api, folder = control_plane.api, tmp_path_factory.mktemp("training")
    write_demand(generate(1, 3.0, seed=1), folder / "data" / "requests")
    signing_key(folder / "keys")
    private, public = ((folder / "keys" / name).read_text() for name in ("signing.key", "signing.pub"))
    objects = (
        *claim_on(folder / "data"),
        secret("kopt-signing", {"signing.key": private, "signing.pub": public}),
        secret("kopt-keys", {"team.pub": public}),
        secret("kopt-registry", {"MLFLOW_TRACKING_TOKEN": mlflow.secret}),
    )
    api.apply(*objects)
    began = datetime.now(UTC)
    with contextlib.ExitStack() as undo, Kubelet(control_plane, entrypoints={"kopt-training": KOPT}):
        # Another try has a folder of its own, and a volume's cannot be changed.
        for document in objects:
            meta = document["metadata"]
            undo.callback(api.delete, "v1", document["kind"], meta["name"], meta.get("namespace", ""))
        undo.callback(uninstall)
        undo.callback(api.delete, "batch/v1", "Job", "once", NAMESPACE, propagationPolicy="Foreground")
        install(values_of(mlflow.url))
        job = run_once(control_plane)
        (pod,) = api.list("v1", "Pod", NAMESPACE, labels="batch.kubernetes.io/job-name=once")
        log = api.request("GET", f"{api.path('v1', 'Pod', NAMESPACE, pod['metadata']['name'])}/log").text
        yield Trained(job, log, audited(control_plane, "kopt-training", began), mlflow.url, folder / "keys")


def run_once(plane: ControlPlane) -> Object:
    api = plane.api
    template = api.get("batch/v1", "CronJob", CRON_JOB, NAMESPACE)["spec"]["jobTemplate"]
    meta = template["metadata"] | {"name": "once", "namespace": NAMESPACE}
    api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": template["spec"]})
    return api.wait("batch/v1", "Job", "once", ended, NAMESPACE, timeout_s=600)


def ended(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)


@pytest.fixture
def serving(trained: Trained, mlflow: TeamMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A replica of the endpoint: it reads the same registry, and has the public key alone."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", mlflow.secret)
    settings = Settings(home=tmp_path / "serving", mlflow_uri=trained.url)
    settings.keys.mkdir(parents=True)
    shutil.copy(trained.keys / "signing.pub", settings.keys / "team.pub")
    return settings


def newest(registry: Registry) -> RegisteredModel:
    return registry.list("demand")[0]


def test_the_job_succeeds_and_its_version_is_the_newest(trained: Trained, serving: Settings) -> None:
    assert trained.job["status"].get("succeeded") == 1, trained.log
    model = newest(Registry(serving))
    assert model.tags["dataset"] == "requests"
    assert model.gate in ("passed", "refused")
    assert f"demand version {model.version} is challenger" in trained.log


def test_replicas_take_it_while_they_run_once_it_is_promoted(
    trained: Trained, serving: Settings, tmp_path: Path
) -> None:
    slot, registry = ModelSlot(Registry(serving)), Registry(serving)
    slot.refresh()
    model = newest(registry)
    assert slot.version != model.model_version
    shutil.copytree(trained.keys, tmp_path / "people" / "keys")
    people = Registry(Settings(home=tmp_path / "people", mlflow_uri=trained.url))
    people.promote("demand", model.version, force=True, reason="so that it serves")
    assert slot.refresh()
    assert slot.version == model.model_version
    assert slot.error is None


def test_it_asked_nothing_of_the_cluster(trained: Trained) -> None:
    assert trained.requests == []
