"""A distributed job goes to KAI while KAI holds its Lease, is ganged there and bound, and shares of a GPU are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admission.conftest import Webhooks, running
from admission.workloads import Object, pytorch_job
from controlplane import kai_shares
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kai_shares import CONFIG_MAP, bound
from controlplane.kwok import Kwok
from controlplane.processes import wait_for

from tests.cli.endpoints import shipped_endpoint

GPU = "amd.com/gpu"


@pytest.fixture(scope="module")
def webhooks(control_plane: Any) -> Iterator[Webhooks]:
    control_plane.install_crds("training-operator")
    yield from running(control_plane)


def pods_of(job: Object) -> list[Object]:
    """What the training operator makes of the templates as they are stored: there is none here."""
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    made = []
    for role, replica in job["spec"]["pytorchReplicaSpecs"].items():
        template = replica["template"]
        labels = template["metadata"]["labels"] | {"training.kubeflow.org/replica-type": role.lower()}
        for index in range(replica["replicas"]):
            metadata = {
                "name": f"{job['metadata']['name']}-{role.lower()}-{index}",
                "labels": labels,
                "namespace": job["metadata"]["namespace"],
                "ownerReferences": [owner],
            }
            made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return made


def test_a_distributed_job_is_ganged_and_bound_by_kai(webhooks: Webhooks, kai: Kai, kwok: Kwok) -> None:
    api = webhooks.api
    lease = {"namespace": "kai-scheduler", "name": SCHEDULER}
    with kai.queue() as queue, kwok.nodes(2, gpus=8, resource=GPU) as nodes:
        gang = {"scheduler": SCHEDULER, "framework": "KAI", "minPods": 2, "running": {"lease": lease}}
        webhooks.policy(mode="enforce", framework="KAI", queues={"default": queue}, schedulers={"gang": gang})
        space = webhooks.namespace()
        webhooks.seen(space, lambda one: one["metadata"].get("labels", {}).get(QUEUE_LABEL) == queue)

        def created(name: str, workers: int) -> Object:
            wanted = pytorch_job(name, gpus=8, workers=workers)
            for role in wanted["spec"]["pytorchReplicaSpecs"].values():
                role["template"]["spec"]["nodeSelector"] = dict(nodes.selector)
            return api.create(wanted | {"metadata": {"name": name, "namespace": space}})

        too_big, fits = created("big", workers=2), created("fits", workers=1)
        for job in (too_big, fits):
            assert job["metadata"]["labels"][QUEUE_LABEL] == queue
            for pod in pods_of(job):
                assert pod["spec"]["schedulerName"] == SCHEDULER
                api.create(pod)
        wait_for(lambda: len(api.list("v1", "Pod", space, fields="spec.nodeName!=")) == 2)
        bound = {pod["metadata"]["name"] for pod in api.list("v1", "Pod", space, fields="spec.nodeName!=")}
        assert bound == {"fits-master-0", "fits-worker-0"}
        groups = api.list("scheduling.run.ai/v2alpha2", "PodGroup", space)
        assert sorted(group["spec"]["minMember"] for group in groups) == [2, 3]


H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
MEMORY = {"nvidia.com/gpu.memory": "81559"}
LORA = ["litgpt", "finetune_lora", "microsoft/phi-2", "--precision", "bf16-true"]


@pytest.fixture
def shares(webhooks: Webhooks, kai: Kai, tmp_path: Path) -> Iterator[Webhooks]:
    """A cluster whose KAI has GPU sharing on, and the webhook beside the shipped model."""
    with kai_shares.sharing(webhooks.plane, webhooks.api), shipped_endpoint(tmp_path) as url:
        webhooks.clear()
        webhooks.start("--sizing", url)
        yield webhooks
        webhooks.clear()


def test_pods_of_a_whole_gpu_each_are_bound_by_kai_to_shares_of_one(shares: Webhooks, kai: Kai, kwok: Kwok) -> None:
    api = shares.api
    with kai.queue() as queue, kwok.nodes(1, gpus=1, resource="nvidia.com/gpu", labels=H100 | MEMORY) as nodes:
        sizing = {"minConfidencePercent": 1}
        shares.policy(mode="enforce", framework="KAI", queues={"default": queue}, sizing=sizing)
        space = shares.namespace()

        def created(name: str) -> Object | None:
            container = {"name": "main", "image": "train", "command": LORA}
            container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
            spec = {
                "containers": [container],
                "nodeSelector": dict(nodes.selector) | {"nvidia.com/gpu.product": H100["nvidia.com/gpu.product"]},
            }
            metadata = {"name": name, "namespace": space, "annotations": {CONFIG_MAP: name}}
            made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
            if "gpu-memory" in made["metadata"]["annotations"]:
                return made
            api.delete("v1", "Pod", name, space, gracePeriodSeconds=0)
            return None

        for count, name in enumerate(("first", "second"), 1):
            made = wait_for(lambda name=name: created(name))
            assert made["spec"]["schedulerName"] == SCHEDULER
            assert made["spec"]["containers"][0]["resources"].get("limits", {}) == {}
            assert 5_000 < int(made["metadata"]["annotations"]["gpu-memory"]) < 40_000
            pods = wait_for(lambda count=count: bound(api, space, count), what=f"{name} is bound")
        groups = {pod["metadata"]["labels"]["runai-gpu-group"] for pod in pods}
        assert len(groups) == 1, "both have a share of the only GPU"
