"""A share of a GPU in the terms of what hands it out in the cluster: by its signs, or as the policy says."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
from admission.conftest import Webhooks
from admission.patching import patched
from admission.workloads import Object, job, pod, review
from controlplane import build
from controlplane.kai import SCHEDULER
from controlplane.processes import wait_for

from kopt.cluster.admission.review import parse_review
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.core.workload.executor import Executor
from tests.cli.endpoints import shipped_endpoint

GIB = 1 << 30
GPU = "nvidia.com/gpu"
QUEUE = "kai.scheduler/queue"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
LORA = ["litgpt", "finetune_lora", "microsoft/phi-2", "--precision", "bf16-true"]
ANSWER = {
    "memory": {"peak_bytes": 6 * GIB, "low_bytes": 5 * GIB, "high_bytes": 8 * GIB, "probability": 0.95},
    "model": {"name": "sizing", "version": "7"},
    "gpu": "H100",
}


class Endpoint:
    """Answers every question alike and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    async def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(body)
        return ANSWER


async def admit(
    workload: Object, shares: Executor, mode: str = "enforce", framework: str = "KAI", stated: str = ""
) -> tuple[Object, Endpoint]:
    """The workload as it is let in, twice: another webhook may have changed it in between."""
    spec = {"mode": mode, "framework": framework, "queues": {"default": "team"}, "tracing": {"samplesPerThousand": 0}}
    sizing = {"sizing": {"executor": stated}} if stated else {}
    policy = parse_policy({"metadata": {"name": "default"}, "spec": spec | sizing})
    endpoint = Endpoint()
    admissions = Admissions(FixedState(policy, shares=shares), SizingCache(endpoint.ask))
    admission = await admissions.mutate(parse_review(orjson.dumps(review(workload))))
    once = patched(workload, admission.answer.patch)
    again = await admissions.mutate(parse_review(orjson.dumps(review(once))))
    assert patched(once, again.answer.patch)["spec"] == once["spec"]
    return once, endpoint


def whole(**fields: Any) -> Object:
    made = pod("one", **fields)
    made["spec"]["containers"][0]["resources"]["limits"] = {GPU: "1", "cpu": "4"}
    return made


def limits_of(workload: Object) -> Object:
    return dict(workload["spec"]["containers"][-1]["resources"]["limits"])


async def test_kai_is_asked_by_annotation_through_its_scheduler_and_queue() -> None:
    admitted, endpoint = await admit(whole(), Executor.KAI)
    notes = admitted["metadata"]["annotations"]
    assert (notes["gpu-memory"], notes["kaiwo.ai/gpu-memory"], notes["kaiwo.ai/requested-gpus"]) == (
        "8192",
        "8192",
        "1",
    )
    assert limits_of(admitted) == {"cpu": "4"}
    assert admitted["spec"]["schedulerName"] == SCHEDULER
    assert admitted["metadata"]["labels"][QUEUE] == "team"
    assert "8.0 GiB are 0.15 of one H100" in notes["kaiwo.ai/recommended-reason"]
    assert endpoint.asked[0]["executor"] == "kai"


async def test_the_share_is_of_the_container_with_the_gpu() -> None:
    workload = whole()
    workload["spec"]["containers"].insert(0, {"name": "log", "image": "log"})
    admitted, _ = await admit(workload, Executor.KAI)
    assert admitted["metadata"]["annotations"]["gpu-fraction-container-name"] == "main"


async def test_hami_and_volcano_are_asked_by_limits_of_the_container() -> None:
    admitted, _ = await admit(whole(), Executor.HAMI)
    assert limits_of(admitted) == {GPU: "1", "nvidia.com/gpumem": "8192", "cpu": "4"}
    assert "schedulerName" not in admitted["spec"]
    admitted, _ = await admit(whole(), Executor.VOLCANO, framework="Volcano")
    assert limits_of(admitted) == {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "8192", "cpu": "4"}
    assert admitted["spec"]["schedulerName"] == "volcano"


async def test_each_template_of_a_workload_asks_by_itself() -> None:
    workload = job("one", pods=2)
    template = workload["spec"]["template"]
    template["spec"]["containers"][0]["resources"]["limits"] = {GPU: "1"}
    admitted, _ = await admit(workload, Executor.KAI)
    template = admitted["spec"]["template"]
    assert template["metadata"]["annotations"]["gpu-memory"] == "8192"
    assert template["metadata"]["labels"][QUEUE] == "team"
    assert template["spec"]["schedulerName"] == SCHEDULER


async def test_a_fraction_of_kais_becomes_memory() -> None:
    workload = whole(schedulerName=SCHEDULER)
    workload["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    del workload["spec"]["containers"][0]["resources"]["limits"][GPU]
    admitted, _ = await admit(workload, Executor.UNKNOWN)
    notes = admitted["metadata"]["annotations"]
    assert ("gpu-fraction" in notes, notes["gpu-memory"]) == (False, "8192")


async def test_what_asks_hami_for_memory_is_given_what_it_needs() -> None:
    workload = whole()
    workload["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "40000"
    admitted, _ = await admit(workload, Executor.UNKNOWN)
    assert limits_of(admitted) == {GPU: "1", "nvidia.com/gpumem": "8192", "cpu": "4"}


@pytest.mark.parametrize(
    ("shares", "mode", "framework", "fields"),
    [
        (Executor.NONE, "enforce", "KAI", {}),
        (Executor.UNKNOWN, "enforce", "KAI", {}),
        (Executor.KAI, "annotate", "KAI", {}),
        (Executor.KAI, "observe", "KAI", {}),
        # Kueue's quota counts no shares, and another scheduler hands out none of KAI's.
        (Executor.HAMI, "enforce", "Kueue", {}),
        (Executor.KAI, "enforce", "KAI", {"schedulerName": "other"}),
    ],
)
async def test_else_it_keeps_its_gpu(shares: Executor, mode: str, framework: str, fields: Object) -> None:
    admitted, _ = await admit(whole(**fields), shares, mode, framework)
    assert limits_of(admitted) == {GPU: "1", "cpu": "4"}
    notes = admitted["metadata"].get("annotations", {})
    assert "gpu-memory" not in notes
    assert "kaiwo.ai/gpu-memory" not in notes
    if mode == "enforce" and shares is not Executor.UNKNOWN:
        assert "nothing hands this pod a share" in notes["kaiwo.ai/recommended-reason"]


async def test_the_policy_says_it_where_the_signs_are_not_to_be_read() -> None:
    admitted, _ = await admit(whole(), Executor.KAI, stated="None")
    assert limits_of(admitted) == {GPU: "1", "cpu": "4"}
    admitted, _ = await admit(whole(), Executor.NONE, stated="HAMi")
    assert limits_of(admitted)["nvidia.com/gpumem"] == "8192"


_numbers = itertools.count()
SIGNS = {
    Executor.HAMI: {"metadata": {"annotations": {"hami.io/node-nvidia-register": '[{"id":"GPU-1","devmem":81920}]'}}},
    Executor.VOLCANO: {"status": {"allocatable": {"volcano.sh/vgpu-memory": "81559", "volcano.sh/vgpu-number": "10"}}},
}


@pytest.fixture(scope="module")
def sized(webhooks: Webhooks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhooks]:
    folder = build.manifests("kai") / "deployments" / "kai-scheduler" / "crds"
    webhooks.plane.apply_crds([folder / "kai.scheduler_configs.yaml", folder / "scheduling.run.ai_queues.yaml"])
    with shipped_endpoint(tmp_path_factory.mktemp("endpoint")) as url:
        webhooks.clear()
        webhooks.start("--sizing", url)
        yield webhooks


def enforcing(webhooks: Webhooks, framework: str, queue: str = "") -> str:
    sizing = {"minConfidencePercent": 1}
    queues = {"default": queue} if queue else {}
    webhooks.policy(mode="enforce", framework=framework, queues=queues, sizing=sizing)
    return webhooks.namespace()


def created(webhooks: Webhooks, space: str, name: str) -> Object:
    workload = whole(nodeSelector=H100)
    workload["metadata"] = {"name": name, "namespace": space}
    workload["spec"]["containers"][0]["command"] = LORA
    return webhooks.api.create(workload)


def until(webhooks: Webhooks, space: str, check: Any) -> Object:
    """The first of pods that are as ``check`` wants: signs, and the first question, take a moment."""

    def tried() -> Object | None:
        made = created(webhooks, space, f"one-{next(_numbers)}")
        return made if check(made) else None

    return wait_for(tried)


@pytest.mark.parametrize(
    "executor",
    [Executor.HAMI, *(pytest.param(each, marks=pytest.mark.long) for each in SIGNS if each is not Executor.HAMI)],
)
def test_the_server_stores_the_terms_of_what_its_nodes_show(sized: Webhooks, executor: Executor) -> None:
    space, api = enforcing(sized, "Volcano", "team"), sized.api
    before = until(sized, space, lambda made: "kaiwo.ai/recommended-memory" in made["metadata"].get("annotations", {}))
    assert limits_of(before) == {GPU: "1", "cpu": "4"}
    assert "nothing hands this pod a share" in before["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
    node = copy.deepcopy(SIGNS[executor]) | {"apiVersion": "v1", "kind": "Node"}
    node["metadata"] = node.get("metadata", {}) | {"name": f"sign-{executor.value}"}
    api.create(node)
    try:
        memory = "nvidia.com/gpumem" if executor is Executor.HAMI else "volcano.sh/vgpu-memory"
        after = until(sized, space, lambda made: memory in limits_of(made))
    finally:
        api.delete("v1", "Node", node["metadata"]["name"])
    recommended = after["metadata"]["annotations"]["kaiwo.ai/recommended-memory"]
    assert limits_of(after)[memory] == recommended == after["metadata"]["annotations"]["kaiwo.ai/gpu-memory"]
