"""Under the real Kueue a conservative queue has its quota back after the grace, and leaves young borrowers alone."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from documents import ROOT

GPU, V = "nvidia.com/gpu", "kueue.x-k8s.io/v1beta2"
QUEUE = ("kaiwo.ai/v1alpha2", "KaiwoQueue")
KOPT = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()"]
CRDS = ROOT / "deploy" / "chart" / "crds"
Object = dict[str, Any]


class Team:
    """A namespace with two queues of two GPUs each below one parent."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api, self.space = plane, plane.api, plane.api.space("conservative")
        self.owner, self.borrower = f"{self.space}-owner", f"{self.space}-borrower"

    def declare(self, name: str, **fairness: str) -> None:
        gpu = {"quota": 2}
        spec = {"parentQueue": f"{self.space}-all", "resources": {"gpu": gpu}, "namespaces": [self.space]}
        self.api.apply(
            {
                "apiVersion": QUEUE[0],
                "kind": QUEUE[1],
                "metadata": {"name": name},
                "spec": {**spec, "fairness": fairness},
            }
        )

    def job(self, name: str, queue: str, gpus: int) -> Object:
        container = {"name": "main", "image": "any", "resources": {"limits": {GPU: str(gpus)}}}
        metadata = {"name": name, "namespace": self.space, "labels": {"kueue.x-k8s.io/queue-name": queue}}
        spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        return self.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def runs(self, job: Object) -> bool:
        return admitted(workload_of(self.plane, job))

    def condition(self, kind: str) -> str:
        status = self.api.get(*QUEUE, self.owner, "").get("status") or {}
        return next((item["reason"] for item in status.get("conditions") or () if item["type"] == kind), "")

    def reclaims(self) -> str:
        found = self.api.get(V, "ClusterQueue", self.owner, "")
        return str(found["spec"]["preemption"]["reclaimWithinCohort"])


@pytest.fixture
def team(control_plane: ControlPlane, kueue: Kueue) -> Iterator[Team]:
    control_plane.apply_crds([CRDS / "kaiwoqueues.yaml", CRDS / "kaiwopools.yaml"])
    team = Team(control_plane)
    words = ["controller", "queues", "--mode=enforce", "--prune", "--port=0", f"--namespace={team.space}"]
    env = {"KUBECONFIG": str(control_plane.kubeconfig)}
    server = control_plane.start_server(f"queues-{team.space}", [*KOPT, *words], env)
    try:
        yield team
    finally:
        for job in team.api.list("batch/v1", "Job", team.space):
            team.api.delete("batch/v1", "Job", job["metadata"]["name"], team.space, propagationPolicy="Background")
        team.api.delete_all(V, "Workload", team.space)
        for name in (team.owner, team.borrower):
            team.api.delete(*QUEUE, name, "")
        wait_for(lambda: team.api.find(V, "ClusterQueue", team.owner) is None, what="the queues are gone")
        server.stop()


def test_borrowers_have_their_grace_and_their_minimum_run_time_and_go_then(team: Team) -> None:
    team.declare(team.owner, reclaimStrategy="conservative", gracePeriod="2s")
    team.declare(team.borrower, minRuntime="1h")
    wait_for(lambda: team.condition("Applied") == "AsDeclared", what="the queues are there")
    assert not team.api.get(*QUEUE, team.owner, "")["status"]["notExpressible"]
    borrows = [team.job(f"borrows-{number}", team.borrower, 2) for number in range(2)]
    wait_for(lambda: all(team.runs(job) for job in borrows), what="the borrower has all four GPUs")
    own = team.job("own", team.owner, 2)
    wait_for(lambda: team.condition("Reclaiming") == "InMinRuntime", what="the grace is over")
    assert team.reclaims() == "Never"
    assert all(team.runs(job) for job in borrows)
    team.declare(team.borrower, minRuntime="1s")
    wait_for(lambda: team.runs(own), what="the owner has its quota back")
    assert sum(team.runs(job) for job in borrows) == 1
    wait_for(lambda: team.reclaims() == "Never", what="Kueue may evict nobody any more")
    assert team.condition("Reclaiming") == "NothingWaits"
    assert team.api.get(*QUEUE, team.owner, "")["status"]["lastReclaimTime"]
