"""From what queues use and wait for in the real Kueue to advised quotas, the engine's queues, and back."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart import CHART, Helm
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from deploy.rights import start_controller
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.scheduling.queue_tree import DEMAND_METRIC

GPU, V = "nvidia.com/gpu", "kueue.x-k8s.io/v1beta2"
QUEUE = ("kaiwo.ai/v1alpha2", "KaiwoQueue")
HOUR_S = 3600
Object = dict[str, Any]
VALUES: Object = {
    "queues": {"enabled": True, "mode": "enforce", "prune": True},
    **{name: {"enabled": False} for name in ("webhook", "sizing", "extender")},
}


class Team:
    """Two queues of two GPUs each below one parent, and the controller with its metrics."""

    def __init__(self, plane: ControlPlane, charts: Helm) -> None:
        self.plane, self.api, self.charts, self.space = plane, plane.api, charts, plane.api.space("advised")
        self.short, self.spare = f"{self.space}-short", f"{self.space}-spare"

    def start(self, prometheus: str = "") -> None:
        queues = {**VALUES["queues"], "advice": {"prometheus": {"url": prometheus}}}
        self.server, self.metrics = start_controller(
            self.plane, self.charts, VALUES | {"queues": queues}, "kopt-queues"
        )

    def advised(self, name: str) -> Object:
        """What stands on its object."""
        return next(iter((self.api.get(*QUEUE, name, "").get("status") or {}).get("quotaAdvice") or ()), {})

    def declare(self, name: str, quota: object) -> None:
        spec = {"parentQueue": f"{self.space}-all", "resources": {"gpu": {"quota": quota}}, "namespaces": [self.space]}
        self.api.apply({"apiVersion": QUEUE[0], "kind": QUEUE[1], "metadata": {"name": name}, "spec": spec})

    def job(self, name: str, queue: str, gpus: int) -> Object:
        container = {"name": "main", "image": "any", "resources": {"limits": {GPU: str(gpus)}}}
        metadata = {"name": name, "namespace": self.space, "labels": {"kueue.x-k8s.io/queue-name": queue}}
        spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        return self.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def demand(self) -> dict[tuple[str, str], float]:
        """What the controller reports of its queues, by (queue, state)."""
        text = httpx.get(self.metrics, trust_env=False).text
        return {
            (sample.labels["queue"], sample.labels["state"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == DEMAND_METRIC and sample.labels["queue"].startswith(self.space)
        }

    def nominal(self) -> tuple[str, ...]:
        """In Kueue, of both."""
        result = []
        for name in (self.short, self.spare):
            found = self.api.get(V, "ClusterQueue", name, "")
            flavors = [flavor for group in found["spec"]["resourceGroups"] for flavor in group["flavors"]]
            rows = [row for flavor in flavors for row in flavor["resources"] if row["name"] == GPU]
            result.append(str(rows[0]["nominalQuota"]))
        return tuple(result)

    def advise(self, *words: str) -> Object:
        flags = ["--kubeconfig", str(self.plane.kubeconfig), "-o", "json"]
        done = CliRunner().invoke(app, ["queues", "advise", *words, *flags])
        assert done.exit_code == 0, done.output
        document: Object = json.loads(done.stdout)
        return document

    def has(self, kind: str) -> bool:
        return any(item["metadata"]["name"].startswith(self.space) for item in self.api.list(V, kind, ""))


@pytest.fixture
def team(control_plane: ControlPlane, kueue: Kueue, helm: Path, tmp_path: Path) -> Iterator[Team]:
    charts = Helm(helm, tmp_path)
    control_plane.apply_crds(sorted((CHART / "crds").glob("*.yaml")))
    charts.install(control_plane, VALUES, "--skip-crds")
    team = Team(control_plane, charts)
    team.start()
    try:
        yield team
    finally:
        for job in team.api.list("batch/v1", "Job", team.space):
            team.api.delete("batch/v1", "Job", job["metadata"]["name"], team.space, propagationPolicy="Background")
        team.api.delete_all(V, "Workload", team.space)
        for item in team.api.list(*QUEUE, ""):
            if item["metadata"]["name"].startswith(team.space):
                team.api.delete(*QUEUE, item["metadata"]["name"], "")
        wait_for(lambda: not any(map(team.has, ("LocalQueue", "ClusterQueue", "Cohort"))), what="the queues are gone")
        team.server.stop()
        charts.uninstall(control_plane)


def history(gpus: dict[tuple[str, str], float], folder: Path) -> RunningPrometheus:
    """Four weeks in which a Prometheus scraped these values, every five minutes."""
    now = int(time.time()) // HOUR_S * HOUR_S
    lines = [f"# TYPE {DEMAND_METRIC} gauge"]
    for (queue, state), value in gpus.items():
        labels = f'{{queue="{queue}",pool="default",state="{state}",pod="kopt-queues-0"}}'
        lines += [f"{DEMAND_METRIC}{labels} {value} {at}" for at in range(now - 28 * 24 * HOUR_S, now + 1, 300)]
    return RunningPrometheus(folder, "\n".join([*lines, "# EOF", ""]))


def test_demand_becomes_quota_when_asked_and_quota_is_given_back(team: Team, tmp_path: Path) -> None:
    team.declare(team.short, 2)
    team.declare(team.spare, "2")
    wait_for(lambda: team.has("LocalQueue") and team.nominal() == ("2", "2"), what="the queues are there")
    runs, waits = team.job("runs", team.short, 3), team.job("waits", team.short, 2)
    wait_for(lambda: admitted(workload_of(team.plane, runs)), what="it borrows one GPU")
    expected = {(team.short, "used"): 3.0, (team.short, "pending"): 2.0}
    expected |= {(team.spare, "used"): 0.0, (team.spare, "pending"): 0.0}
    assert wait_for(lambda: team.demand() == expected, what="what is used and waited for is reported")
    assert not admitted(workload_of(team.plane, waits))

    (tmp_path / "prometheus").mkdir()
    prometheus = history(team.demand(), tmp_path / "prometheus")
    try:
        advice = team.advise("--prometheus", prometheus.url)
        rows = {row["queue"]: row for row in advice["advice"] if row["queue"].startswith(team.space)}
        assert {name: row["advised"] for name, row in rows.items()} == {team.short: 3000, team.spare: 1000}
        assert rows[team.short]["code"] == "QUOTA_SHORT"
        assert rows[team.short]["above_before"] == 1.0
        assert team.nominal() == ("2", "2"), "advice alone writes nothing"

        team.server.stop()
        team.start(prometheus.url)
        row = wait_for(lambda: team.advised(team.short), 180, "the advice is on the object")
        assert (row["quota"], row["advised"], row["from"], row["code"]) == ("2", "3", "3", "QUOTA_SHORT")
        assert team.advised(team.spare)["advised"] == "1"
        assert team.nominal() == ("2", "2"), "the status alone is written"

        applied = team.advise("--prometheus", prometheus.url, "--apply")
        assert sorted(applied["applied"]) == sorted([team.short, team.spare])
        wait_for(lambda: team.nominal() == ("3", "1"), what="Kueue has the advised quotas")
        wait_for(lambda: team.advised(team.short)["quota"] == "3", what="the advice is about the new quota")
    finally:
        prometheus.stop()
    undone = {row["queue"]: row["result"] for row in team.advise("--undo")["queues"]}
    assert undone[team.short] == "given back: default/gpu"
    wait_for(lambda: team.nominal() == ("2", "2"), what="Kueue has the quotas from before")
    document = team.api.get(*QUEUE, team.spare, "")
    assert document["spec"]["resources"]["gpu"]["quota"] == "2"
    assert "kaiwo.ai/quota-before" not in (document["metadata"].get("annotations") or {})


def test_a_prometheus_without_demand_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    prometheus = RunningPrometheus(tmp_path)
    try:
        done = CliRunner().invoke(app, ["queues", "advise", "--prometheus", prometheus.url])
    finally:
        prometheus.stop()
    assert done.exit_code == 1
    assert "is `kopt controller queues` running" in " ".join(done.output.split())
