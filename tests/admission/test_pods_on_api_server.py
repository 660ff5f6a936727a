"""Pods before the real API server: what their creation costs it, and what the selectors of their webhooks let by."""

import re

import pytest
from admission.conftest import Webhooks
from admission.submitting import KUEUE, OPT_OUT, SOURCE, labelled, person, placed
from admission.workloads import deployment, pod
from controlplane.api import Refused
from controlplane.processes import wait_for

POLICY = {"mode": "enforce", "queues": {"default": "rest"}, "tracing": {"samplesPerThousand": 0}}


@pytest.fixture
def space(webhooks: Webhooks) -> str:
    webhooks.policy(**POLICY)
    made = webhooks.namespace()
    webhooks.seen(made, labelled)
    return made


def passed_over(webhooks: Webhooks) -> float:
    """How often a condition of ours for pods was evaluated for nothing."""
    text = webhooks.api.http.get("/metrics").text
    lines = re.findall(r"^apiserver_admission_match_condition_exclusions_total\{(.*)\} (\S+)$", text, re.MULTILINE)
    return sum(float(count) for labels, count in lines if ".pods.core.webhook.kaiwo.ai" in labels)


def test_a_pod_that_is_labelled_costs_no_further_condition(webhooks: Webhooks, space: str) -> None:
    replica, before = webhooks.replicas[0], passed_over(webhooks)
    calls = replica.metric("kopt_webhook_requests_total")
    for number in range(5):
        made = webhooks.api.create(placed(pod(f"once-{number}"), space))
        assert made["metadata"]["labels"] == {KUEUE: "rest", SOURCE: "default"}
    webhooks.api.create(placed(pod("named"), space, labels={KUEUE: "mine"}))
    assert passed_over(webhooks) == before
    assert replica.metric("kopt_webhook_requests_total") == calls + 6
    webhooks.api.create(placed(pod("cpu", gpus=0), space))
    assert passed_over(webhooks) > before
    assert replica.metric("kopt_webhook_requests_total") == calls + 6


def test_a_source_without_its_queue_is_labelled_all_the_same(webhooks: Webhooks, space: str) -> None:
    made = webhooks.api.create(placed(pod("copied"), space, labels={SOURCE: "default"}))
    assert made["metadata"]["labels"][KUEUE] == "rest"


def test_no_pod_leaves_its_queue_without_the_right_to(webhooks: Webhooks, space: str) -> None:
    erin, frank = person(webhooks, "erin"), person(webhooks, "frank", bypass=True)
    for labels in ({}, {KUEUE: "mine"}):
        with pytest.raises(Refused, match="erin' may not take workloads out of the queues"):
            erin.create(placed(pod("out"), space, annotations=OPT_OUT, labels=labels))
    erin.create(placed(pod("later"), space))
    with pytest.raises(Refused, match="verb bypass"):
        erin.patch("v1", "Pod", "later", {"metadata": {"annotations": OPT_OUT}}, space)
    # Both labels written by hand hide a pod from the mutating half; it does not get away with it.
    erin.create(placed(pod("hidden"), space, annotations=OPT_OUT, labels={KUEUE: "mine", SOURCE: "default"}))
    leaves = {"metadata": {"labels": {KUEUE: None}}}
    with pytest.raises(Refused, match="may not take workloads out"):
        erin.patch("v1", "Pod", "hidden", leaves, space)
    assert not labelled(frank.patch("v1", "Pod", "hidden", leaves, space))
    assert not labelled(frank.create(placed(pod("out"), space, annotations=OPT_OUT)))
    assert erin.patch("v1", "Pod", "out", {"metadata": {"labels": {"note": "x"}}}, space)


def test_what_only_requests_gpus_never_gets_as_far_as_a_queue(webhooks: Webhooks, space: str) -> None:
    wanted = pod("requests", gpus=0)
    wanted["spec"]["containers"][0]["resources"] = {"requests": {"amd.com/gpu": "1"}}
    with pytest.raises(Refused, match="Limit must be set"):
        webhooks.api.create(placed(wanted, space))


def test_pods_of_a_replica_set_are_judged_unless_a_deployment_has_made_it(webhooks: Webhooks, space: str) -> None:
    api, unseen = webhooks.api, webhooks.namespace(managed=False)
    alone = deployment("alone")
    alone = alone | {"kind": "ReplicaSet", "spec": alone["spec"]}
    for place in (space, unseen):
        for wanted in (alone, deployment("whole")):
            api.create(placed(wanted, place))
        wait_for(lambda where=place: len(api.list("v1", "Pod", where, labels="app=x")) == 2)  # type: ignore[misc]
    made = {one["metadata"]["name"].split("-")[0]: one for one in api.list("v1", "Pod", space, labels="app=x")}
    assert labelled(made["alone"])
    assert not labelled(made["whole"])
    rogue = webhooks.command("audit", "-n", unseen)["rogue"]
    assert {(one["kind"], one["name"].split("-")[0]) for one in rogue} == {("Pod", "alone"), ("Deployment", "whole")}


def test_another_framework_brings_its_own_selectors(webhooks: Webhooks, space: str) -> None:
    try:
        webhooks.policy(**POLICY, framework="KAI")
        queue = "kai.scheduler/queue"
        tried = placed(pod("kai"), space, labels={KUEUE: "mine"})
        wait_for(lambda: queue in webhooks.api.create(tried, dryRun="All")["metadata"]["labels"])
        webhooks.policy(**POLICY, framework="Volcano")
        wait_for(lambda: "annotations" in webhooks.api.create(tried, dryRun="All")["metadata"])
    finally:
        webhooks.policy(**POLICY)
