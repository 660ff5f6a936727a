"""Under the real Kueue a large job of a low class is before what comes later than its bound, others go by class, and
every priority is given back: with the account, the rights and the fences of the chart."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart import CHART, Helm
from controlplane.api import Api, Refused
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from deploy.rights import leading
from replicas import KOPT

GPU, V = "nvidia.com/gpu", "kueue.x-k8s.io/v1beta2"
KEY = "kaiwo.ai/queue-order"
Object = dict[str, Any]
ORDER = {"enabled": True, "perHour": 2000, "perDoubling": 0.1, "highestClass": 5}
BOUND_S = (5 + 10 * 0.1 - 0.2) / 2000 * 3600 + 3600 / 2000
"""Of four GPUs in class 0."""
VALUES: Object = {
    "queues": {"enabled": True, "mode": "enforce", "order": ORDER},
    **{name: {"enabled": False} for name in ("webhook", "sizing", "extender")},
}


class Team:
    """A namespace with a queue of four GPUs, and the classes 0 and 5."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api, self.space = plane, plane.api, plane.api.space("ordered")
        self.put("ResourceFlavor", self.space)
        for name, value in (("low", 0), ("high", 5)):
            item = {"kind": "WorkloadPriorityClass", "metadata": {"name": self.of(name)}, "value": value}
            self.api.create({"apiVersion": V, **item})
        self.queue("main")

    def of(self, name: str) -> str:
        return f"{self.space}-{name}"

    def put(self, kind: str, name: str, space: str = "", **spec: Any) -> None:
        metadata = {"name": name} | ({"namespace": space} if space else {})
        self.api.create({"apiVersion": V, "kind": kind, "metadata": metadata, "spec": spec})

    def queue(self, name: str, **spec: Any) -> None:
        resources = [{"name": GPU, "nominalQuota": 4}]
        groups = [{"coveredResources": [GPU], "flavors": [{"name": self.space, "resources": resources}]}]
        rest = {"namespaceSelector": {}, "queueingStrategy": "StrictFIFO", "resourceGroups": groups, **spec}
        self.put("ClusterQueue", self.of(name), **rest)
        self.put("LocalQueue", name, self.space, clusterQueue=self.of(name))

    def job(self, name: str, gpus: int, kind: str, queue: str = "main") -> Object:
        container = {"name": "main", "image": "any", "resources": {"limits": {GPU: str(gpus)}}}
        labels = {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": self.of(kind)}
        metadata = {"name": name, "namespace": self.space, "labels": labels}
        spec = {"suspend": True, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        return self.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def workload(self, job: Object) -> Object:
        return workload_of(self.plane, job)

    def priority(self, job: Object) -> int:
        return int(self.workload(job)["spec"]["priority"])

    def is_ordered(self, job: Object) -> bool:
        return KEY in (self.workload(job)["metadata"].get("labels") or {})

    def ordered(self, *jobs: Object) -> None:
        wait_for(lambda: all(map(self.is_ordered, jobs)), what="all are ordered")

    def runs(self, job: Object) -> bool:
        return admitted(self.workload(job))

    def end(self, job: Object) -> None:
        name = self.workload(job)["metadata"]["name"]
        self.api.delete("batch/v1", "Job", job["metadata"]["name"], self.space, propagationPolicy="Background")
        self.api.delete(V, "Workload", name, self.space)

    def events(self, reason: str) -> list[Object]:
        every = self.api.list("events.k8s.io/v1", "Event", "")
        return [item for item in every if item["reason"] == reason and self.space in str(item["regarding"])]

    def off(self) -> dict[str, str]:
        """By Workload, what `kopt off` did about it with its own account."""
        kubeconfig = str(self.plane.kubeconfig_for("kopt-off", "kopt-system"))
        command = [*KOPT, "off", "--namespace", "kopt-system", "--kubeconfig", kubeconfig, "-o", "json", "--wait", "1s"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        steps = json.loads(done.stdout)["steps"]
        return {step["name"]: step["error"] for step in steps if step["namespace"] == self.space}

    def remove(self) -> None:
        for job in self.api.list("batch/v1", "Job", self.space):
            self.api.delete("batch/v1", "Job", job["metadata"]["name"], self.space, propagationPolicy="Background")
        self.api.delete_all(V, "Workload", self.space)
        self.api.delete_all(V, "LocalQueue", self.space)
        for kind in ("ClusterQueue", "WorkloadPriorityClass", "ResourceFlavor"):
            for item in self.api.list(V, kind, ""):
                if item["metadata"]["name"].startswith(self.space):
                    self.api.delete(V, kind, item["metadata"]["name"], "")


@pytest.fixture(scope="module")
def charts(helm: Path, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    charts = Helm(helm, tmp_path_factory.mktemp("helm"))
    control_plane.apply_crds(sorted((CHART / "crds").glob("*.yaml")))
    charts.install(control_plane, VALUES, "--skip-crds")
    yield charts
    charts.uninstall(control_plane)


@pytest.fixture
def team(control_plane: ControlPlane, kueue: Kueue, charts: Helm) -> Iterator[Team]:
    team = Team(control_plane)
    yield team
    team.remove()


def test_a_large_job_of_a_low_class_starts_before_what_comes_after_its_bound(team: Team, charts: Helm) -> None:
    runs = team.job("runs", 4, "low")
    wait_for(lambda: team.runs(runs), what="all GPUs are in use")
    with leading(team.plane, charts, VALUES, "kopt-queues"):
        large = team.job("large", 4, "low")
        soon = team.job("soon", 1, "high")
        time.sleep(BOUND_S + 1.0)
        late = [team.job(f"late-{number}", 1, "high") for number in range(2)]
        last = team.job("last", 1, "low")
        team.ordered(large, soon, *late, last)
        own = {job["metadata"]["name"]: team.workload(job) for job in (large, soon, *late, last)}
        notes = {name: json.loads(one["metadata"]["annotations"][KEY]) for name, one in own.items()}
        assert {name: note["priority"] for name, note in notes.items()} == {
            "large": 0,
            "soon": 5,
            "late-0": 5,
            "late-1": 5,
            "last": 0,
        }
        assert (team.is_ordered(runs), team.priority(runs)) == (False, 0)
        team.end(runs)
        wait_for(lambda: team.runs(soon), what="a higher class that came soon after is before the large one")
        assert not any(map(team.runs, (large, *late, last)))
        team.end(soon)
        wait_for(lambda: team.runs(large), what="the large one is before higher classes that came later")
        assert not any(map(team.runs, (*late, last)))
        evicts = {"preemption": {"withinClusterQueue": "LowerPriority"}}
        team.queue("evicts", **evicts)
        other = team.job("other", 8, "low", "evicts")
        wait_for(lambda: team.events("OrderRefused"), what="the queue that evicts is refused")
        assert (team.is_ordered(other), team.priority(other)) == (False, 0)
    steps = team.off()
    assert set(steps.values()) == {""}
    assert len(steps) == 4
    for job, priority in ((large, 0), *((each, 5) for each in late), (last, 0)):
        after = team.workload(job)
        assert after["spec"]["priority"] == priority
        assert KEY not in (after["metadata"].get("labels") or {})
        assert KEY not in (after["metadata"].get("annotations") or {})
    assert team.runs(large)
    team.end(large)
    wait_for(lambda: all(map(team.runs, late)), what="by class again")


def test_changes_of_others_are_respected_and_another_class_is_scored(team: Team, charts: Helm) -> None:
    runs = team.job("runs", 4, "low")
    wait_for(lambda: team.runs(runs), what="all GPUs are in use")
    with leading(team.plane, charts, VALUES, "kopt-queues"):
        theirs, moves = team.job("theirs", 1, "low"), team.job("moves", 1, "low")
        team.ordered(theirs, moves)
        before = team.priority(moves)
        name = team.workload(theirs)["metadata"]["name"]
        team.api.patch(V, "Workload", name, {"spec": {"priority": 7}}, team.space)
        labels = {"kueue.x-k8s.io/priority-class": team.of("high")}
        team.api.patch("batch/v1", "Job", "moves", {"metadata": {"labels": labels}}, team.space)
        wait_for(lambda: team.priority(moves) > before, what="its new class counts")
        note = json.loads(team.workload(moves)["metadata"]["annotations"][KEY])
        assert (note["priority"], note["class"]) == (5, f"workloadpriorityclass/{team.of('high')}")
        wait_for(lambda: team.events("PriorityRespected"), what="it is said")
        assert team.priority(theirs) == 7
    # Not ordered any more: the controller itself gives back what it wrote, and nothing else.
    without = {**VALUES, "queues": {"enabled": True, "mode": "enforce"}}
    with leading(team.plane, charts, without, "kopt-queues"):
        wait_for(lambda: not team.is_ordered(moves) and not team.is_ordered(theirs), what="both are given back")
    assert (team.priority(moves), team.priority(theirs)) == (5, 7)


def test_its_account_may_write_a_priority_only_with_the_mark(team: Team) -> None:
    runs, waits = team.job("runs", 4, "low"), team.job("waits", 4, "low")
    wait_for(lambda: team.runs(runs), what="all GPUs are in use")
    name = team.workload(waits)["metadata"]["name"]
    stolen = Api(Path(team.plane.kubeconfig_for("kopt-queues", "kopt-system")))
    marked = {"metadata": {"labels": {KEY: "written"}}}
    with pytest.raises(Refused, match="mark"):
        stolen.patch(V, "Workload", name, {"spec": {"priority": 7}}, team.space)
    for spec in ({"active": False}, {"queueName": "evil"}, {"priority": 7, "queueName": "evil"}):
        with pytest.raises(Refused, match="kopt-queues-held"):
            stolen.patch(V, "Workload", name, marked | {"spec": spec}, team.space)
    stolen.patch(V, "Workload", name, marked | {"spec": {"priority": 7}}, team.space)
    off = Api(Path(team.plane.kubeconfig_for("kopt-off", "kopt-system")))
    with pytest.raises(Refused, match="kopt-off-held"):
        off.patch(V, "Workload", name, {"spec": {"priority": 9}}, team.space)
    off.patch(V, "Workload", name, {"metadata": {"labels": {KEY: None}}, "spec": {"priority": 0}}, team.space)
    assert team.priority(waits) == 0
