"""Evictions by a real Kueue: its own choice, deactivation, a group of pods; who for, and back again."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import run_kopt, wait_for

from .conftest import BATCH, GPU, QUEUE, Ledger, Object, Start, job, sealed
from .test_plain_jobs import stamp

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WORKLOAD = ("kueue.x-k8s.io/v1beta1", "Workload")
BY_PRIORITY = {"withinClusterQueue": "LowerPriority"}


@pytest.fixture(scope="module")
def urgent(plane: ControlPlane, kueue: Kueue) -> Iterator[str]:
    """A priority class above that of Jobs that say nothing."""
    plane.api.apply(
        {
            "apiVersion": WORKLOAD[0],
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": "ledger-urgent"},
            "value": 1000,
        }
    )
    yield "ledger-urgent"
    plane.api.delete(WORKLOAD[0], "WorkloadPriorityClass", "ledger-urgent")


def test_a_preempted_job_is_in_the_ledger_and_back_again(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kueue: Kueue, urgent: str, start: Start
) -> None:
    start()
    space = ledger.space
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 8}, preemption=BY_PRIORITY):
        low = plane.api.create(job("low", space, 4, nodes.selector, pods=2, queue=True))
        ledger.annotate(
            ledger.running("low", 2),
            checkpoint_observed_at=stamp(),
            last_checkpoint_step="90",
            last_checkpoint_time=stamp(60),
            work_at_risk="480",
        )
        plane.api.create(job("high", space, 8, nodes.selector, queue=True, priority=urgent))
        line = ledger.phase("Waiting")
        spec = line["spec"]
        assert (spec["cause"], spec["system"], spec["by"], spec["for"]) == (
            "Preempted",
            "Kueue",
            "kueue",
            f"{space}/high",
        )
        assert (spec["workload"]["kind"], spec["workload"]["name"], spec["gpus"]) == ("Job", "low", 8000)
        assert "due to prioritization in the ClusterQueue" in spec["reason"]
        assert (spec["lastDurableStep"], spec["lostGpuSeconds"] >= 480) == (90, True)
        evicted = next(one for one in workload_of(plane, low)["status"]["conditions"] if one["type"] == "Evicted")
        assert spec["evictedAt"] == evicted["lastTransitionTime"]
        ledger.running("high")
        assert ledger.phase("Waiting")["metadata"]["uid"] == line["metadata"]["uid"]
        plane.api.delete(*BATCH, "high", space, propagationPolicy="Background")
        ledger.annotate(ledger.running("low", 2), checkpoint_observed_at=stamp(), first_step="0")
        back = ledger.wait(lambda one: one.get("status", {}).get("verified"))["status"]
        assert (back["phase"], back["verified"], back["resumedStep"]) == ("Resumed", "No", 0)
        assert back["message"] == "It resumed at step 0, although step 90 had been saved."
        rows = listed(plane, "-n", space)
        assert [(one["workload"], one["for_whom"], one["state"], one["gpus"]) for one in rows] == [
            (f"{space}/low", f"{space}/high", "Resumed", 8.0)
        ]
        assert rows[0]["back_after_s"] > 0
        plane.api.delete(*BATCH, "low", space, propagationPolicy="Background")
        ledger.phase("Gone")


def test_a_deactivated_workload_with_a_notice_of_ours(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kueue: Kueue, start: Start
) -> None:
    start()
    space = ledger.space
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 8}):
        made = plane.api.create(job("train", space, 2, nodes.selector, queue=True))
        ledger.running("train")
        found = workload_of(plane, made)["metadata"]
        name = found["name"]
        notice = {
            "by": "kopt-reallocation",
            "cause": "Lending",
            "for": "prod/chat",
            "at": stamp(),
            "reason": "a spike comes",
        }
        annotations = {"kaiwo.ai/evicting": sealed(plane.api, found["uid"], notice)}
        plane.api.patch(*WORKLOAD, name, {"metadata": {"annotations": annotations}, "spec": {"active": False}}, space)
        spec = ledger.phase("Waiting")["spec"]
        assert (spec["cause"], spec["by"], spec["for"]) == ("Lending", "kopt-reallocation", "prod/chat")
        assert spec["reason"] == "a spike comes"
        plane.api.patch(*WORKLOAD, name, {"spec": {"active": True}}, space)
        ledger.phase("Resumed")
        # Again, and this time by somebody else: a line of its own.
        plane.api.patch(*WORKLOAD, name, {"metadata": {"annotations": {"kaiwo.ai/evicting": None}}}, space)
        plane.api.patch(*WORKLOAD, name, {"spec": {"active": False}}, space)
        wait_for(lambda: len(ledger.lines()) == 2, what="a second line")
        first, second = ledger.lines()
        assert (second["spec"]["cause"], second["spec"]["by"]) == ("Deactivated", "kueue")
        assert second["spec"]["order"] > first["spec"]["order"]
        waiting = listed(plane, "-n", space, "--waiting")
        assert [one["cause"] for one in waiting] == ["Deactivated"]


@pytest.mark.long
def test_what_waits_in_a_queue_and_is_deactivated_was_not_evicted(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kueue: Kueue, start: Start
) -> None:
    start()
    space = ledger.space
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 4}):
        waits = plane.api.create(job("waits", space, 8, nodes.selector, queue=True))
        name = workload_of(plane, waits)["metadata"]["name"]
        plane.api.patch(*WORKLOAD, name, {"spec": {"active": False}}, space)
        made = plane.api.create(job("train", space, 2, nodes.selector, queue=True))
        ledger.running("train")
        other = workload_of(plane, made)["metadata"]["name"]
        plane.api.patch(*WORKLOAD, other, {"spec": {"active": False}}, space)
        assert ledger.wait()["spec"]["workload"]["name"] == "train"


@pytest.mark.long
def test_a_group_of_pods_is_one_eviction(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kueue: Kueue, start: Start
) -> None:
    start()
    space = ledger.space
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 8, "cpu": 100, "memory": "1Ti"}):
        for index in range(3):
            plane.api.create(grouped(f"rank-{index}", space, nodes.selector, 3))
        wait_for(lambda: len(plane.api.list("v1", "Pod", space, fields="status.phase=Running")) == 3)
        group = wait_for(lambda: plane.api.find(*WORKLOAD, "gang", space)) or {}
        assert admitted(group)
        plane.api.patch(*WORKLOAD, "gang", {"spec": {"active": False}}, space)
        spec = ledger.wait()["spec"]
        assert (spec["workload"]["kind"], spec["workload"]["name"]) == ("Workload", "gang")
        assert (spec["cause"], spec["gpus"], spec["system"]) == ("Deactivated", 6000, "Kueue")
        stopped = lambda: all("deletionTimestamp" in one["metadata"] for one in plane.api.list("v1", "Pod", space))  # noqa: E731
        wait_for(stopped, what="Kueue deletes the pods of the group")
        assert len(ledger.lines()) == 1


@pytest.mark.long
def test_killed_between_any_of_it_nothing_is_written_twice_or_forgotten(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kueue: Kueue, urgent: str, start: Start
) -> None:
    first = start()
    space = ledger.space
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 8}, preemption=BY_PRIORITY):
        plane.api.create(job("low", space, 4, nodes.selector, pods=2, queue=True))
        ledger.running("low", 2)
        first.kill()
        plane.api.create(job("high", space, 8, nodes.selector, queue=True, priority=urgent))
        ledger.running("high")
        second = start()
        line = ledger.phase("Waiting")
        assert (line["spec"]["cause"], line["spec"]["for"], line["spec"]["gpus"]) == (
            "Preempted",
            f"{space}/high",
            8000,
        )
        second.kill()
        plane.api.delete(*BATCH, "high", space, propagationPolicy="Background")
        ledger.running("low", 2)
        start(), start(leads=False)
        assert ledger.phase("Resumed")["metadata"]["uid"] == line["metadata"]["uid"]


def grouped(name: str, space: str, selector: dict[str, str], of: int) -> Object:
    container = {
        "name": "main",
        "image": "any",
        "resources": {"limits": {GPU: "2"}, "requests": {"cpu": "1", GPU: "2"}},
    }
    labels = {QUEUE: "gpus", "kueue.x-k8s.io/pod-group-name": "gang"}
    annotations = {"kueue.x-k8s.io/pod-group-total-count": str(of)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "labels": labels, "annotations": annotations},
        "spec": {
            "containers": [container],
            "nodeSelector": selector,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    }


def listed(plane: ControlPlane, *options: str) -> list[Any]:
    """What ``kopt evictions`` prints."""
    done = run_kopt("evictions", "--kubeconfig", plane.kubeconfig, "-o", "json", *options)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["evictions"])
