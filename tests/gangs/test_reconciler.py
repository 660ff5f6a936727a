"""What is read of objects, and one reconcile on a cluster of objects: releases, what stops them, and giving back."""

import asyncio
import copy
from typing import Any

import pytest

from kopt.cluster.client.resources import JOBS, Object, Resource
from kopt.controllers.gangs.reconciler import ControllerSettings, Reconciler
from kopt.controllers.gangs.snapshot import Observed
from kopt.controllers.gangs.views import GangOwner, job_minimum, read_job, read_node, read_pod, read_workload
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.policies.gangs import GangSettings

GPU, NOW_S = "nvidia.com/gpu", 1_900_000_000.0
STAMPS = {"a": "2030-03-17T17:30:00Z", "b": "2030-03-17T17:35:00Z"}


def job(name: str, **spec: Any) -> Object:
    indexed = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "backoffLimit": 6}
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1", "labels": {}, "annotations": {}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": False, **indexed, **spec},
    }


def pod(owner: str, index: int, node: str, **annotations: str) -> Object:
    condition = {"type": "PodScheduled", "status": "True" if node else "False", "lastTransitionTime": STAMPS[owner]}
    condition |= {} if node else {"reason": "Unschedulable"}
    spec = {"containers": [{"name": "main", "resources": {"requests": {GPU: "4"}}}]} | (
        {"nodeName": node} if node else {}
    )
    return {
        "metadata": {
            "name": f"{owner}-{index}",
            "namespace": "team",
            "uid": f"{owner}-{index}",
            "resourceVersion": "1",
            "creationTimestamp": STAMPS[owner],
            "ownerReferences": [{"controller": True, "kind": "Job", "uid": owner, "name": owner}],
            "annotations": {f"kaiwo.ai/{key.replace('_', '-')}": value for key, value in annotations.items()},
        },
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [condition]},
    }


def node(name: str) -> Object:
    allocatable = {GPU: "4", "pods": "10"}
    return {
        "metadata": {"name": name},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Cluster:
    """Two gangs of two pods, each on one of two nodes; patches of Jobs count at once."""

    def __init__(self, mode: Mode = Mode.ENFORCE, **annotations: str) -> None:
        self.jobs = {name: job(name) for name in ("a", "b")}
        self.pods = [pod("a", 0, "n1"), pod("a", 1, ""), pod("b", 0, "n2", **annotations), pod("b", 1, "")]
        self.mode, self.now_s, self.events = mode, NOW_S, list[tuple[str, str]]()

    def observed(self, now_s: float) -> Observed:
        jobs = [item for each in self.jobs.values() if (item := read_job(copy.deepcopy(each)))]
        pods = [item for each in self.pods if (item := read_pod(copy.deepcopy(each)))]
        nodes = [item for name in ("n1", "n2") if (item := read_node(node(name)))]

        def mode(owner: GangOwner) -> Mode:
            return self.mode

        return Observed(now_s, pods, nodes, jobs, [], mode)

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None:
        assert resource == JOBS
        target = self.jobs[document["metadata"]["name"]]
        target["spec"] |= changes.get("spec", {})
        for part in ("labels", "annotations"):
            for key, value in changes.get("metadata", {}).get(part, {}).items():
                target["metadata"][part].pop(key, None)
                if value is not None:
                    target["metadata"][part][key] = value

    async def promise(self, _pod: Any, _node: str) -> None:
        raise AssertionError("nothing is promised here")

    async def evict(self, _pod: Any) -> None:
        raise AssertionError("nothing is evicted here")

    def reconciles(self, reconciler: Reconciler | None = None) -> Reconciler:
        made = reconciler or Reconciler(
            self,
            ControllerSettings(self.mode, GangSettings(60.0), 600.0),
            lambda regarding, reason, _: self.events.append((regarding["name"], reason)),
            lambda: self.now_s,
        )
        asyncio.run(made.step())
        return made

    def suspended(self) -> set[str]:
        return {name for name, each in self.jobs.items() if each["spec"]["suspend"]}


def test_the_younger_is_held_and_given_back_once_the_other_has_started() -> None:
    cluster = Cluster()
    reconciler = cluster.reconciles()
    assert cluster.suspended() == {"b"}
    cluster.pods = [pod("a", 0, "n1"), pod("a", 1, "")]
    cluster.reconciles(reconciler)
    assert cluster.suspended() == {"b"}
    cluster.pods = [pod("a", 0, "n1"), pod("a", 1, "n2")]
    cluster.reconciles(reconciler)
    assert cluster.suspended() == set()
    assert [reason for _, reason in cluster.events] == ["GangReleased", "GangGoesFirst", "GangGivenBack"]
    metadata = cluster.jobs["b"]["metadata"]
    assert not metadata["labels"]
    assert not {"kaiwo.ai/evicting", "kaiwo.ai/held-undo"} & set(metadata["annotations"])


@pytest.mark.parametrize("what", ["time", "gone"])
def test_it_is_given_back_when_the_other_never_starts_or_is_gone(what: str) -> None:
    cluster = Cluster()
    cluster.reconciles()
    cluster.pods = [pod("a", 0, "n1"), pod("a", 1, "")]
    if what == "gone":
        del cluster.jobs["a"]
        cluster.pods = []
    else:
        cluster.now_s += 601.0
    # Another leader: nothing is only in memory.
    cluster.reconciles()
    assert cluster.suspended() == set()


@pytest.mark.parametrize("lower", [Mode.OBSERVE, Mode.ANNOTATE])
def test_it_is_given_back_at_once_where_it_may_not_be_held_any_more(lower: Mode) -> None:
    """Its mode was lowered, or its feature switched off."""
    cluster = Cluster()
    reconciler = cluster.reconciles()
    assert cluster.suspended() == {"b"}
    cluster.mode = lower
    cluster.reconciles(reconciler)
    assert cluster.suspended() == set()
    assert ("b", "GangGivenBack") in cluster.events


def test_a_report_goes_from_what_is_only_observed_any_more() -> None:
    cluster = Cluster(Mode.ANNOTATE)
    reconciler = cluster.reconciles()
    assert all("kaiwo.ai/gang-deadlock" in each["metadata"]["annotations"] for each in cluster.jobs.values())
    cluster.mode = Mode.OBSERVE
    cluster.reconciles(reconciler)
    assert not any(each["metadata"]["annotations"] for each in cluster.jobs.values())


def test_a_workload_of_kueues_is_on_the_side_of_its_job() -> None:
    owner = {"controller": True, "kind": "Job", "uid": "a", "name": "a"}
    workload = {"metadata": {"name": "job-a-1", "namespace": "team", "uid": "w", "ownerReferences": [owner]}}
    assert read_workload(workload).whose == read_job(job("a")).whose == Owner.of("jobs", "team", "a")


def test_one_that_writes_a_checkpoint_stays() -> None:
    writing = {"checkpoint_state": "CKPT_WRITING", "checkpoint_observed_at": "2030-03-17T17:46:00Z"}
    cluster = Cluster(**writing)
    cluster.now_s = read_pod(pod("b", 0, "", **writing)).created_s + 700.0  # type: ignore[union-attr]
    cluster.reconciles()
    assert cluster.suspended() <= {"a"}


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ANNOTATE])
def test_without_enforce_nothing_is_held(mode: Mode) -> None:
    cluster = Cluster(mode)
    reconciler = cluster.reconciles()
    cluster.reconciles(reconciler)
    assert cluster.suspended() == set()
    assert cluster.events == [("a", "GangDeadlock"), ("b", "GangDeadlock")]
    noted = ["kaiwo.ai/gang-deadlock" in each["metadata"]["annotations"] for each in cluster.jobs.values()]
    assert noted == [mode is Mode.ANNOTATE] * 2
    assert (reconciler.half, reconciler.deadlocked) == (2, 2)


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [
        ({}, 2),
        ({"completionMode": "NonIndexed"}, 0),
        ({"completions": 4}, 0),
        ({"parallelism": 1, "completions": 1}, 0),
        ({"template": {"metadata": {"annotations": {"kaiwo.ai/gang-minimum": "3"}}}}, 3),
        ({"template": {"metadata": {"annotations": {"kaiwo.ai/gang-minimum": "all"}}}}, 2),
        ({"template": "broken", "completionMode": None}, 0),
    ],
)
def test_what_a_gang_needs_is_stated_or_certain(spec: Object, minimum: int) -> None:
    assert job_minimum(job("a", **spec)) == minimum
