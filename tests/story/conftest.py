"""The whole loop for tests: a real control plane and Kueue, a node whose pods run, the real endpoint with the shipped
models over a real feature store, and our components as processes."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from asgi_server import served
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from shipped_models import ShippedDemand

from kopt.core.settings import Settings
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.store import DemandFeatureStore
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

KOPT = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()"]
ROOT = Path(__file__).parents[2]
SYSTEM, GPU, SERVICE = "kopt-system", "nvidia.com/gpu", "story-chat"
TRAIN = Path(__file__).parent / "train.py"
BATCH, KAIWO, KUEUE = "batch/v1", "kaiwo.ai/v1alpha1", "kueue.x-k8s.io/v1beta1"
RECORDED, RECORDED_STEP_S = Path(__file__).parent / "demand.txt", 600
SERIES, PEAK = "servegen_m-large_client104", 1273
"""Recorded requests of one client: some 2,000 in five minutes, then 9,137 and 63,785 at ``PEAK``, then 2,000 again."""
Object = dict[str, Any]
T = TypeVar("T")


class Demand:
    """The service's demand as the feature store has it: the recorded series, with its end moved to now."""

    def __init__(self, recorded: DemandSeries, store: DemandFeatureStore) -> None:
        self._recorded, self._store = recorded, store

    def stand_at(self, bucket: int) -> None:
        """The last bucket that is over now is this one of the recording."""
        cut = self._recorded.upto(bucket)
        ends_s = time.time() // GRID_S * GRID_S
        self._store.write([replace(cut, name=SERVICE, start_s=ends_s - len(cut) * GRID_S)])
        self._store.materialise()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def demand(home: Path) -> Demand:
    recorded = DemandSeries(SERIES, 0.0, RECORDED_STEP_S, np.loadtxt(RECORDED))
    store = DemandFeatureStore(Settings(home=home))
    found = Demand(recorded, store)
    found.stand_at(PEAK - 4)
    return found


@pytest.fixture
def endpoint(home: Path, demand: Demand) -> Iterator[str]:
    """The address of the real application, with the shipped models of demand and checkpoints."""
    settings = Settings(home=home)
    made = assemble(
        settings, Parts(ShippedDemand(), StoredFeatures(lambda: DemandFeatureStore(settings)), refresh_s=3600)
    )
    made.start()
    made.service(CheckpointService).refresh()
    try:
        with served(create_app(made, manage=False)) as url:
            yield url
    finally:
        made.stop()


def demand_at(url: str, probability: float) -> float:
    """Requests in five minutes, five minutes ahead, that the model gives this probability of being enough."""
    body = {"series": [{"name": SERVICE}], "unit": "requests", "horizons_s": [GRID_S], "quantiles": [0.5, probability]}

    def ask() -> float | None:
        answer = httpx.post(f"{url}/v1/demand", json=body, timeout=60, headers={"x-kopt-deadline-ms": "30000"})
        assert answer.status_code == 200, answer.text
        one = answer.json()["series"][0]["horizons"][0]["demand"]
        return None if one["fallback"] or one["refused"] else float(one["quantiles"][str(probability)])

    return wait_for(ask, what="a forecast of the model")


@dataclass
class Cluster:
    """One node with four GPUs, the namespace of the service and of the training, and our components."""

    plane: ControlPlane
    node: Kubelet
    endpoint: str
    folder: Path
    queue: str
    python: str
    space: str
    pages_port: int = field(default_factory=free_port)
    components: dict[str, Server] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def until(self, check: Callable[[], T], what: str) -> T:
        """The first true answer; what happened is told, for those who watch (``make story``)."""
        answer = wait_for(check, what=what)
        self.tell(what)
        return answer

    def tell(self, what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.began_s:6.1f} s  {what}\n")
        sys.stdout.flush()

    def show(self, *words: str) -> None:
        """What a user of ``kopt`` would see now."""
        self.tell(f"$ kopt {' '.join(words)}\n\n{self.kopt(*words)}")

    @property
    def output(self) -> Path:
        return self.folder / "checkpoints"

    def start(self, *names: str) -> None:
        """Starts components, or starts them again."""
        commands: dict[str, Sequence[str]] = {
            "ledger": ["controller", "evictions", f"--port={free_port()}"],
            "reallocation": [
                "controller",
                "lending",
                "--predictions",
                self.endpoint,
                "--refresh=2s",
                "--stale=20m",
                f"--port={free_port()}",
            ],
            "logtail": [
                "agent",
                "logtail",
                "cluster",
                "--namespace",
                self.space,
                "--mode",
                "annotate",
                "--predictions",
                self.endpoint,
                "--state",
                str(self.folder / "logtail.json"),
            ],
        }
        lines: dict[str, Sequence[str]] = {name: [*KOPT, *words] for name, words in commands.items()}
        lines["pages"] = [sys.executable, "-P", "-m", "kopt.cli.local.pages"]
        environment = {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "KOPT_HOME": str(self.folder / "other"),
            "KOPT_URL": self.endpoint,
            "KOPT_PAGES_PORT": str(self.pages_port),
        }
        for name in names or tuple(lines):
            if name in self.components:
                self.components[name].start()
            else:
                self.components[name] = self.plane.start_server(f"{self.space}-{name}", lines[name], environment)

    def kill(self) -> None:
        """All of ours at once, without a word."""
        for one in self.components.values():
            one.kill()

    def lend(self, capacity_per_gpu: float) -> None:
        service = {
            "name": "chat",
            "namespace": self.space,
            "selector": {"matchLabels": {"app": "chat"}},
            "demand": SERVICE,
            "capacityPerGpu": capacity_per_gpu,
            "minimumGpus": 1,
        }
        spec = {
            "gpus": 4,
            "services": [service],
            "leadTime": "5m",
            "hold": "5s",
            "mode": "enforce",
            "borrowers": [{"system": "Kueue", "queue": self.queue}],
        }
        self.plane.api.apply(
            {"apiVersion": KAIWO, "kind": "LendingPool", "metadata": {"name": self.space}, "spec": spec}
        )

    def pool(self) -> Object:
        return self.plane.api.get(KAIWO, "LendingPool", self.space, "").get("status", {})

    def lent(self) -> int:
        return int(self.pool().get("lentGpus", 0))

    def submit(self) -> Object:
        """The training, as a Job in the queue: two of the four GPUs."""
        self.output.mkdir(exist_ok=True)
        mounts = [{"name": "podinfo", "mountPath": "/etc/podinfo"}, {"name": "output", "mountPath": "/checkpoints"}]
        notes = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
        volumes = [
            {"name": "podinfo", "downwardAPI": {"items": [notes]}},
            {"name": "output", "hostPath": {"path": str(self.output)}},
        ]
        variables = {
            "PYTHONPATH": str(ROOT / "src"),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),
        }
        container = {
            "name": "train",
            "image": "train",
            "command": [self.python, str(TRAIN), "/checkpoints", "/etc/podinfo/annotations"],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": mounts,
            "resources": {"limits": {GPU: "2"}, "requests": {"cpu": "10m"}},
        }
        pod = {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": volumes,
            "priorityClassName": "story-low",
            "terminationGracePeriodSeconds": 5,
        }
        asked = {"kaiwo.ai/saves-on-request": "true", "kaiwo.ai/job": "llama"}
        spec = {
            "suspend": True,
            "backoffLimit": 20,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"annotations": asked}, "spec": pod},
        }
        labels = {"kueue.x-k8s.io/queue-name": "gpus"}
        metadata = {"name": "llama", "namespace": self.space, "labels": labels}
        return self.plane.api.create({"apiVersion": BATCH, "kind": "Job", "metadata": metadata, "spec": spec})

    def scale_service(self, pods: int) -> None:
        """As its autoscaler would: one GPU each."""
        there = {one["metadata"]["name"] for one in self.plane.api.list("v1", "Pod", self.space, "app=chat")}
        wanted = {f"chat-{n}" for n in range(pods)}
        for name in there - wanted:
            self.plane.api.delete("v1", "Pod", name, self.space, gracePeriodSeconds=0)
        for name in sorted(wanted - there):
            container = {
                "name": "serve",
                "image": "serve",
                "command": ["sleep", "3600"],
                "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "10m"}},
            }
            spec = {
                "containers": [container],
                "nodeSelector": self.node.selector,
                "priorityClassName": "story-high",
                "terminationGracePeriodSeconds": 1,
            }
            metadata = {"name": name, "namespace": self.space, "labels": {"app": "chat"}}
            self.plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def serving(self) -> int:
        found = self.plane.api.list("v1", "Pod", self.space, "app=chat")
        return sum(one["status"].get("phase") == "Running" for one in found)

    def trainers(self) -> list[Object]:
        """Pods of the training that run and are not being deleted."""
        found = self.plane.api.list("v1", "Pod", self.space, "batch.kubernetes.io/job-name=llama")
        return [
            one
            for one in found
            if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
        ]

    def workload(self) -> Object:
        return workload_of(self.plane, self.plane.api.get(BATCH, "Job", "llama", self.space))

    def notes(self) -> dict[str, str]:
        """What the log agent wrote on the pod that trains."""
        return next((one["metadata"].get("annotations", {}) for one in self.trainers()), {})

    def log(self, pod: Object) -> str:
        path = f"/api/v1/namespaces/{self.space}/pods/{pod['metadata']['name']}/log"
        return self.plane.api.request("GET", path).text

    def saved_steps(self) -> list[int]:
        """Of the checkpoints that are whole: a Trainer writes its state last."""
        return sorted(int(one.parent.name.split("-")[1]) for one in self.output.glob("checkpoint-*/trainer_state.json"))

    def evictions(self) -> list[Object]:
        return self.plane.api.list(KAIWO, "Eviction", self.space)

    def page(self) -> str:
        """The page of the cluster, as a browser gets it."""
        found = httpx.get(f"http://127.0.0.1:{self.pages_port}/cluster", timeout=30, trust_env=False)
        return found.text if found.status_code == 200 else ""

    def kopt(self, *words: str) -> str:
        """What a command prints."""
        name = f"story-command-{time.monotonic_ns()}"
        command = self.plane.start_server(name, [*KOPT, *words], {"KUBECONFIG": str(self.plane.kubeconfig)})
        wait_for(lambda: not command.alive, what=f"kopt {' '.join(words)} ends")
        return command.log.read_text()


@pytest.fixture
def cluster(
    control_plane: ControlPlane,
    kueue: Kueue,
    endpoint: str,
    tmp_path: Path,
    trainer_python: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    api = control_plane.api
    control_plane.apply_crds(sorted((ROOT / "deploy" / "chart" / "crds").glob("*.yaml")))
    api.namespace(SYSTEM)
    space = api.space("story", {"kaiwo.ai/managed": "true"})
    for name, value in (("story-low", -100), ("story-high", 1000)):
        api.apply(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        )
    python = trainer_python("newest")
    with (
        Kubelet(control_plane, resources={GPU: "4"}) as node,
        kueue.queue(space, {GPU: 0, "cpu": 100}, node_labels=node.selector) as queue,
    ):
        one = Cluster(control_plane, node, endpoint, tmp_path, queue, python, space)
        try:
            yield one
        finally:
            if request.config.getoption("capture") != "no":
                sys.stdout.write(_story_of(one))
            one.kill()
            with contextlib.suppress(Exception):
                (one.output / "enough").touch()
            api.delete(KAIWO, "LendingPool", space, "")
            api.delete(BATCH, "Job", "llama", space, propagationPolicy="Background")
            one.scale_service(0)
            for line in one.evictions():
                api.delete(KAIWO, "Eviction", line["metadata"]["name"], space)


def _story_of(one: Cluster) -> str:
    """For whoever reads a failed test."""
    told = {name: server.log.read_text(errors="replace")[-3000:] for name, server in one.components.items()}
    pods = one.plane.api.list("v1", "Pod", one.space)
    told |= {f"log of {pod['metadata']['name']}": one.log(pod)[-6000:] for pod in pods}
    told["objects"] = json.dumps([one.pool(), one.evictions(), [pod["metadata"] for pod in pods]], indent=1)
    return json.dumps(told, indent=1).replace("\\n", "\n")
