"""A tree under the real Kueue: queues borrow and take back as declared, and what others own stays theirs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app

GPU = "nvidia.com/gpu"
V = "kueue.x-k8s.io/v1beta2"
Object = dict[str, Any]


class Team:
    """A namespace with a tree of its own: ai above research (4 GPUs, at most 6) and production (4 GPUs)."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.api, self.space = plane, plane.api, plane.api.space("tree")
        self.file = folder / "queues.yaml"
        self.ai, self.research, self.production, self.pool = (
            f"{self.space}-{word}" for word in ("ai", "research", "production", "pool")
        )
        self.tree: dict[str, Object] = {
            self.pool: {"kind": "KaiwoPool", "spec": {"capacity": {"gpu": 8}}},
            self.ai: {"kind": "KaiwoQueue", "spec": {}},
            self.research: self.queue(4, limit=6),
            self.production: self.queue(4),
        }

    def queue(self, quota: int, **gpu: object) -> Object:
        pools = [{"name": self.pool, "resources": {"gpu": {"quota": quota, **gpu}}}]
        fairness = {"reclaimStrategy": "aggressive"}
        spec = {"parentQueue": self.ai, "pools": pools, "namespaces": [self.space], "fairness": fairness}
        return {"kind": "KaiwoQueue", "spec": spec}

    def kopt(self, *words: str, code: int = 0) -> Object:
        documents = [
            {"apiVersion": "kaiwo.ai/v1alpha2", "metadata": {"name": name}, **item} for name, item in self.tree.items()
        ]
        self.file.write_text(yaml.safe_dump_all(documents))
        flags = ["-f", str(self.file), "--engine", "kueue", "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"]
        done = CliRunner().invoke(app, ["queues", "apply", *words, *flags])
        assert done.exit_code == code, done.output
        document: Object = json.loads(done.stdout)
        return document

    def off(self, code: int | None = 0) -> list[Object]:
        done = CliRunner().invoke(app, ["off", "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"])
        assert code is None or done.exit_code == code, done.output
        steps: list[Object] = json.loads(done.stdout)["steps"]
        return [step for step in steps if self.space in step["name"]]

    def shares(self) -> Object:
        words = ["queues", "shares", "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        document: Object = json.loads(done.stdout)
        return document

    def job(self, name: str, queue: str, gpus: int) -> Object:
        container = {
            "name": "main",
            "image": "any",
            "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}},
        }
        metadata = {"name": name, "namespace": self.space, "labels": {"kueue.x-k8s.io/queue-name": queue}}
        spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        return self.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def workload(self, job: Object) -> Object:
        return workload_of(self.plane, job)

    def runs(self, job: Object) -> None:
        wait_for(lambda: admitted(self.workload(job)), what=f"{job['metadata']['name']} is admitted")

    def says(self, job: Object, kind: str) -> str:
        def message() -> str:
            conditions = self.workload(job)["status"].get("conditions") or ()
            return next((item["message"] for item in conditions if item["type"] == kind), "")

        return wait_for(message, what=f"{job['metadata']['name']} says {kind}") or ""

    def end_all(self) -> None:
        for job in self.api.list("batch/v1", "Job", self.space):
            self.api.delete("batch/v1", "Job", job["metadata"]["name"], self.space, propagationPolicy="Background")
        # The garbage collector hears of Kueue's kinds late.
        self.api.delete_all(V, "Workload", self.space)
        wait_for(lambda: not self.api.list(V, "Workload", self.space), what="the workloads are gone")

    def cluster_queue(self, name: str) -> Object | None:
        return self.api.find(V, "ClusterQueue", name)


@pytest.fixture
def team(control_plane: ControlPlane, kueue: Kueue, tmp_path: Path) -> Iterator[Team]:
    team = Team(control_plane, tmp_path)
    yield team
    team.end_all()
    wait_for(lambda: not any(step["error"] for step in team.off(None)), what="the queues are gone")


def test_queues_borrow_up_to_their_limit_and_take_back_at_once(team: Team) -> None:
    first = team.kopt("--dry-run")
    assert first["applied"] == 0
    assert {row["action"] for row in first["changes"]} == {"create"}
    assert team.cluster_queue(team.research) is None
    assert team.kopt()["applied"] == 6
    assert team.kopt()["changes"] == []
    jobs = [team.job(f"borrows-{number}", team.research, 2) for number in range(4)]
    for job in jobs[:3]:
        team.runs(job)
    # Two GPUs of production are idle, but 6 is the limit.
    assert "2 more needed" in team.says(jobs[3], "QuotaReserved")
    owner = team.job("wants-its-own", team.production, 4)
    team.runs(owner)
    assert any("reclamation" in team.says(job, "Preempted") for job in jobs[:3] if not admitted(team.workload(job)))
    assert sum(admitted(team.workload(job)) for job in jobs) == 2


def test_a_conservative_queue_leaves_borrowers_alone_and_the_change_is_one_field(team: Team) -> None:
    team.tree[team.production]["spec"]["fairness"]["reclaimStrategy"] = "conservative"
    team.kopt()
    for number in range(3):
        team.runs(team.job(f"borrows-{number}", team.research, 2))
    team.job("waits", team.research, 2)
    owner = team.job("wants-its-own", team.production, 4)
    assert "insufficient unused quota" in team.says(owner, "QuotaReserved")
    _lacks_its_share(team)
    team.tree[team.production]["spec"]["fairness"]["reclaimStrategy"] = "aggressive"
    (change,) = team.kopt()["changes"]
    assert (change["field"], change["before"], change["after"]) == (
        "spec.preemption.reclaimWithinCohort",
        "Never",
        "Any",
    )
    team.runs(owner)
    wait_for(lambda: not team.shares()["misallocated"][team.ai], what="every queue has its ideal share")


def _lacks_its_share(team: Team) -> None:
    """Research uses six of eight GPUs and wants eight; production waits for the four that are its quota."""
    shares = team.shares()
    rows = {row["queue"]: row for row in shares["queues"] if row["queue"].startswith(team.space)}
    assert shares["misallocated"][team.ai] == 0.5
    assert [rows[team.ai][key]["gpu"] for key in ("quota", "use", "demand", "ideal")] == ["8", "6", "12", "8"]
    research, production = rows[team.research], rows[team.production]
    assert [research[key]["gpu"] for key in ("quota", "use", "demand", "ideal")] == ["4", "6", "8", "4"]
    assert (research["borrowing"], research["share_error"], research["pending"]) == ({"gpu": "2"}, 0.25, 1)
    assert [production[key]["gpu"] for key in ("demand", "ideal", "below_quota")] == ["4", "4", "4"]
    assert (production["use"], production["share_error"], production["pending"]) == ({}, -0.5, 1)


@pytest.mark.long
def test_weights_that_kueue_does_not_count_are_named(team: Team) -> None:
    assert "fair_sharing" not in team.kopt("--dry-run")
    team.tree[team.research] = team.queue(4, overQuotaWeight=2)
    assert team.kopt("--dry-run")["fair_sharing"] == "off"
    words = ["queues", "plan", "-f", str(team.file), "--engine", "kueue", "--kubeconfig"]
    done = CliRunner().invoke(app, [*words, str(team.plane.kubeconfig)])
    assert done.exit_code == 0, done.output
    assert "Weights do not count: ConfigMap kueue-system/kueue-manager-config" in " ".join(done.output.split())
    name = ("v1", "ConfigMap", "kueue-manager-config")
    data = team.api.get(*name, "kueue-system")["data"]
    text = yaml.safe_load(data["controller_manager_config.yaml"])
    fair = yaml.safe_dump({**text, "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare"]}})
    try:
        team.api.patch(*name, {"data": {"controller_manager_config.yaml": fair}}, "kueue-system")
        assert team.kopt("--dry-run")["fair_sharing"] == "on"
    finally:
        team.api.patch(*name, {"data": data}, "kueue-system")


@pytest.mark.long
def test_fields_of_others_are_named_and_never_taken(team: Team) -> None:
    spec = {"stopPolicy": "Hold", "queueingStrategy": "StrictFIFO", "cohortName": "theirs"}
    theirs = {"apiVersion": V, "kind": "ClusterQueue", "metadata": {"name": team.research}, "spec": spec}
    team.api.apply(theirs)
    refused = team.kopt(code=1)
    assert refused["applied"] == 0
    (problem,) = refused["problems"]
    assert 'conflict with "tests"' in problem
    assert ".spec.cohortName" in problem
    assert team.cluster_queue(team.production) is None
    team.api.apply({**theirs, "spec": {**spec, "cohortName": team.ai}})
    team.kopt()
    after = team.cluster_queue(team.research)
    assert after is not None
    assert (after["spec"]["stopPolicy"], after["spec"]["cohortName"]) == ("Hold", team.ai)
    assert after["spec"]["resourceGroups"]
    team.off()
    given_back = team.cluster_queue(team.research)
    assert given_back is not None
    assert "resourceGroups" not in given_back["spec"]
    assert (given_back["spec"]["stopPolicy"], given_back["spec"]["cohortName"]) == ("Hold", team.ai)
    assert not given_back["metadata"].get("labels")
    team.api.delete(V, "ClusterQueue", team.research)


@pytest.mark.long
def test_a_queue_with_jobs_is_neither_renamed_nor_given_back(team: Team) -> None:
    team.kopt()
    job = team.job("runs", team.research, 2)
    team.runs(job)
    renamed = f"{team.space}-science"
    team.tree[renamed] = team.tree.pop(team.research)
    wait_for(lambda: (team.cluster_queue(team.research) or {})["status"]["reservingWorkloads"], what="it is counted")
    refused = team.kopt("--prune", code=1)
    assert any("1 workload in it" in problem and team.research in problem for problem in refused["problems"])
    assert team.cluster_queue(renamed) is None
    assert any(row["action"] == "leave" and row["name"] == team.research for row in team.kopt("--dry-run")["changes"])
    steps = team.off(code=1)
    assert {step["name"] for step in steps if step["error"]} >= {team.research, team.pool}
    assert admitted(team.workload(job))
    assert team.cluster_queue(team.production) is None
    team.end_all()


def test_queues_that_are_there_are_imported_and_applying_them_changes_only_our_label(team: Team) -> None:
    flavor, cohort = {"kind": "ResourceFlavor", "spec": {}}, {"kind": "Cohort", "spec": {}}
    limits = {"name": GPU, "nominalQuota": 4, "borrowingLimit": "1k"}
    cpu = {"name": "cpu", "nominalQuota": "1500m"}
    group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": team.pool, "resources": [limits, cpu]}]}
    spec = {"cohortName": team.ai, "namespaceSelector": {}, "resourceGroups": [group]}
    queue = {"kind": "ClusterQueue", "spec": spec}
    for name, item in ((team.pool, flavor), (team.ai, cohort), (team.research, queue)):
        team.api.create({"apiVersion": V, "metadata": {"name": name}, **item})
    before = team.cluster_queue(team.research)
    words = ["queues", "import", "--engine", "kueue", "--kubeconfig", str(team.plane.kubeconfig)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    # Not KaiwoQueues of other tests.
    found = [item for item in yaml.safe_load_all(done.stdout) if item["metadata"]["name"].startswith(team.space)]
    assert {item["metadata"]["name"] for item in found} == {team.pool, team.ai, team.research}
    assert f"{team.research} spec" not in done.stderr
    team.tree = {item["metadata"]["name"]: {"kind": item["kind"], "spec": item["spec"]} for item in found}
    assert {row["field"] for row in team.kopt()["changes"]} == {"metadata.labels.kaiwo.ai/queue-tree"}
    after = team.cluster_queue(team.research)
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]
    # In no manifest any more, it is left to who created it, and not deleted.
    del team.tree[team.research], team.tree[team.ai]
    team.tree[team.production] = {"kind": "KaiwoQueue", "spec": {}}
    assert "release" in {row["action"] for row in team.kopt("--prune")["changes"]}
    team.off()
    left = team.cluster_queue(team.research)
    assert left is not None
    assert (left["spec"], left["metadata"].get("labels")) == (before["spec"], None)
    for kind, name in (("ClusterQueue", team.research), ("Cohort", team.ai), ("ResourceFlavor", team.pool)):
        team.api.delete(V, kind, name)
