"""What ``kopt why`` advises, done on a real control plane: kube-scheduler and Kueue start the job then."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarked import benchmark_module
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app

pytestmark = pytest.mark.cluster
GPU, QUEUE = "nvidia.com/gpu", "kueue.x-k8s.io/queue-name"
BATCH = ("batch/v1", "Job")
Object = dict[str, Any]


class Team:
    """A namespace with jobs on nodes of its own."""

    def __init__(self, plane: ControlPlane, space: str, selector: dict[str, str]) -> None:
        self.plane, self.api, self.space, self.selector = plane, plane.api, space, selector

    def manifest(self, name: str, gpus: int, queue: str = "", **spec: Any) -> Object:
        resources = {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}}
        pods = {
            "restartPolicy": "Never",
            "nodeSelector": dict(self.selector),
            "containers": [{"name": "train", "image": "team/train:1", "resources": resources}],
        } | spec
        return {
            "apiVersion": BATCH[0],
            "kind": BATCH[1],
            "metadata": {"name": name, "namespace": self.space, "labels": {QUEUE: queue} if queue else {}},
            "spec": {"suspend": bool(queue), "backoffLimit": 0, "template": {"spec": pods}},
        }

    def submit(self, name: str, gpus: int, queue: str = "", **spec: Any) -> Object:
        manifest = self.manifest(name, gpus, queue, **spec)
        self.api.create(copy.deepcopy(manifest))
        return manifest

    def pods(self, name: str) -> list[Object]:
        return self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")

    def runs(self, name: str) -> None:
        wait_for(lambda: any(pod["status"].get("phase") == "Running" for pod in self.pods(name)), what=f"{name} runs")

    def ends(self, name: str) -> None:
        self.api.delete(*BATCH, name, self.space, propagationPolicy="Background")
        wait_for(lambda: not self.pods(name), what=f"the pods of {name} are gone")

    def diagnosis(self, name: str) -> Object:
        """Once something binds."""

        def answer() -> Object | None:
            words = ["why", name, "-n", self.space, "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
            result: Object | None = json.loads(done.stdout)["diagnosis"]
            return result if result and result["causes"][0]["code"] != "FITS_NOW" else None

        return wait_for(answer, what=f"{name} waits") or {}

    def does(self, manifest: Object, change: Object) -> None:
        """Submits a job anew as a change says, waits until it runs, and ends it.

        Under a name of its own: Kueue remembers the Workload of a Job that had the name before.
        """
        name, patch = manifest["metadata"]["name"], benchmark_module("why_situations.redo").patch
        self.ends(name)
        changed = copy.deepcopy(manifest)
        for operation in change["patch"]:
            patch(changed, operation)
        changed["metadata"]["name"] = again = f"{name}-changed"
        self.api.create(changed)
        self.runs(again)
        self.ends(again)


def change_of(diagnosis: Object, kind: str) -> Object:
    result: Object = next(change for change in diagnosis["changes"] if change["kind"] == kind)
    assert result["verified"]
    return result


@pytest.fixture
def team(control_plane: ControlPlane, kwok: Kwok) -> Iterator[Team]:
    space = control_plane.api.space("advised")
    with kwok.nodes(2, gpus=8) as nodes:
        yield Team(control_plane, space, dict(nodes.selector))
        for job in control_plane.api.list(*BATCH, space):
            control_plane.api.delete(*BATCH, job["metadata"]["name"], space, propagationPolicy="Background")
        wait_for(lambda: not control_plane.api.list("v1", "Pod", space), what="the pods are gone")


def test_fewer_gpus_or_an_end_let_it_run_in_kube_scheduler(team: Team) -> None:
    for name, gpus in (("first", 5), ("second", 6)):
        team.submit(name, gpus)
        team.runs(name)
    manifest = team.submit("train", 4)
    diagnosis = team.diagnosis("train")
    assert (diagnosis["scheduler"], diagnosis["unread"]) == ("kube-scheduler", [])
    cause = diagnosis["causes"][0]
    assert (cause["code"], cause["wanted"], cause["free"]) == ("GPUS_FRAGMENTED", 4, 3)
    fewer = change_of(diagnosis, "fewer-gpus")
    assert fewer["after"] == "3"
    team.does(manifest, fewer)
    team.submit("train", 4)
    (name,) = change_of(team.diagnosis("train"), "wait")["names"]
    team.ends(name.removeprefix(f"{team.space}/"))
    team.runs("train")


@pytest.mark.long
def test_a_dropped_selector_and_a_toleration_let_it_run(team: Team) -> None:
    manifest = team.submit("train", 2, nodeSelector={**team.selector, "disk": "fast"})
    diagnosis = team.diagnosis("train")
    assert diagnosis["causes"][0]["code"] == "NODE_SELECTOR"
    team.does(manifest, next(change for change in diagnosis["changes"] if change["rule"] == "disk=fast"))
    for node in team.api.list("v1", "Node", labels=",".join(f"{k}={v}" for k, v in team.selector.items())):
        taints = [*node["spec"].get("taints", []), {"key": "team", "value": "other", "effect": "NoSchedule"}]
        path = team.api.path("v1", "Node", "", node["metadata"]["name"])
        kind = {"Content-Type": "application/merge-patch+json"}
        team.api.request("PATCH", path, json={"spec": {"taints": taints}}, headers=kind)
    manifest = team.submit("train", 2)
    diagnosis = team.diagnosis("train")
    assert diagnosis["causes"][0]["code"] == "TAINT"
    team.does(manifest, change_of(diagnosis, "tolerate"))


def test_fewer_gpus_another_queue_or_an_end_let_it_run_in_kueue(team: Team, kueue: Kueue) -> None:
    quota = {GPU: 4, "cpu": 100}
    with kueue.queue(team.space, quota), kueue.queue(team.space, quota, "others"):
        team.submit("first", 3, "gpus")
        team.runs("first")
        manifest = team.submit("train", 2, "gpus")
        diagnosis = team.diagnosis("train")
        cause = diagnosis["causes"][0]
        assert diagnosis["scheduler"] == "Kueue"
        assert (cause["code"], cause["wanted"], cause["free"]) == ("QUOTA_IN_USE", 2, 1)
        team.does(manifest, change_of(diagnosis, "fewer-gpus"))
        manifest = team.submit("second", 2, "gpus")
        team.does(manifest, change_of(team.diagnosis("second"), "other-queue"))
        team.submit("later", 2, "gpus")
        assert len(change_of(team.diagnosis("later"), "wait")["names"]) == 1
        team.ends("first")
        team.runs("later")
        team.ends("later")
