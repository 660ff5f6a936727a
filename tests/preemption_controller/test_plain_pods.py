"""Real kube-scheduler leaves pods of a class that never pre-empts to us: the chosen go as one, and leave their room."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import wait_for
from deploy.rights import assert_refused_nothing, audited, granted, used

from .teams import SYSTEM, Controller, Pods
from .test_rights_and_outages import ACCOUNT, CHART, RIGHTS, rendered, rights_of_switches

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_safe_one_goes_and_its_successor_does_not_take_the_room(
    pods: Pods, controller: Callable[..., Controller]
) -> None:
    controller("--mode=enforce", "--plain-pods")
    for name in ("oldest", "middle", "newest"):
        pods.run(name, 4)
    pods.note("middle", "CKPT_WRITING", safe=False)
    pods.note("oldest", lost=50)
    others = pods.uids("middle") | pods.uids("newest")
    pods.submit("urgent", 4, "plain-high")
    wait_for(lambda: pods.pods("urgent"), what="the urgent job has its GPUs")
    assert pods.pods("oldest") == []
    assert pods.uids("middle") | pods.uids("newest") == others
    (urgent,) = pods.pods("urgent")
    decision = json.loads(urgent["metadata"]["annotations"]["kaiwo.ai/preemption"])
    assert (decision["verdict"], decision["victims"], decision["models"]) == (
        "preempt",
        [f"{pods.space}/oldest"],
        ["logs/7"],
    )
    wait_for(lambda: {"Preempting", "PreemptionChosen"} <= pods.reasons().keys())


@pytest.mark.long
def test_a_gang_goes_as_one_for_a_gang(pods: Pods, controller: Callable[..., Controller]) -> None:
    """The cheapest alone does not free enough nodes."""
    controller("--mode=enforce", "--plain-pods")
    pods.run("gang", 4, pods=2)
    pods.run("lone", 4)
    pods.note("gang", lost=50)
    pods.note("lone", lost=5)
    lone = pods.uids("lone")
    pods.submit("urgent", 4, "plain-high", pods=2)
    wait_for(lambda: len(pods.pods("urgent")) == 2, what="the urgent job has its GPUs")
    assert pods.pods("gang") == []
    assert pods.uids("lone") == lone


@pytest.mark.long
def test_nobody_goes_for_one_that_is_in_a_write_or_silent(pods: Pods, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--plain-pods", "--budget=3s")
    for name in ("oldest", "middle", "newest"):
        pods.run(name, 4)
    pods.note("middle", "CKPT_WRITING", safe=False)
    before = {uid for name in pods.jobs for uid in pods.uids(name)}
    pods.submit("urgent", 4, "plain-high")
    wait_for(lambda: "budget is spent" in pods.reasons().get("PreemptionWaits", ""), what="it says that it gave up")
    assert pods.pods("urgent") == []
    assert {uid for name in ("oldest", "middle", "newest") for uid in pods.uids(name)} == before


@pytest.mark.long
def test_it_only_acts_where_it_may(pods: Pods, controller: Callable[..., Controller]) -> None:
    controller("--mode=observe", "--plain-pods")
    pods.run("oldest", 4)
    pods.note("oldest", lost=50)
    pods.submit("urgent", 4, "plain-high", pods=3)
    pods.plane.api.patch("v1", "Namespace", pods.space, {"metadata": {"annotations": {"kaiwo.ai/mode": "enforce"}}})
    wait_for(lambda: pods.note("oldest", lost=50) or len(pods.pods("urgent")) == 3, what="now it may", every_s=2)
    assert pods.pods("oldest") == []


@pytest.mark.long
def test_what_a_budget_of_disruptions_protects_stays(pods: Pods, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--plain-pods")
    for name in ("oldest", "middle", "newest"):
        pods.run(name, 4)
    budget: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "stays", "namespace": pods.space},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "oldest"}}},
    }
    pods.api.create(budget)
    pods.api.wait(
        "policy/v1",
        "PodDisruptionBudget",
        "stays",
        lambda one: one.get("status", {}).get("expectedPods") == 1,
        pods.space,
    )
    pods.note("oldest", lost=5)
    pods.note("middle", lost=500)
    oldest = pods.uids("oldest")
    pods.submit("urgent", 4, "plain-high")
    wait_for(lambda: pods.pods("urgent"), what="another makes room")
    assert pods.uids("oldest") == oldest
    assert pods.pods("middle") == []
    assert pods.told("oldest") == []


@pytest.mark.long
def test_a_job_that_would_end_for_good_stays(pods: Pods, controller: Callable[..., Controller]) -> None:
    """Each pod that is evicted counts as a failure: Kubernetes ends the Job that is over its limit."""
    controller("--mode=enforce", "--plain-pods")
    pods.submit("gang", 4, pods=2, failures=1)
    wait_for(lambda: len(pods.pods("gang")) == 2)
    pods.run("lone", 4)
    pods.note("gang", lost=5)
    pods.note("lone", lost=500)
    gang = pods.uids("gang")
    pods.submit("urgent", 4, "plain-high")
    wait_for(lambda: pods.pods("urgent"), what="another makes room")
    assert pods.uids("gang") == gang
    assert pods.pods("lone") == []
    for name in [one["metadata"]["name"] for one in pods.pods("gang")]:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        pods.api.request("POST", pods.api.path("v1", "Pod", pods.space, name) + "/eviction", json=eviction)

    def ended(job: dict[str, Any]) -> bool:
        return any(one["type"] == "Failed" for one in job.get("status", {}).get("conditions", []))

    pods.api.wait("batch/v1", "Job", "gang", ended, pods.space)


@pytest.mark.long
def test_it_needs_a_few_rights_more_and_uses_them(
    pods: Pods, controller: Callable[..., Controller], helm: Path
) -> None:
    given = [one for one in rendered(helm, enabled=True, plainPods=True) if one["kind"] in RIGHTS]
    roles = [one for one in given if one["kind"] in ("Role", "ClusterRole")]
    usual = granted(one for one in rendered(helm, enabled=True) if one["kind"] in ("Role", "ClusterRole"))
    switches = rights_of_switches(helm, enabled=True)
    pods.plane.apply_crds([CHART / "crds" / "evictions.yaml"])
    pods.api.apply(*given, *switches)
    started = datetime.now(UTC)
    try:
        controller("--mode=enforce", "--plain-pods", kubeconfig=pods.plane.kubeconfig_for(ACCOUNT, SYSTEM))
        for name in ("oldest", "middle", "newest"):
            pods.run(name, 4)
        pods.note("oldest", lost=50)
        pods.submit("urgent", 4, "plain-high")
        wait_for(lambda: pods.pods("urgent"), what="the urgent job has its GPUs")
        more = granted(roles) - usual
        assert {one[2] for one in more} == {"nodes", "jobs", "pods/status", "pods/eviction"}
        wait_for(lambda: more <= used(audited(pods.plane, ACCOUNT, started)), what="every right is used")
        seen = audited(pods.plane, ACCOUNT, started)
        assert_refused_nothing(seen)
    finally:
        for one in (*given, *switches):
            pods.api.delete(one["apiVersion"], one["kind"], one["metadata"]["name"], SYSTEM)
