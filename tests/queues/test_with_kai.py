"""A tree under the real KAI Scheduler: no job sits in a top-level queue, and quota is taken back as declared."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from chart import CHART, Helm
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from deploy.rights import start_controller
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.scheduling.queue_tree import DEMAND_METRIC

GPU = "nvidia.com/gpu"
QUEUE = ("scheduling.run.ai/v2", "Queue")
Object = dict[str, Any]
VALUES: Object = {
    "queues": {"enabled": True, "engine": "kai", "mode": "enforce"},
    **{name: {"enabled": False} for name in ("webhook", "sizing", "extender")},
}


class Team:
    """A node of four GPUs, with two root queues of two GPUs each."""

    def __init__(self, plane: ControlPlane, folder: Path, selector: dict[str, str]) -> None:
        self.plane, self.api, self.space, self.selector = plane, plane.api, plane.api.space("kai-tree"), selector
        self.file = folder / "queues.yaml"
        self.borrows, self.owns = f"{self.space}-borrows", f"{self.space}-owns"

    def apply(self, *queues: Object) -> Object:
        version = {"apiVersion": "kaiwo.ai/v1alpha2", "kind": "KaiwoQueue"}
        self.file.write_text(yaml.safe_dump_all([{**version, **queue} for queue in queues]))
        words = ["queues", "apply", "-f", str(self.file), "--engine", "kai", "-o", "json"]
        done = CliRunner().invoke(app, [*words, "--kubeconfig", str(self.plane.kubeconfig)])
        assert done.exit_code == 0, done.output
        document: Object = json.loads(done.stdout)
        return document

    def pod(self, name: str, queue: str) -> None:
        container = {"name": "main", "image": "any", "resources": {"limits": {GPU: "1"}}}
        metadata = {"name": name, "namespace": self.space, "labels": {QUEUE_LABEL: queue}}
        spec = {"schedulerName": SCHEDULER, "nodeSelector": self.selector, "containers": [container]}
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def bound(self, prefix: str) -> list[str]:
        pods = self.api.list("v1", "Pod", self.space)
        names = [
            pod["metadata"]["name"]
            for pod in pods
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]
        return [name for name in names if name.startswith(prefix)]

    def shares(self) -> dict[str, Object]:
        words = ["queues", "shares", "--engine", "kai", "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return {row["queue"]: row for row in json.loads(done.stdout)["queues"]}

    def off(self) -> list[str]:
        done = CliRunner().invoke(app, ["off", "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"])
        steps = json.loads(done.stdout)["steps"]
        return [step["error"] for step in steps if self.space in step["name"] and step["error"]]


@pytest.fixture
def team(control_plane: ControlPlane, kwok: Kwok, kai: Kai, tmp_path: Path) -> Iterator[Team]:
    with kwok.nodes(1, gpus=4) as nodes:
        team = Team(control_plane, tmp_path, dict(nodes.selector))
        yield team
        team.api.delete_all("v1", "Pod", team.space)
        team.api.delete_all("scheduling.run.ai/v2alpha2", "PodGroup", team.space)
        wait_for(lambda: not team.off(), what="the queues are gone")


def queue(name: str, **fairness: str) -> Object:
    gpu = {"quota": 2, "overQuotaWeight": 1}
    return {"metadata": {"name": name}, "spec": {"resources": {"gpu": gpu}, "fairness": fairness}}


def test_jobs_run_in_root_queues_and_quota_is_taken_back_from_who_borrowed(team: Team) -> None:
    team.apply(queue(team.borrows), queue(team.owns))
    assert team.api.get(*QUEUE, team.borrows)["spec"]["parentQueue"] == f"{team.borrows}-root"
    for number in range(4):
        team.pod(f"borrows-{number}", team.borrows)
    wait_for(lambda: len(team.bound("borrows")) == 4, what="four pods run, two on what is not theirs")
    for number in range(2):
        team.pod(f"owns-{number}", team.owns)
    wait_for(lambda: len(team.bound("owns")) == 2, what="the owner has its two GPUs back")
    assert len(team.bound("borrows")) == 2
    rows = team.shares()
    assert (rows[team.owns]["use"]["gpu"], rows[team.owns]["below_quota"]) == ("2", {})
    assert rows[team.borrows]["use"]["gpu"] == "2"


def test_the_controller_reports_what_queues_use_and_wait_for(team: Team, helm: Path, tmp_path: Path) -> None:
    charts = Helm(helm, tmp_path)
    team.plane.apply_crds(sorted((CHART / "crds").glob("*.yaml")))
    charts.install(team.plane, VALUES, "--skip-crds")
    names = (team.borrows, team.owns)
    for name in names:
        team.api.apply({"apiVersion": "kaiwo.ai/v1alpha2", "kind": "KaiwoQueue", **queue(name)})
    server, metrics = start_controller(team.plane, charts, VALUES, "kopt-queues")

    def demand() -> dict[tuple[str, str], float]:
        text = httpx.get(metrics, trust_env=False).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        own = [each for each in samples if each.name == DEMAND_METRIC and each.labels["queue"] in names]
        return {(each.labels["queue"], each.labels["state"]): each.value for each in own}

    try:
        wait_for(lambda: team.api.find(*QUEUE, team.owns), what="KAI has the queues")
        for number in range(5):
            team.pod(f"borrows-{number}", team.borrows)
        wait_for(lambda: len(team.bound("borrows")) == 4, what="four pods run, and one waits")
        expected = {(team.borrows, "used"): 4.0, (team.borrows, "pending"): 1.0}
        expected |= {(team.owns, "used"): 0.0, (team.owns, "pending"): 0.0}
        wait_for(lambda: demand() == expected, what="both are counted")
    finally:
        server.stop()
        for name in names:
            team.api.delete("kaiwo.ai/v1alpha2", "KaiwoQueue", name, "")
        charts.uninstall(team.plane)


def test_jobs_in_their_minimum_run_time_are_left_alone(team: Team) -> None:
    changes = team.apply(queue(team.borrows, minRuntime="1h"), queue(team.owns))["changes"]
    assert {row["after"] for row in changes if row["field"] == "spec.reclaimMinRuntime"} == {"1h0m0s"}
    for number in range(4):
        team.pod(f"borrows-{number}", team.borrows)
    wait_for(lambda: len(team.bound("borrows")) == 4, what="four pods run")
    team.pod("owns-0", team.owns)

    def tried() -> bool:
        pod = team.api.get("v1", "Pod", "owns-0", team.space)
        return any(item.get("reason") == "Unschedulable" for item in pod["status"].get("conditions") or ())

    wait_for(tried, what="the scheduler has tried")
    assert len(team.bound("borrows")) == 4
    changes = team.apply(queue(team.borrows, minRuntime="1s"), queue(team.owns))["changes"]
    assert {row["action"] for row in changes} == {"change"}
    wait_for(lambda: team.bound("owns"), what="the owner has its GPU back")
