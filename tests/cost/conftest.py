"""The meter as a process, before a real control plane with simulated nodes."""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from postgres_server import PostgresServer, postgres
from replicas import ControllerProcess, replicas
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.serving.base.database.opening import Location

__all__ = ["postgres"]
GPU, SYSTEM = "nvidia.com/gpu", "kopt-system"
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "kaiwo.ai/provider": "lambda"}
Object = dict[str, Any]
Start = Callable[..., ControllerProcess]


class Team:
    """A namespace whose pods go to nodes of ours."""

    def __init__(self, plane: ControlPlane, nodes: Nodes, name: str) -> None:
        self.api, self._selector = plane.api, dict(nodes.selector)
        self.space = plane.api.space(name)

    def pod(
        self, name: str, resources: dict[str, int], labels: dict[str, str] | None = None, claim: str = "", **notes: str
    ) -> str:
        """Its uid, once it is bound."""
        limits = {key: str(value) for key, value in resources.items()}
        container: Object = {"name": "main", "image": "team/main:1", "resources": {"limits": limits}}
        document: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.space, "labels": labels or {}, "annotations": notes},
            "spec": {
                "nodeSelector": self._selector,
                "terminationGracePeriodSeconds": 0,
                "restartPolicy": "Never",
                "containers": [container],
            },
        }
        if claim:
            container["resources"] = {"claims": [{"name": "gpus"}]}
            document["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": claim}]
        uid = str(self.api.create(document)["metadata"]["uid"])
        wait_for(lambda: self.api.get("v1", "Pod", name, self.space)["spec"].get("nodeName"), what=f"{name} is bound")
        return uid

    def ends(self, name: str) -> None:
        self.api.delete("v1", "Pod", name, self.space, gracePeriodSeconds=0)

    def job(self, name: str, gpus: int, queue: str) -> None:
        limits = {GPU: str(gpus), "cpu": "1"}
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": self._selector,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "team/main:1", "resources": {"limits": limits}}],
        }
        self.api.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": self.space, "labels": {"kueue.x-k8s.io/queue-name": queue}},
                "spec": {"suspend": True, "template": {"spec": spec}},
            }
        )

    def runs(self, name: str) -> bool:
        return self.api.get("batch/v1", "Job", name, self.space)["spec"].get("suspend") is False

    def queue(self, name: str = "gpus") -> Object:
        return self.api.get("kueue.x-k8s.io/v1beta1", "LocalQueue", name, self.space)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "sqlite":
        return tmp_path / "cost.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def nodes(control_plane: ControlPlane, kwok: Kwok) -> Iterator[Nodes]:
    """Two nodes with four H100 each."""
    control_plane.api.namespace(SYSTEM)
    with kwok.nodes(2, gpus=4, labels=PRODUCT) as result:
        yield result


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOPT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def meter(control_plane: ControlPlane, nodes: Nodes, home: Path) -> Iterator[Start]:
    """``meter("--mode=enforce")`` starts a replica that leads, with a Lease of the test's own."""
    space = control_plane.api.space("meter")
    with replicas(partial(ControllerProcess, control_plane, "meter", f"--namespace={space}")) as start:
        yield start


def kopt(*words: str) -> Object:
    done = CliRunner().invoke(app, [*words, "-o", "json"])
    assert done.exit_code == 0, done.output
    result: Object = json.loads(done.stdout)
    return result


def metered_past(replica: ControllerProcess, at_s: float) -> None:
    """Until then everything is stored."""
    replica.server.wait_until(lambda: replica.metric("kopt_cost_metered_until_seconds") > at_s, what="it is metered")


def now_s() -> float:
    return time.time()
