"""Our webhooks before Kueue's: an unlabelled GPU Job is queued, admitted by quota and bound."""

from collections.abc import Iterator
from typing import Any

import pytest
from admission.conftest import Webhooks, running
from admission.workloads import deployment, job, pod, pod_spec
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.processes import wait_for

QUEUE = "kueue.x-k8s.io/queue-name"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def webhooks(control_plane: Any, kueue: Kueue) -> Iterator[Webhooks]:
    yield from running(control_plane)


def test_an_unlabelled_gpu_job_is_admitted_by_kueue_and_bound(webhooks: Webhooks, kueue: Kueue, kwok: Kwok) -> None:
    api = webhooks.api
    webhooks.policy(mode="enforce", queues={"default": "gpus"})
    space = webhooks.namespace()
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 8, "cpu": 100}):
        webhooks.seen(space, lambda one: QUEUE in one["metadata"].get("labels", {}))
        wanted = job("train", gpus=6, resource=GPU, nodeSelector=dict(nodes.selector))
        made = api.create(wanted | {"metadata": {"name": "train", "namespace": space}})
        assert made["metadata"]["labels"][QUEUE] == "gpus"
        assert made["spec"]["suspend"] is True, "Kueue's webhook did not see the label"
        wait_for(lambda: admitted(workload_of(webhooks.plane, made)))
        wait_for(lambda: api.list("v1", "Pod", space, fields="status.phase=Running"))
        lone = pod("lone", gpus=4, resource=GPU, nodeSelector=dict(nodes.selector))
        held = api.create(lone | {"metadata": {"name": "lone", "namespace": space}})
        assert held["metadata"]["labels"][QUEUE] == "gpus"
        assert {"name": "kueue.x-k8s.io/admission"} in held["spec"]["schedulingGates"]


def test_a_queue_is_written_once_it_exists(webhooks: Webhooks, kueue: Kueue) -> None:
    rule = {"name": "system:masters", "queue": "absent"}
    webhooks.policy(mode="annotate", queues={"groups": [rule], "default": "gpus"})
    space = webhooks.namespace()
    with kueue.queue(space, {GPU: 8, "cpu": 100}):
        made = webhooks.seen(space, lambda one: QUEUE in one["metadata"].get("labels", {}))
        assert made["metadata"]["labels"][QUEUE] == "gpus"
        found = webhooks.api.get("kueue.x-k8s.io/v1beta1", "LocalQueue", "gpus", space)
        webhooks.api.create(
            {
                "apiVersion": found["apiVersion"],
                "kind": "LocalQueue",
                "spec": found["spec"],
                "metadata": {"name": "absent", "namespace": space},
            }
        )
        webhooks.seen(space, lambda one: one["metadata"]["labels"][QUEUE] == "absent")


def test_what_runs_without_a_queue_can_still_be_changed(webhooks: Webhooks, kueue: Kueue, kwok: Kwok) -> None:
    api = webhooks.api
    webhooks.policy(mode="annotate", queues={"default": "gpus"})
    space = webhooks.namespace(managed=False)
    with kwok.nodes(1, gpus=8) as nodes, kueue.queue(space, {GPU: 8, "cpu": 100}):
        wanted = deployment("old")
        wanted["spec"]["template"]["spec"] |= pod_spec(
            2, GPU, nodeSelector=dict(nodes.selector), restartPolicy="Always"
        )
        api.create(wanted | {"metadata": {"name": "old", "namespace": space}})
        api.wait("apps/v1", "Deployment", "old", lambda one: one["status"].get("readyReplicas") == 1, space)
        api.namespace(space, {"kaiwo.ai/managed": "true"})
        webhooks.seen(space, lambda one: QUEUE in one["metadata"].get("labels", {}))
        changed = api.patch("apps/v1", "Deployment", "old", {"spec": {"replicas": 2}}, space)
        assert QUEUE not in changed["metadata"].get("labels", {})
        listed = webhooks.command("audit", "-n", space)["rogue"]
        assert [(one["kind"], one["queue"]) for one in listed] == [("Deployment", "gpus")]
