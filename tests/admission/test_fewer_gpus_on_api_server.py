"""Whole GPUs without a process, through the real API server, the shipped model and the webhook's own process (K3)."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from admission.conftest import Webhooks
from admission.submitting import placed
from admission.test_fewer_gpus import WORKLOADS, templates_of
from admission.workloads import Object
from controlplane.processes import wait_for

from tests.cli.endpoints import shipped_endpoint

COMMAND = ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--tensor-parallel-size", "2")
GPU = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


@pytest.fixture(scope="module")
def sized(webhooks: Webhooks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhooks]:
    webhooks.plane.install_crds("jobset", "training-operator", "kuberay")
    with shipped_endpoint(tmp_path_factory.mktemp("endpoint")) as url:
        webhooks.clear()
        webhooks.start("--sizing", url)
        webhooks.policy(mode="enforce", queues={"default": "rest"}, sizing={"minConfidencePercent": 1})
        yield webhooks


def serves(kind: str) -> Object:
    """The workload, each of its pods with four GPUs and an engine of two processes."""
    workload = copy.deepcopy(WORKLOADS[kind])
    for template in templates_of(workload):
        (container,) = template["spec"]["containers"]
        amounts = {"nvidia.com/gpu": "4"}
        container |= {"command": list(COMMAND), "resources": {"limits": amounts, "requests": amounts}}
        template["spec"]["nodeSelector"] = GPU
    return workload


@pytest.mark.parametrize("kind", WORKLOADS)
def test_the_server_stores_a_gpu_for_each_process(sized: Webhooks, kind: str) -> None:
    space, numbers = sized.namespace(), itertools.count()

    def created() -> Any:
        # The first question warms the model, and may take longer than a pod waits.
        workload = placed(serves(kind), space)
        workload["metadata"]["name"] = f"one-{next(numbers)}"
        made = sized.api.create(workload)
        resources = [template["spec"]["containers"][0]["resources"] for template in templates_of(made)]
        amounts = {part[name] for item in resources for part in item.values() for name in part}
        return made if amounts == {"2"} else None

    made = wait_for(created)
    for template in templates_of(made):
        assert template["metadata"]["annotations"]["kaiwo.ai/requested-gpus"] == "4"
    assert (
        "Its 2 processes have a GPU each; it asks for 4 GPUs."
        in made["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
    )
