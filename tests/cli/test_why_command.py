"""``kopt why`` and ``kopt queue`` on a real control plane: Kueue, simulated nodes, and objects of our controllers."""

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from typer.testing import CliRunner

from dashboard import cluster_objects as objects
from kopt.cli.main import app
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS
from kopt.cluster.holds.hold import hold
from kopt.cluster.objects.eviction import body_of, status_of
from kopt.core.scheduling.eviction import Cause, Eviction, Phase, Return, System, Verified, WorkloadRef

pytestmark = pytest.mark.cluster
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
GPU, QUEUE = "nvidia.com/gpu", "kueue.x-k8s.io/queue-name"
EVICTION, BATCH = ("kaiwo.ai/v1alpha1", "Eviction"), ("batch/v1", "Job")
WORKLOAD = ("kueue.x-k8s.io/v1beta1", "Workload")
Object = dict[str, Any]
_numbers = itertools.count(1)


def stamp(ago_s: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Team:
    """A namespace whose queue has four GPUs, and jobs in it."""

    plane: ControlPlane
    space: str
    cluster_queue: str
    selector: dict[str, str]

    @property
    def api(self) -> Api:
        return self.plane.api

    def submit(self, name: str, gpus: int = 1, priority: str = "low", queue: str = "gpus", **labels: str) -> Object:
        limits = {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}}
        pods = {
            "restartPolicy": "Never",
            "nodeSelector": self.selector,
            "containers": [{"name": "train", "image": "team/train:1", "resources": limits}],
        }
        marks = {QUEUE: queue, "kueue.x-k8s.io/priority-class": priority} if queue else {}
        return self.api.create(
            {
                "apiVersion": BATCH[0],
                "kind": BATCH[1],
                "spec": {"suspend": bool(queue), "template": {"spec": pods}},
                "metadata": {"name": name, "namespace": self.space, "labels": marks | labels},
            }
        )

    def run(self, name: str, gpus: int, **more: Any) -> Object:
        job = self.submit(name, gpus, **more)
        wait_for(lambda: any(one["status"].get("phase") == "Running" for one in self.pods(name)), what=f"{name} runs")
        return job

    def pods(self, name: str) -> list[Object]:
        return self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")

    def waits(self, job: Object) -> Object:
        """Its Workload, once Kueue has said that it does not fit."""

        def said() -> Object | None:
            found = workload_of(self.plane, job)
            return found if found.get("status", {}).get("conditions") and not admitted(found) else None

        return wait_for(said, what="Kueue has looked at it") or {}

    def evicted(self, job: Object, cause: Cause, outcome: Return, **more: Any) -> None:
        """A line of the ledger about a job."""
        at_s = datetime.now(UTC).timestamp() - 240
        ref = WorkloadRef(*BATCH, job["metadata"]["name"], job["metadata"]["uid"])
        line = Eviction(
            self.space,
            f"{job['metadata']['name']}-{next(_numbers)}",
            ref,
            System.KUEUE,
            at_s,
            cause,
            more.pop("by", "kopt-reallocation"),
            more.pop("for_whom", ""),
            more.pop("reason", ""),
            2000,
            int(at_s * 1000),
            500,
            at_s - 60,
            120.0,
        )
        made = {"apiVersion": EVICTION[0], "kind": EVICTION[1], **body_of(line)}
        made["metadata"]["namespace"] = self.space
        self.api.create(made)
        path = self.api.path(*EVICTION, self.space, line.name)
        self.api.request(
            "PATCH",
            f"{path}/status",
            json={"status": status_of(outcome)},
            headers={"Content-Type": "application/merge-patch+json"},
        )


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, kueue: Kueue) -> ControlPlane:
    control_plane.apply_crds(sorted(CRDS.glob("*.yaml")))
    for name, value in (("low", 100), ("high", 1000)):
        control_plane.api.apply(
            {"apiVersion": WORKLOAD[0], "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        )
    return control_plane


@pytest.fixture
def team(plane: ControlPlane, kueue: Kueue, kwok: Kwok) -> Iterator[Team]:
    space = plane.api.space("asked")
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 4, "cpu": 100}) as queue:
        one = Team(plane, space, queue, dict(nodes.selector))
        yield one
        for job in plane.api.list(*BATCH, space):
            plane.api.delete(*BATCH, job["metadata"]["name"], space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


@pytest.fixture
def asked(team: Team) -> Callable[..., Any]:
    def ask(*words: str, kubeconfig: Path | None = None) -> Any:
        done = CliRunner().invoke(app, [*words, "--kubeconfig", str(kubeconfig or team.plane.kubeconfig), "-o", "json"])
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def codes(answer: Any) -> list[str]:
    return [one["code"] for one in answer["findings"]]


def said(answer: Any, code: str) -> str:
    return " ".join(one["message"] for one in answer["findings"] if one["code"] == code)


def test_what_waits_is_told_its_place_the_quota_and_kueues_own_words(team: Team, asked: Callable[..., Any]) -> None:
    team.run("first", 3)
    team.waits(team.submit("second", 2))
    late = team.submit("urgent", 4, priority="high")
    workload = team.waits(late)
    answer = asked("why", f"{team.space}/second")
    assert answer["state"] == "waiting"
    assert answer["summary"].startswith(f"Job {team.space}/second waits")
    assert codes(answer)[0] == "QUEUED"
    words = said(answer, "QUEUED")
    assert f"waits in ClusterQueue {team.cluster_queue}" in words
    assert "2nd of 2 with priority 100" in words
    assert f"Ahead: {team.space}/urgent (4 GPUs, priority 1000)." in words
    assert "The queue has 4 GPUs, 3 of them in use." in words
    assert "insufficient unused quota" in words
    assert "when its turn comes" in answer["next"]
    # The same by its Workload, and by its name alone.
    for word in (f"workload/{team.space}/{workload['metadata']['name']}", "urgent"):
        assert "1st of 2 with priority 1000" in said(asked("why", word), "QUEUED")
    lines = {one["workload"]: one for one in asked("queue")["workloads"] if one["queue"] == team.cluster_queue}
    assert list(lines) == [f"{team.space}/{name}" for name in ("first", "urgent", "second")]
    assert [(one["state"], one["position"], one["gpus"]) for one in lines.values()] == [
        ("running", None, 3),
        ("waiting", 1, 4),
        ("waiting", 2, 2),
    ]
    assert lines[f"{team.space}/first"]["gpus_of"] == "own"


def test_what_runs_says_where_and_what_happened_before(team: Team, asked: Callable[..., Any]) -> None:
    job = team.run("train", 2)
    (pod,) = team.pods("train")
    notes = {
        "kaiwo.ai/checkpoint-state": "TRAIN",
        "kaiwo.ai/checkpoint-safe": "true",
        "kaiwo.ai/checkpoint-observed-at": stamp(),
        "kaiwo.ai/last-checkpoint-time": stamp(90),
        "kaiwo.ai/last-checkpoint-step": "500",
        "kaiwo.ai/work-at-risk": "180",
    }
    team.api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"annotations": notes}}, team.space)
    back = Return(Phase.RESUMED, datetime.now(UTC).timestamp() - 60, 500, Verified.YES)
    team.evicted(job, Cause.PREEMPTED, back, by="kueue", for_whom="prod/urgent")
    for number, controller in enumerate(("kaiwo.ai/sizing", "example.com/other")):
        team.api.create(
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "type": "Normal",
                "reason": "Sized",
                "action": "Size",
                "metadata": {"name": f"train.{number}", "namespace": team.space},
                "reportingController": controller,
                "reportingInstance": "x",
                "eventTime": f"{stamp(30)[:-1]}.000000Z",
                "note": f"It was given 12 GiB by {controller}",
                "regarding": {"kind": "Job", "name": "train", "namespace": team.space, "uid": job["metadata"]["uid"]},
            }
        )
    answer = asked("why", "train", "-n", team.space)
    assert answer["state"] == "running"
    assert re.fullmatch(r"sizing, \d+ s ago: It was given 12 GiB by kaiwo.ai/sizing.", said(answer, "EVENT"))
    assert codes(answer)[0] == "RUNS"
    assert pod["spec"]["nodeName"] in said(answer, "RUNS")
    assert "safe to stop now" in said(answer, "CHECKPOINTS")
    assert "its last checkpoint of step 500 is" in said(answer, "CHECKPOINTS")
    told = said(answer, "EVICTED_RESUMED")
    assert "was pre-empted 4 min ago by kueue, for prod/urgent, and gave 2 GPUs back." in told
    assert "Lost: 2 GPU-minutes of work, step 500 was saved." in told
    assert "It was back after 3 min at step 500, where its checkpoint was (seen in its log)." in told
    assert answer["next"] == ""
    # A pod of it is answered with the job that it belongs to.
    by_pod = asked("why", f"pod/{team.space}/{pod['metadata']['name']}")
    assert by_pod["job"]["name"] == "train"
    (line,) = asked("queue", "-n", team.space)["workloads"]
    assert line["lost_gpu_seconds"] == 180


def test_who_holds_it_is_said_first(team: Team, asked: Callable[..., Any]) -> None:
    running = team.run("other", 4)
    for name, holder in (("sized", "profiling"), ("copied", "staging")):
        team.waits(team.submit(name, 1))
        fresh = team.api.get(*BATCH, name, team.space)
        team.api.patch(*BATCH, name, hold(JOBS, fresh, holder), team.space)
    admitted_one = workload_of(team.plane, running)
    change = hold(KUEUE_WORKLOADS, admitted_one, "preemption")
    team.api.patch(*WORKLOAD, admitted_one["metadata"]["name"], change, team.space)
    note = {"state": "failed", "data": ["corpus"], "reason": "Denied", "message": "403 from s3://bucket/corpus"}
    team.api.patch(*BATCH, "copied", {"metadata": {"annotations": {"kaiwo.ai/staging": json.dumps(note)}}}, team.space)
    sized = asked("why", "sized", "-n", team.space)
    assert (sized["state"], codes(sized)[0]) == ("held", "HELD_PROFILING")
    copied = asked("why", "copied", "-n", team.space)
    assert codes(copied)[0] == "HELD_STAGING_FAILED"
    assert "could not be downloaded (Denied). 403 from s3://bucket/corpus." in copied["findings"][0]["message"]
    assert "credentialsName" not in copied["next"]
    assert "credentials.secretName" in copied["next"]
    assert "corpus, which does not exist" in said(copied, "DATA_UNKNOWN")
    wait_for(lambda: not admitted(workload_of(team.plane, running)), what="Kueue has stopped it")
    other = asked("why", "other", "-n", team.space)
    assert (other["state"], codes(other)[0]) == ("held", "HELD_PREEMPTION")
    states = {
        one["workload"].partition("/")[2]: one["state"]
        for one in asked("queue", "--waiting", "-n", team.space)["workloads"]
    }
    assert states == {"other": "held by preemption", "sized": "held by profiling", "copied": "held by staging"}


def test_evicted_by_the_pool_and_waiting_to_return(team: Team, asked: Callable[..., Any]) -> None:
    team.run("service", 4, priority="high")
    job = team.submit("borrower", 2)
    team.waits(job)
    team.evicted(
        job, Cause.LENDING, Return(), reason="LendingPool gpus takes 2 GPUs back before a spike", for_whom="prod/chat"
    )
    answer = asked("why", "borrower", "-n", team.space)
    assert answer["state"] == "evicted"
    told = answer["findings"][0]
    assert told["code"] == "EVICTED_WAITING"
    assert "as GPUs that were lent to it were taken back" in told["message"]
    assert "LendingPool gpus takes 2 GPUs back before a spike." in told["message"]
    assert "It returns as the 1st of 1." in told["message"]
    assert "QUEUED" in codes(answer)


@pytest.mark.long
def test_queues_that_cannot_start_anything_are_named(team: Team, asked: Callable[..., Any]) -> None:
    team.submit("lost", 1, queue="nowhere")
    answer = asked("why", "lost", "-n", team.space)
    assert (answer["state"], codes(answer)[0]) == ("blocked", "QUEUE_UNKNOWN")
    large = team.submit("large", 6)
    team.waits(large)
    assert "Ask for at most 4 GPUs" in asked("why", "large", "-n", team.space)["next"]
    version = WORKLOAD[0]
    team.api.patch(version, "ClusterQueue", team.cluster_queue, {"spec": {"stopPolicy": "Hold"}})
    assert codes(asked("why", "large", "-n", team.space))[0] == "QUEUE_STOPPED"
    team.api.patch(version, "ClusterQueue", team.cluster_queue, {"spec": {"stopPolicy": "None"}})


def test_pods_without_a_node_are_told_in_the_words_of_their_scheduler(team: Team, asked: Callable[..., Any]) -> None:
    team.submit("alone", 9, queue="")

    def refused() -> bool:
        return any(one.get("message") for pod in team.pods("alone") for one in pod["status"].get("conditions", []))

    wait_for(refused, what="the scheduler has looked at it")
    answer = asked("why", "alone", "-n", team.space)
    assert codes(answer)[0] == "UNSCHEDULABLE"
    assert "default-scheduler: 0/" in answer["findings"][0]["message"]
    assert f"Insufficient {GPU}" in answer["findings"][0]["message"]
    (line,) = [one for one in asked("queue", "-n", team.space)["workloads"] if one["workload"].endswith("/alone")]
    assert (line["queue"], line["state"], line["gpus"]) == ("no queue", "waiting", 9)


def test_names_that_are_none_or_several_are_refused_with_what_to_write(team: Team) -> None:
    config = ["--kubeconfig", str(team.plane.kubeconfig)]
    done = CliRunner().invoke(app, ["why", "nobody", "-n", team.space, *config])
    assert done.exit_code == 1
    assert "there is no workload called nobody" in done.stderr
    team.submit("twice", 1, queue="")
    meta = {"name": "twice", "namespace": team.space}
    team.api.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
            },
        }
    )
    done = CliRunner().invoke(app, ["why", "twice", "-n", team.space, *config])
    assert "several things are called twice" in done.stderr
    done = CliRunner().invoke(app, ["why", "job/twice", "-n", team.space, *config])
    assert done.exit_code == 0, done.stderr
    for bad in ("a/b/c/d", "/x", "x/", "nokind/a/b"):
        assert CliRunner().invoke(app, ["why", bad, *config]).exit_code == 2, bad


def test_a_person_with_rights_in_one_namespace_is_told_what_is_missing(team: Team, asked: Callable[..., Any]) -> None:
    team.run("first", 4)
    team.waits(team.submit("second", 2))
    version = "rbac.authorization.k8s.io/v1"
    rules = [
        {
            "apiGroups": ["", "batch", "kueue.x-k8s.io"],
            "resources": ["pods", "jobs", "workloads", "localqueues"],
            "verbs": ["get", "list"],
        }
    ]
    meta = {"name": "reader", "namespace": team.space}
    team.api.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": version, "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
    )
    own = team.plane.kubeconfig_for("reader", team.space)
    answer = asked("why", "second", "-n", team.space, kubeconfig=own)
    assert "1st of 1" in said(answer, "QUEUED")
    assert codes(answer)[-1] == "UNREAD"
    assert {"clusterqueues", "evictions"} <= set(answer["unread"])
    assert [one["workload"] for one in asked("queue", "-n", team.space, kubeconfig=own)["workloads"]] == [
        f"{team.space}/first",
        f"{team.space}/second",
    ]


def put(team: Team, kind: str, document: Object, namespace: str = "") -> None:
    """An object of a controller of ours, with its status."""
    meta = {key: value for key, value in document["metadata"].items() if key != "uid"} | {"namespace": namespace}
    made = {"apiVersion": "kaiwo.ai/v1alpha1", "kind": kind, **document, "metadata": meta}
    team.api.create({key: value for key, value in made.items() if key != "status"})
    path = team.api.path("kaiwo.ai/v1alpha1", kind, namespace, meta["name"])
    team.api.request(
        "PATCH",
        f"{path}/status",
        json={"status": document["status"]},
        headers={"Content-Type": "application/merge-patch+json"},
    )


@pytest.mark.long
def test_pools_and_staged_data_are_told_as_their_controllers_write_them(team: Team, asked: Callable[..., Any]) -> None:
    pool = objects.pool(team.space, time.time(), reclaiming=True, moments=3)
    pool["spec"]["borrowers"] = [{"system": "Kueue", "queue": team.cluster_queue}]
    pool["status"]["reclaiming"]["victims"] = [f"{team.space}/train"]
    put(team, "LendingPool", pool)
    put(
        team,
        "StagedData",
        objects.staged("corpus", time.time(), "Failed", reason="NoRoom", message="3 GiB missing"),
        team.space,
    )
    team.run("train", 2)
    notes = {"metadata": {"annotations": {"kaiwo.ai/staged-data": "corpus"}}}
    team.api.patch(*BATCH, "train", notes, team.space)
    answer = asked("why", "train", "-n", team.space)
    assert "takes 8 GPUs back until" in said(answer, "POOL_RECLAIMS")
    assert "It is among those that give them back." in said(answer, "POOL_RECLAIMS")
    (line,) = asked("queue", "-n", team.space)["workloads"]
    assert line["gpus_of"] == team.space
    team.waits(team.submit("second", 4, note="x"))
    team.api.patch(*BATCH, "second", notes, team.space)
    waiting = asked("why", "second", "-n", team.space)
    assert codes(waiting)[0] == "DATA_FAILED"
    assert "(NoRoom). 3 GiB missing." in waiting["findings"][0]["message"]
    assert waiting["next"].startswith("Make room")
    team.api.delete("kaiwo.ai/v1alpha1", "LendingPool", team.space)


@pytest.mark.long
def test_a_gang_of_kais_is_told_in_kais_words(
    plane: ControlPlane, kai: Kai, kwok: Kwok, asked: Callable[..., Any], team: Team
) -> None:
    with kwok.nodes(1, gpus=2) as nodes, kai.queue(8) as queue:
        limits = {"limits": {GPU: "1"}}
        pods = {
            "restartPolicy": "Never",
            "nodeSelector": dict(nodes.selector),
            "schedulerName": SCHEDULER,
            "containers": [{"name": "train", "image": "team/train:1", "resources": limits}],
        }
        template = {"metadata": {"labels": {QUEUE_LABEL: queue}}, "spec": pods}
        spec = {"parallelism": 3, "completions": 3, "template": template}
        team.api.create(
            {
                "apiVersion": BATCH[0],
                "kind": BATCH[1],
                "spec": spec,
                "metadata": {"name": "gang", "namespace": team.space, "labels": {QUEUE_LABEL: queue}},
            }
        )

        def stuck() -> bool:
            found = asked("why", "gang", "-n", team.space)
            return bool({"UNSCHEDULABLE", "GANG_UNSCHEDULABLE"} & set(codes(found)))

        wait_for(stuck, what="KAI says that it does not fit")
        found = [one for one in asked("queue", "-n", team.space)["workloads"] if one["system"] == "KAI"]
        assert {one["queue"] for one in found} == {queue}
        assert sum(one["gpus"] for one in found) == 3


@pytest.mark.long
def test_what_is_watched_is_printed_anew_when_it_changes(team: Team, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-P",
        "-c",
        "from kopt.cli.main import app; app()",
        "queue",
        "-n",
        team.space,
        "--watch",
        "--kubeconfig",
        str(team.plane.kubeconfig),
    ]
    with out.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "no GPU workload waits or runs" in out.read_text(), what="it has begun")
        team.run("train", 1)
        wait_for(lambda: re.search(r"/train +1 +100 +running", out.read_text()), what="the change is printed")
    finally:
        process.kill()
        process.wait()
