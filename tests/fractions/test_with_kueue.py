"""Shares in queues of a real Kueue: claims are charged what they are of a GPU, and wait for quota that is not there."""

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from admission.conftest import Webhooks, running
from controlplane.api import Refused
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from preemption_controller.teams import CONFIGURATION, HIGH, LOW, SYSTEM, WEBHOOKS, WORKLOAD, Controller, Team
from replicas import replicas
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.workloads.kueue.reading import amount

from .conftest import template
from .test_on_control_plane import dividing

Object = dict[str, Any]
MILLI_GPU, QUEUE = "kaiwo.ai/milli-gpu", "kueue.x-k8s.io/queue-name"
QUARTER = {"kaiwo.ai/gpu-fraction": "0.25", "kaiwo.ai/gpu-memory": "20480"}
HALVES = {"kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-memory": "20480", "kaiwo.ai/gpu-count": "2"}


@pytest.fixture(scope="module")
def webhooks(control_plane: ControlPlane, kueue: Kueue) -> Iterator[Webhooks]:
    yield from running(control_plane)


@pytest.fixture(scope="module")
def enforcing(webhooks: Webhooks) -> Webhooks:
    webhooks.policy(mode="enforce", framework="Kueue", queues={"default": "gpus"})
    return webhooks


def job(space: str, name: str, on: str, asked: dict[str, str]) -> Object:
    pods = template(on, asked)
    pods["spec"]["restartPolicy"] = "Never"
    metadata = {"name": name, "namespace": space}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": pods}}


def created(webhooks: Webhooks, document: Object) -> Object:
    """Once the webhook knows the node and the queue."""

    def tried() -> Object | None:
        try:
            return webhooks.api.create(document)
        except Refused:
            return None

    return wait_for(tried, what=f"{document['metadata']['name']} is let in")


def admitted_workload(webhooks: Webhooks, owner: Object) -> Object:
    wait_for(lambda: admitted(workload_of(webhooks.plane, owner)), what=f"{owner['metadata']['name']} has quota")
    return workload_of(webhooks.plane, owner)


def charged(workload: Object) -> int:
    """Milli-GPU; Kueue writes amounts in its own way."""
    (assignment,) = workload["status"]["admission"]["podSetAssignments"]
    return amount(assignment["resourceUsage"].get(MILLI_GPU, "0")) // 1000


def test_claims_are_charged_what_they_are_of_a_gpu(enforcing: Webhooks, kueue: Kueue) -> None:
    """Three quarters fit into quota for three, on GPUs with room for eight."""
    api, space = enforcing.api, enforcing.namespace()
    with dividing(enforcing, 2) as node, kueue.queue(space, {MILLI_GPU: 750}) as queue:
        jobs = [created(enforcing, job(space, f"quarter-{at}", node, QUARTER)) for at in range(3)]
        for one in jobs:
            workload = admitted_workload(enforcing, one)
            assert charged(workload) == 250
        late = created(enforcing, job(space, "late", node, QUARTER))
        waiting = api.wait(
            "kueue.x-k8s.io/v1beta2",
            "Workload",
            workload_of(enforcing.plane, late)["metadata"]["name"],
            lambda found: "insufficient unused quota" in str(found.get("status", {}).get("conditions")),
            space,
        )
        assert not admitted(waiting)
        wait_for(lambda: len(api.list("v1", "Pod", space, fields="spec.nodeName!=")) == 3, what="three run")
        for pod in api.list("v1", "Pod", space):
            assert "overhead" not in pod["spec"], "kube-scheduler would look for it on nodes"

        def reserved() -> list[str]:
            usage = api.get("kueue.x-k8s.io/v1beta2", "ClusterQueue", queue)["status"]["flavorsReservation"]
            return [each["total"] for each in usage[0]["resources"] if each["name"] == MILLI_GPU]

        wait_for(lambda: reserved() == ["750"], what="the queue counts three quarters")
        kubeconfig = ["--kubeconfig", str(enforcing.plane.kubeconfig)]
        table = CliRunner().invoke(app, ["queues", "shares", "--queue", queue, "-o", "json", *kubeconfig])
        (row,) = json.loads(table.stdout)["queues"]
        assert (row["quota"], row["use"], row["demand"]["gpu"]) == ({"gpu": "750m"}, {"gpu": "750m"}, "1")
        api.delete("batch/v1", "Job", "quarter-0", space, propagationPolicy="Background")
        wait_for(lambda: admitted(workload_of(enforcing.plane, late)), what="the fourth is admitted")
        for name in ("quarter-1", "quarter-2", "late"):
            api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")


def test_a_job_that_changes_while_it_waits_is_still_charged(enforcing: Webhooks, kueue: Kueue) -> None:
    """Kueue writes its Workload anew, with the pods of the job."""
    api, space = enforcing.api, enforcing.namespace()
    with dividing(enforcing, 2) as node, kueue.queue(space, {MILLI_GPU: 400}):
        several = job(space, "several", node, QUARTER)
        several["spec"] |= {"parallelism": 3, "completions": 3}
        owner = created(enforcing, several)
        assert not admitted(workload_of(enforcing.plane, owner))
        api.patch("batch/v1", "Job", "several", {"spec": {"parallelism": 1}}, space)
        workload = admitted_workload(enforcing, owner)
        assert workload["spec"]["podSets"][0]["count"] == 1
        assert charged(workload) == 250
        api.delete("batch/v1", "Job", "several", space, propagationPolicy="Background")


def test_halves_of_two_gpus_are_charged_as_one_and_pods_as_jobs(enforcing: Webhooks, kueue: Kueue) -> None:
    """A Deployment is queued pod by pod, without the annotations of its template."""
    api, space = enforcing.api, enforcing.namespace()
    with dividing(enforcing, 2) as node, kueue.queue(space, {MILLI_GPU: 1500}):
        both = created(enforcing, job(space, "both", node, HALVES))
        workload = admitted_workload(enforcing, both)
        assert charged(workload) == 1000
        pods = template(node, QUARTER)
        pods["metadata"]["labels"] = {"app": "serve"}
        spec = {"replicas": 3, "selector": {"matchLabels": {"app": "serve"}}, "template": pods}
        metadata = {"name": "serve", "namespace": space, "labels": {QUEUE: "gpus"}}
        created(enforcing, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        wait_for(
            lambda: len(api.list("v1", "Pod", space, fields="spec.nodeName!=")) == 3, what="two of three replicas run"
        )
        workloads = api.list("kueue.x-k8s.io/v1beta2", "Workload", space)
        assert sorted(charged(one) for one in workloads if admitted(one)) == [250, 250, 1000]
        api.delete("apps/v1", "Deployment", "serve", space, propagationPolicy="Background")
        api.delete("batch/v1", "Job", "both", space, propagationPolicy="Background")


def test_a_queue_that_could_not_charge_it_gets_no_claims(enforcing: Webhooks, kueue: Kueue) -> None:
    api, space = enforcing.api, enforcing.namespace()
    with dividing(enforcing, 1) as node, kueue.queue(space, {"nvidia.com/gpu": 4}):

        def refusal() -> str:
            try:
                api.create(job(space, "refused", node, QUARTER), dryRun="All")
            except Refused as refused:
                return refused.message if MILLI_GPU in refused.message else ""
            return ""

        assert "a queue of Kueue without quota for kaiwo.ai/milli-gpu" in wait_for(refusal)


@pytest.mark.long
def test_preemption_takes_the_share_that_loses_least(enforcing: Webhooks, kueue: Kueue) -> None:
    """By itself Kueue would take the newest. Their pods have no GPUs in their specs, only claims."""
    api, space = enforcing.api, enforcing.namespace(managed=True)
    for name, value in (("low", LOW), ("high", HIGH)):
        kind = {"apiVersion": WORKLOAD[0], "kind": "WorkloadPriorityClass", "metadata": {"name": name}}
        api.apply({**kind, "value": value})
    api.namespace(SYSTEM)
    preempts = {"withinClusterQueue": "LowerPriority"}
    with (
        dividing(enforcing, 2) as node,
        kueue.queue(space, {MILLI_GPU: 750}, preemption=preempts),
        replicas(partial(Controller, enforcing.plane)) as controller,
    ):
        team = Team(enforcing.plane, space, {})

        def submit(name: str, priority: str) -> None:
            wanted = job(space, name, node, QUARTER)
            wanted["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": priority}
            team.jobs[name] = created(enforcing, wanted)

        controller("--mode=enforce")
        for name in ("oldest", "middle", "newest"):
            submit(name, "low")
            wait_for(lambda name=name: team.admitted(name), what=f"{name} has quota")
            bound(enforcing, space, name)
            time.sleep(1.1)  # Kueue counts in seconds.
        for name, lost in (("oldest", 50), ("middle", 5000), ("newest", 5000)):
            team.note(name, lost=lost)
        submit("urgent", "high")
        wait_for(lambda: team.admitted("urgent"), what="the urgent job has its quota")
        assert team.evicted() == {"oldest"}
        decision = team.decision("urgent")
        assert (decision["verdict"], len(decision["victims"])) == ("preempt", 1)
        for name in team.jobs:
            api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
    api.delete(*WEBHOOKS, CONFIGURATION)


def bound(webhooks: Webhooks, space: str, name: str) -> None:
    """No kubelet runs on its node: the pod is said to run."""
    api = webhooks.api

    def pod() -> Object | None:
        pods = api.list("v1", "Pod", space, f"batch.kubernetes.io/job-name={name}")
        return next((each for each in pods if each["spec"].get("nodeName")), None)

    status = {"status": {"phase": "Running"}}
    api.patch("v1", "Pod", wait_for(pod)["metadata"]["name"], status, space, subresource="status")


@pytest.mark.long
def test_a_share_that_comes_late_into_a_queue_without_quota_for_it_is_told_why_it_waits(
    enforcing: Webhooks, kueue: Kueue
) -> None:
    api, space = enforcing.api, enforcing.namespace()
    with (
        dividing(enforcing, 1) as node,
        kueue.queue(space, {MILLI_GPU: 100}),
        kueue.queue(space, {"nvidia.com/gpu": 4}, name="whole") as queue,
    ):
        owner = created(enforcing, job(space, "late", node, QUARTER))
        assert not admitted(workload_of(enforcing.plane, owner))

        def moved(**params: str) -> list[str]:
            """The warnings of whoever puts it into the other queue."""
            path = api.path("batch/v1", "Job", space, "late")
            headers = {"Content-Type": "application/merge-patch+json"}
            changes = {"metadata": {"labels": {QUEUE: "whole"}}}
            response = api.request("PATCH", path, json=changes, headers=headers, params=params)
            return response.headers.get_list("warning")

        # Once the webhook knows the queue that was just made.
        (warning,) = wait_for(lambda: moved(dryRun="All"), what="it is warned")
        assert "It waits in queue whole: its shares of GPUs are charged as kaiwo.ai/milli-gpu" in warning
        moved()
        name = workload_of(enforcing.plane, owner)["metadata"]["name"]
        message = f"resource {MILLI_GPU} unavailable in ClusterQueue"
        version = "kueue.x-k8s.io/v1beta2"
        api.wait(version, "Workload", name, lambda each: message in str(each.get("status")), space)
        words = ["why", "late", "-n", space, "--kubeconfig", str(enforcing.plane.kubeconfig), "-o", "json"]
        answer = CliRunner().invoke(app, words)
        (cause,) = json.loads(answer.stdout)["diagnosis"]["causes"]
        assert cause["code"] == "QUOTA_ABSENT"
        assert cause["message"] == (
            f"Its shares of GPUs are charged as 250 {MILLI_GPU}, for which queue {queue} has no quota."
        )
        api.delete("batch/v1", "Job", "late", space, propagationPolicy="Background")
