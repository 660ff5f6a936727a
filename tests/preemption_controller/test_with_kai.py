"""Ahead of a real KAI: who would make it pre-empt is held, the chosen go as one, and KAI gives their room to it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from controlplane.processes import wait_for
from controlplane.test_gangs import gang, pods_of
from deploy.rights import assert_refused_nothing, audited, granted, used

from .teams import GPU, SYSTEM, Controller, KaiPods, switch_off
from .test_rights_and_outages import ACCOUNT, CHART, RIGHTS, rendered

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
NAMES = ("oldest", "middle", "newest")


def test_who_loses_least_goes_once_and_whole(kai_pods: KaiPods, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--kai")
    kai_pods.run("gang", 4, pods=2)
    kai_pods.run("writing", 4)
    kai_pods.note("gang", lost=50)
    kai_pods.note("writing", "CKPT_WRITING", safe=False, lost=1)
    gang, writing = kai_pods.uids("gang"), kai_pods.uids("writing")
    kai_pods.submit("urgent", 4, "build", pods=2)
    wait_for(lambda: len(kai_pods.pods("urgent")) == 2, what="the urgent job has its GPUs")
    assert kai_pods.uids("writing") == writing
    assert not gang & kai_pods.uids("gang")
    assert kai_pods.evicted_pods() == ["gang", "gang"]
    assert kai_pods.held("urgent") == 0
    for one in kai_pods.pods("urgent"):
        notes = one["metadata"]["annotations"]
        assert json.loads(notes["kaiwo.ai/preemption"])["victims"] == [f"{kai_pods.space}/gang"]
        assert "kaiwo.ai/held-undo" not in notes
        assert "kaiwo.ai/held" not in one["metadata"]["labels"]


@pytest.mark.long
def test_a_gang_of_kais_is_held_whole_and_bound_whole(kai_pods: KaiPods, controller: Callable[..., Controller]) -> None:
    """There is room for one of its pods; it does not start alone."""
    kai_pods.plane.install_crds("training-operator")
    controller("--mode=enforce", "--kai")
    for name in ("oldest", "newest"):
        kai_pods.run(name, 4)
    kai_pods.note("oldest", lost=50)
    kai_pods.note("newest", "CKPT_WRITING", safe=False)
    newest = kai_pods.uids("newest")
    wanted = gang("urgent", kai_pods.space, kai_pods.queue, 2, 4, kai_pods.selector, GPU)
    wanted["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["priorityClassName"] = "build"
    for one in pods_of(wanted, kai_pods.api.create(wanted)):
        kai_pods.api.create(one)
    label = "training.kubeflow.org/replica-type=worker"

    def running() -> list[str]:
        found = kai_pods.api.list("v1", "Pod", kai_pods.space, label)
        return [one["spec"]["nodeName"] for one in found if one["status"].get("phase") == "Running"]

    wait_for(lambda: len(running()) == 2, what="the gang has its GPUs")
    assert len(set(running())) == 2
    assert (kai_pods.evicted_pods(), kai_pods.uids("newest")) == (["oldest"], newest)
    (group,) = [
        one
        for one in kai_pods.api.list("scheduling.run.ai/v2alpha2", "PodGroup", kai_pods.space)
        if one["spec"]["minMember"] == 2
    ]
    assert group["spec"]["queue"] == kai_pods.queue
    for one in kai_pods.api.list("v1", "Pod", kai_pods.space, label):
        kai_pods.api.delete("v1", "Pod", one["metadata"]["name"], kai_pods.space)
    kai_pods.api.delete("kubeflow.org/v1", "PyTorchJob", "urgent", kai_pods.space)


@pytest.mark.long
def test_a_better_moment_is_waited_for(kai_pods: KaiPods, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--kai")
    for name in NAMES:
        kai_pods.run(name, 4)
        kai_pods.note(name, "CKPT_WRITING", safe=False)
    before = {name: kai_pods.uids(name) for name in NAMES}
    kai_pods.submit("urgent", 4, "build")
    wait_for(lambda: "PreemptionWaits" in kai_pods.reasons(), what="it waits")
    assert kai_pods.held("urgent") == 1
    assert {name: kai_pods.uids(name) for name in NAMES} == before
    wait_for(lambda: kai_pods.note("middle", lost=10) or kai_pods.pods("urgent"), what="it has its GPUs", every_s=2)
    assert kai_pods.evicted_pods() == ["middle"]
    assert {name: kai_pods.uids(name) for name in ("oldest", "newest")} == {
        name: before[name] for name in ("oldest", "newest")
    }


@pytest.mark.long
def test_one_that_fits_is_not_held(kai_pods: KaiPods, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--kai")
    kai_pods.run("oldest", 4, pods=2)
    kai_pods.run("urgent", 4)
    assert "kaiwo.ai/preemption" not in kai_pods.pods("urgent")[0]["metadata"].get("annotations", {})


@pytest.mark.long
def test_who_is_within_the_least_time_of_its_queue_stays(
    kai_pods: KaiPods, controller: Callable[..., Controller]
) -> None:
    """KAI takes nobody of them itself."""
    changes = {"spec": {"preemptMinRuntime": "1h"}}
    kai_pods.api.patch("scheduling.run.ai/v2", "Queue", kai_pods.queue, changes)
    controller("--mode=enforce", "--kai")
    for name in NAMES:
        kai_pods.run(name, 4)
        kai_pods.note(name, lost=10)
    before = {name: kai_pods.uids(name) for name in NAMES}
    kai_pods.submit("urgent", 4, "build")
    wait_for(lambda: "Unschedulable" in str([one["status"] for one in kai_pods.all_pods("urgent")]), what="it waits")
    assert kai_pods.held("urgent") == 0
    assert {name: kai_pods.uids(name) for name in NAMES} == before
    changes = {"spec": {"preemptMinRuntime": "0s"}}
    kai_pods.api.patch("scheduling.run.ai/v2", "Queue", kai_pods.queue, changes)
    wait_for(lambda: kai_pods.pods("urgent"), what="KAI makes room")


@pytest.mark.long
def test_when_the_budget_is_over_kai_goes_by_its_own_rule(
    kai_pods: KaiPods, controller: Callable[..., Controller]
) -> None:
    controller("--mode=enforce", "--kai", "--budget=3s")
    for name in NAMES:
        kai_pods.run(name, 4)
        kai_pods.note(name, "CKPT_WRITING", safe=False)
    kai_pods.submit("urgent", 4, "build")
    wait_for(lambda: kai_pods.pods("urgent"), what="KAI makes room")
    (urgent,) = kai_pods.pods("urgent")
    assert json.loads(urgent["metadata"]["annotations"]["kaiwo.ai/preemption"])["code"] == "BUDGET_SPENT"
    assert kai_pods.evicted_pods() == []


@pytest.mark.long
def test_nobody_there_holds_nobody_and_kopt_off_gives_back_who_is(
    kai_pods: KaiPods, controller: Callable[..., Controller]
) -> None:
    one = controller("--mode=enforce", "--kai")
    for name in NAMES:
        kai_pods.run(name, 4)
        kai_pods.note(name, "CKPT_WRITING", safe=False)
    kai_pods.submit("urgent", 4, "build")
    wait_for(lambda: "PreemptionWaits" in kai_pods.reasons(), what="it waits")
    one.server.kill()
    kai_pods.submit("next", 4, "build")
    wait_for(lambda: kai_pods.pods("next"), what="KAI makes room at once")
    assert kai_pods.held("urgent") == 1
    switch_off(kai_pods.plane)
    wait_for(lambda: kai_pods.pods("urgent"), what="KAI makes room")
    assert kai_pods.evicted_pods() == []
    assert kai_pods.held("urgent") == 0


@pytest.mark.long
def test_it_needs_a_few_rights_more_and_uses_them(
    kai_pods: KaiPods, controller: Callable[..., Controller], helm: Path
) -> None:
    given = [one for one in rendered(helm, enabled=True, kai=True) if one["kind"] in RIGHTS]
    roles = [one for one in given if one["kind"] in ("Role", "ClusterRole")]
    usual = granted(one for one in rendered(helm, enabled=True) if one["kind"] in ("Role", "ClusterRole"))
    kai_pods.plane.apply_crds([CHART / "crds" / "evictions.yaml"])
    kai_pods.api.apply(*given)
    started = datetime.now(UTC)
    try:
        controller("--mode=enforce", "--kai", kubeconfig=kai_pods.plane.kubeconfig_for(ACCOUNT, SYSTEM))
        for name in NAMES:
            kai_pods.run(name, 4)
        kai_pods.note("oldest", lost=50)
        kai_pods.submit("urgent", 4, "build")
        wait_for(lambda: kai_pods.pods("urgent"), what="the urgent job has its GPUs")
        more = granted(roles) - usual
        assert {one[2] for one in more} == {"nodes", "jobs", "pods/eviction", "queues"}
        wait_for(lambda: more <= used(audited(kai_pods.plane, ACCOUNT, started)), what="every right is used")
        seen = audited(kai_pods.plane, ACCOUNT, started)
        assert_refused_nothing(seen)
    finally:
        for one in given:
            kai_pods.api.delete(one["apiVersion"], one["kind"], one["metadata"]["name"], SYSTEM)
