"""Fractions asked for in our words, given by KAI on one GPU: two halves run, and what is beyond the GPU waits."""

from collections.abc import Iterator
from typing import Any

import pytest
from admission.conftest import Webhooks
from controlplane import kai_shares
from controlplane.api import Refused
from controlplane.kai import SCHEDULER, Kai
from controlplane.kai_shares import CONFIG_MAP, bound
from controlplane.kwok import Kwok
from controlplane.processes import wait_for

Object = dict[str, Any]
LABELS = {"nvidia.com/gpu.memory": "81559"}


@pytest.fixture
def sharing(webhooks: Webhooks) -> Iterator[Webhooks]:
    with kai_shares.sharing(webhooks.plane, webhooks.api):
        webhooks.clear()
        webhooks.start()
        yield webhooks
        webhooks.clear()


def test_two_halves_share_a_gpu_and_a_quarter_more_waits(sharing: Webhooks, kai: Kai, kwok: Kwok) -> None:
    api = sharing.api
    with kai.queue() as queue, kwok.nodes(1, gpus=1, resource="nvidia.com/gpu", labels=LABELS) as nodes:
        sharing.policy(mode="enforce", framework="KAI", queues={"default": queue})
        space = sharing.namespace()

        def created(name: str, fraction: str) -> None:
            container = {"name": "main", "image": "serve", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            annotations = {CONFIG_MAP: name, "kaiwo.ai/gpu-fraction": fraction}
            metadata = {"name": name, "namespace": space, "annotations": annotations}
            spec = {"containers": [container], "nodeSelector": dict(nodes.selector)}
            made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
            assert made["metadata"]["annotations"]["gpu-fraction"] == fraction
            assert made["metadata"]["annotations"]["kaiwo.ai/gpu-executor"] == "kai"
            assert made["spec"]["schedulerName"] == SCHEDULER
            assert made["spec"]["containers"][0]["resources"].get("limits", {}) == {}

        known(sharing, space, nodes.selector)
        for count, name in enumerate(("first", "second"), 1):
            created(name, "0.5")
            pods = wait_for(lambda count=count: bound(api, space, count), what=f"{name} is bound")
        groups = {pod["metadata"]["labels"]["runai-gpu-group"] for pod in pods}
        assert len(groups) == 1, "both have a share of the only GPU"
        created("third", "0.25")
        waiting = api.wait("v1", "Pod", "third", unscheduled, space)
        assert "nodeName" not in waiting["spec"]
        for name in ("first", "second", "third"):
            api.delete("v1", "Pod", name, space, gracePeriodSeconds=0)


def test_halves_of_two_gpus_are_of_different_ones(sharing: Webhooks, kai: Kai, kwok: Kwok) -> None:
    api = sharing.api
    with kai.queue(gpus=2) as queue, kwok.nodes(1, gpus=2, resource="nvidia.com/gpu", labels=LABELS) as nodes:
        sharing.policy(mode="enforce", framework="KAI", queues={"default": queue})
        space = sharing.namespace()
        known(sharing, space, nodes.selector)
        annotations = {CONFIG_MAP: "both", "kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-count": "2"}
        container = {"name": "main", "image": "serve", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
        metadata = {"name": "both", "namespace": space, "annotations": annotations}
        spec = {"containers": [container], "nodeSelector": dict(nodes.selector)}
        made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        assert made["metadata"]["annotations"]["gpu-fraction-num-devices"] == "2"
        (pod,) = wait_for(lambda: bound(api, space, 1), what="both halves are given")
        groups = {name for name in pod["metadata"]["labels"] if name.startswith("runai-gpu-group/")}
        assert len(groups) == 2, "a group is a GPU"
        api.delete("v1", "Pod", "both", space, gracePeriodSeconds=0)


def unscheduled(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(item["type"] == "PodScheduled" and item["status"] == "False" for item in conditions)


def known(webhooks: Webhooks, space: str, selector: dict[str, str]) -> None:
    """Until the webhook has seen KAI's configuration and the node."""
    metadata = {"name": "probe", "namespace": space, "annotations": {"kaiwo.ai/gpu-fraction": "0.5"}}
    spec = {"containers": [{"name": "main", "image": "serve"}], "nodeSelector": dict(selector)}

    def tried() -> bool:
        try:
            made = webhooks.api.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, dryRun="All"
            )
        except Refused:
            return False
        return "kaiwo.ai/gpu-executor" in made["metadata"]["annotations"]

    wait_for(tried)
