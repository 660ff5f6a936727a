"""One question, asked of the endpoint, the command line, the pages and the webhook: they give one advice."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, review
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.controllers.overview.running_workloads import pods_of
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.executor import Executor
from kopt.dashboard.pages.sizes.data import Sizes
from kopt.dashboard.pages.sizes.view import Card, recommendations
from kopt.models.sizing import estimate as sizing
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.size_advice import SizeAdvice, saved_together
from kopt.tracing.trace import Traced
from tests.cli.endpoints import shipped_endpoint

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
LORA = "litgpt finetune_lora microsoft/phi-2 --precision bf16-true"
MEGATRON = (
    "pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 16 --bf16"
)


@dataclass(frozen=True)
class Question:
    """What a pod runs and asks for, and what it should be advised: GPUs, or none."""

    command: str
    gpus: int = 1
    memory_mib: int | None = None
    advised: int | None = 1
    kai_fraction: str = ""
    """KAI's own annotation, on a pod of its scheduler."""

    def pod(self, name: str) -> Object:
        container = {
            "name": "main",
            "image": "registry/train:1",
            "command": shlex.split(self.command),
            "resources": {"limits": {"nvidia.com/gpu": str(self.gpus)}} if self.memory_mib is None else {},
        }
        annotations = {} if self.memory_mib is None else {"kaiwo.ai/gpu-memory": str(self.memory_mib)}
        spec: Object = {"containers": [container], "nodeSelector": H100}
        if self.kai_fraction:
            container["resources"], annotations = {}, {"gpu-fraction": self.kai_fraction}
            spec["schedulerName"] = "kai-scheduler"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "research", "annotations": annotations},
            "spec": spec,
        }


QUESTIONS = {
    "a-share-of-one": Question(LORA),
    "a-fraction-of-kais": Question(LORA, kai_fraction="0.9"),
    "arguments-decide": Question(f"{LORA} --devices 1", gpus=8),
    "an-engine-of-two": Question("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2", gpus=4, advised=2),
    "a-launcher-of-two": Question(f"torchrun --nproc-per-node 2 {MEGATRON}", gpus=4, advised=2),
    "nodes-of-two": Question(f"torchrun --nnodes 2 --nproc-per-node 2 {MEGATRON}", gpus=4, advised=2),
    "more-processes-than-gpus": Question(f"torchrun --nproc-per-node 8 {MEGATRON}", gpus=4, advised=4),
    "a-launchers-default": Question(f"torchrun {MEGATRON}", gpus=4, advised=4),
    "two-programs": Question(f"bash -c 'python prepare.py && {LORA}'", gpus=4, advised=4),
    "too-much-memory": Question(LORA, memory_mib=70_000),
    "too-little-memory": Question(LORA, memory_mib=500),
    "unknown": Question("python train.py", gpus=2, advised=None),
    "no-gpu-holds-it": Question(
        "litgpt finetune_full meta-llama/Llama-2-70b-hf --devices 1 --precision bf16-true", gpus=8, advised=None
    ),
}
EXECUTED = "a-launcher-of-two"
"""The question whose script the command line tries to execute."""
every_question = pytest.mark.parametrize("name", QUESTIONS)


@dataclass(frozen=True)
class Surfaces:
    """Where the endpoint is, and a folder for manifests."""

    url: str
    folder: Path

    def endpoint(self, name: str, executor: Executor = Executor.UNKNOWN) -> Any:
        known = {} if executor is Executor.UNKNOWN else {"executor": executor.value}
        with PredictionClient(self.url, deadline_s=30.0) as client:
            return client.sizing({"workload": QUESTIONS[name].pod(name), "name": name, **known})

    def estimate(self, name: str) -> Any:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(QUESTIONS[name].pod(name)))
        with pytest.MonkeyPatch.context() as patch:
            if name != EXECUTED:
                # As if it had been executed, which takes seconds: the script is not there.
                patch.setattr(sizing, "trace_script", lambda *_, **__: Traced(None, "there is no such file"))
            return json.loads(CliRunner().invoke(app, ["estimate", str(path), "-o", "json"]).stdout)

    def sizes(self) -> tuple[SizeAdvice, ...]:
        with PredictionClient(self.url, deadline_s=30.0) as client:
            return tuple(client.sizes())

    def recommended(self) -> Any:
        document = json.loads(CliRunner().invoke(app, ["recommend", "-o", "json"]).stdout)
        return {row["name"]: row for row in document["recommendations"]}

    def cards(self) -> dict[str, Card]:
        return {card.advice.name: card for card in recommendations(Sizes(self.sizes())).cards}

    async def admitted(self, name: str, executor: Executor = Executor.UNKNOWN) -> Object:
        """The pod as the webhook lets it in, in the mode enforce."""
        spec = {"mode": "enforce", "queues": {"default": "main"}, "sizing": {"minConfidencePercent": 1}}
        framework = {} if executor is Executor.UNKNOWN else {"framework": "KAI"}
        policy = parse_policy({"metadata": {"name": "default"}, "spec": spec | framework})
        pod = QUESTIONS[name].pod(name)
        async with AsyncPredictionClient(self.url, deadline_s=30.0) as client:
            sizes = SizingCache(client.sizing)
            state = FixedState(policy, shares=executor)
            admission = await Admissions(state, sizes).mutate(parse_review(orjson.dumps(review(pod))))
            await sizes.close()
        return patched(pod, admission.answer.patch)


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfaces]:
    home = tmp_path_factory.mktemp("home")
    with shipped_endpoint(home / "endpoint") as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOPT_URL", url)
        patch.setenv("KOPT_HOME", str(home))
        yield Surfaces(url, home)


@pytest.mark.usefixtures("compiled_before")
@every_question
def test_the_command_line_estimates_what_the_endpoint_answers(surfaces: Surfaces, name: str) -> None:
    answer, estimate = surfaces.endpoint(name), surfaces.estimate(name)
    assert estimate["recommendation"] == answer["recommendation"]
    assert [estimate["memory"][bound] for bound in ("low_bytes", "high_bytes")] == [
        answer["memory"][bound] for bound in ("low_bytes", "high_bytes")
    ]
    advised = QUESTIONS[name].advised
    assert answer["recommendation"]["count"] == (advised or 0)
    assert (answer["recommendation"]["kind"] == "none") == (advised is None)


@every_question
def test_a_row_of_recommend_is_the_card_of_the_page_and_what_runs(surfaces: Surfaces, name: str) -> None:
    answer = surfaces.endpoint(name)
    row, card = surfaces.recommended()[name], surfaces.cards()[name]
    share = answer["recommendation"]
    assert {key: row[key] for key in ("kind", "bytes", "milli_gpu", "count")} == {
        key: share[key] for key in ("kind", "bytes", "milli_gpu", "count")
    }
    assert json.loads(card.patch or "null") == row["patch"]
    assert card.advice.saved_milli_gpu == row["saved_milli_gpu"]
    kind = BY_KEY["", "Pod"]
    (pods,) = pods_of(QUESTIONS[name].pod(name), kind, kind.resource)
    running = pods.advice(answer, 0.0)
    assert (running.advised, running.saved_milli_gpu) == (card.needed, row["saved_milli_gpu"])
    assert running.patch() == row["patch"]
    if QUESTIONS[name].advised is None:
        assert (row["patch"], row["saved_milli_gpu"], pods.patch(running)) == (None, None, None)
        assert card.advice.why_no_advice.startswith("Nothing is advised, as ")
        assert card.advice.why_no_advice in {reason["message"] for reason in answer["reasons"]}


@every_question
async def test_the_webhook_makes_a_pod_ask_for_what_is_advised(surfaces: Surfaces, name: str) -> None:
    question, answer = QUESTIONS[name], surfaces.endpoint(name)
    row, pod = surfaces.recommended()[name], await surfaces.admitted(name)
    annotations = pod["metadata"]["annotations"]
    asked = pod["spec"]["containers"][0]["resources"].get("limits", {}).get("nvidia.com/gpu")
    if question.advised is None:
        assert not [key for key in annotations if key.startswith("kaiwo.ai/recommended")]
        assert asked == str(question.gpus)
        return
    assert int(annotations["kaiwo.ai/recommended-memory"]) << 20 == answer["recommendation"]["bytes"]
    if question.memory_mib is not None or question.kai_fraction:
        assert annotations["kaiwo.ai/gpu-memory"] == row["patch"]["metadata"]["annotations"]["kaiwo.ai/gpu-memory"]
    else:
        # No share, as nothing says who would share the GPU; the GPUs are those that are advised.
        assert asked == str(question.advised)
        assert -(-(row["asked_milli_gpu"] - row["saved_milli_gpu"]) // WHOLE_GPU) == question.advised


SHARES = ("a-share-of-one", "arguments-decide", "too-much-memory", "too-little-memory", "a-fraction-of-kais")
HELD_IN = {
    Executor.KAI: ("metadata", "annotations", "gpu-memory"),
    Executor.HAMI: ("resources", "limits", "nvidia.com/gpumem"),
    Executor.VOLCANO: ("resources", "limits", "volcano.sh/vgpu-memory"),
}
"""Where a patch says MiB in each executor's terms."""


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("executor", HELD_IN)
async def test_everyone_says_a_share_in_the_terms_of_what_hands_it_out(
    surfaces: Surfaces, name: str, executor: Executor
) -> None:
    # A pod that asks in KAI's terms stays KAI's.
    executor = Executor.KAI if QUESTIONS[name].kai_fraction else executor
    answer = surfaces.endpoint(name, executor)
    assert answer["recommendation"]["executor"] == executor.value
    row, card = surfaces.recommended()[name], surfaces.cards()[name]
    part, kind, resource = HELD_IN[executor]
    mib = row["patch"][part][kind][resource]
    assert int(mib) << 20 >= answer["memory"]["low_bytes"]
    assert row["patch"]["metadata"]["annotations"]["kaiwo.ai/gpu-memory"] == mib
    assert json.loads(card.patch) == row["patch"]
    pod = QUESTIONS[name].pod(name)
    pod["metadata"]["labels"] = {"kai.scheduler/queue": "main"}
    document, kind_of_pod = pod, BY_KEY["", "Pod"]
    (pods,) = pods_of(document, kind_of_pod, kind_of_pod.resource)
    pods = replace(pods, in_cluster=executor)
    running = pods.advice(answer, 0.0)
    assert (running.patch(), running.saved_milli_gpu) == (row["patch"], row["saved_milli_gpu"])
    change = pods.patch(running)
    assert change is not None
    for made in (change.after, await surfaces.admitted(name, executor)):
        resources = made["spec"]["containers"][0]["resources"]
        found = made["metadata"] if part == "metadata" else resources
        assert found[kind][resource] == mib
        assert "gpu-fraction" not in made["metadata"]["annotations"]


@pytest.mark.parametrize("name", [name for name in SHARES if name != "a-fraction-of-kais"])
async def test_without_an_executor_nobody_says_or_counts_a_share(surfaces: Surfaces, name: str) -> None:
    answer = surfaces.endpoint(name, Executor.NONE)
    row, card = surfaces.recommended()[name], surfaces.cards()[name]
    assert "gpu-memory" not in json.dumps(row["patch"])
    assert card.advice.saved_milli_gpu == row["saved_milli_gpu"]
    kind = BY_KEY["", "Pod"]
    (pods,) = pods_of(QUESTIONS[name].pod(name), kind, kind.resource)
    running = replace(pods, in_cluster=Executor.NONE).advice(answer, 0.0)
    assert (running.patch(), running.saved_milli_gpu) == (row["patch"], row["saved_milli_gpu"])
    before, after = QUESTIONS[name].pod(name), await surfaces.admitted(name, Executor.NONE)
    if name == "arguments-decide":
        # Whole GPUs that no process uses are given back all the same.
        assert (row["saved_milli_gpu"], row["patch"]) == (7000, {"resources": {"limits": {"nvidia.com/gpu": "1"}}})
    else:
        assert row["saved_milli_gpu"] <= 0
        assert after["spec"]["containers"] == before["spec"]["containers"]
        assert name == "too-little-memory" or "NO_EXECUTOR" in {reason["code"] for reason in answer["reasons"]}


def test_without_a_cluster_it_is_said_that_a_share_depends_on_one(surfaces: Surfaces) -> None:
    for answer in (surfaces.endpoint("a-share-of-one"), surfaces.estimate("a-share-of-one")):
        assert answer["recommendation"]["executor"] == "unknown"
        assert answer["recommendation"]["milli_gpu"] < 1000
        (why,) = [reason for reason in answer["reasons"] if reason["code"] == "FITS_FRACTION"]
        assert "depends on the cluster's executor" in why["message"]
    assert surfaces.cards()["a-share-of-one"].needed.endswith("GiB), if the cluster hands out shares")
    assert "of them only if the cluster hands out shares" in CliRunner().invoke(app, ["recommend"]).output


def test_the_total_is_the_same_on_the_page_and_on_the_command_line(surfaces: Surfaces) -> None:
    for name in QUESTIONS:
        surfaces.endpoint(name)
    rows = surfaces.recommended().values()
    total = saved_together(row["saved_milli_gpu"] for row in rows)
    assert any((row["saved_milli_gpu"] or 0) < 0 for row in rows), "one needs more than it asks for"
    assert total > 0
    assert recommendations(Sizes(surfaces.sizes())).saved == f"{round(total / 1000, 2):g} GPUs"
    assert f"Together they could give back {total / 1000:g} GPUs." in CliRunner().invoke(app, ["recommend"]).output
