"""``/v1/sizing`` with the shipped model: formulas at once, traces and dry runs kept, hostile questions refused."""

import asyncio
import copy
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from kopt.cluster.workloads.memory_need import parse_need
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.core.units import GIB, Bytes
from kopt.core.workload.sizing import MemoryBreakdown, Method, ShareKind, TraceCoverage
from kopt.models.registry.registry import RegisteredModel, RegistryError
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.estimate import load_sizing
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.trace_summary import read_summary, summary
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.contract.model_answers import parse_models
from kopt.serving.contract.recommendation_answers import RecommendationsResponse, parse_recommendations
from kopt.serving.contract.sizing_answers import SizingResponse
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.http.deadline import Deadline
from kopt.serving.sizing.service import SizingService, sizing_slot
from kopt.serving.sizing.table import SizeTable, StoredEvidence
from tests.serving.conftest import URL, MemorySource, StandInModel, no_store

MEGATRON = (
    "torchrun --nproc-per-node 1 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 4 --bf16"
)
SCRIPT = "import torch\nmodel = torch.nn.Linear(4096, 4096).cuda()\n"
CODE = CodeEstimate(
    Method.ABSTRACT,
    TraceCoverage.FULL,
    Bytes(4 * GIB),
    Bytes(5 * GIB),
    MemoryBreakdown(Bytes(GIB), Bytes(GIB), Bytes(2 * GIB)),
    {"parameter_bytes": 30.0, "torch": 215.0},
    steps=3,
)
PROFILE = {
    "schema": "kopt/v1",
    "gpu": "A100-SXM4-80GB",
    "peak_bytes": 9 * GIB,
    "duration_s": 120.0,
    "samples": 120,
    "steady": True,
    "steps": 200,
}


@pytest.fixture(scope="session")
def shipped() -> SizingPredictor:
    return load_sizing("shipped")


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path, shipped: SizingPredictor) -> Iterator[Endpoint]:
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"sizing": lambda: shipped})
    built = assemble(Settings(home=tmp_path), parts)
    built.start()
    built.service(SizingService).refresh()
    yield built
    built.stop()


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as client:
        yield client


def pod(*command: str, **more: Any) -> dict[str, Any]:
    """A pod template, as the webhook sends it."""
    container = {
        "name": "main",
        "image": "registry/train:1",
        "command": list(command),
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"metadata": {"annotations": {}}, "spec": {"containers": [container | more]}}


async def ask(http: httpx.AsyncClient, workload: Any, **more: Any) -> dict[str, Any]:
    reply = await http.post("/v1/sizing", json={"workload": workload, "profile": None, "gpu": None, **more})
    assert reply.status_code == 200, reply.text
    TypeAdapter(SizingResponse).validate_json(reply.content, strict=True, extra="forbid")
    document: dict[str, Any] = reply.json()
    return document


def codes(document: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in document["reasons"]}


async def test_formulas_answer_at_once_and_say_that_nothing_ran(http: httpx.AsyncClient) -> None:
    found = await ask(http, MEGATRON, gpu="h100")
    assert found["method"] == "analytic"
    assert found["memory"]["low_bytes"] < found["memory"]["peak_bytes"] < found["memory"]["high_bytes"]
    assert found["memory"]["peak_bytes"] > 3 * GIB, "0.35 billion parameters with Adam"
    assert found["gpu"].startswith("H100")
    assert "NOT_RUN" in codes(found)


async def test_a_template_of_the_webhook_is_answered_for_the_gpu_it_selects(http: httpx.AsyncClient) -> None:
    template = pod(*MEGATRON.split())
    template["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    found = await ask(http, template)
    assert found["gpu"].startswith("H100")
    need = parse_need(found)
    assert need is not None
    assert need.prediction.high == found["memory"]["high_bytes"]


async def test_an_unknown_script_gets_no_advice_and_the_reason(http: httpx.AsyncClient) -> None:
    found = await ask(http, {"script": SCRIPT})
    assert found["memory"]["peak_bytes"] is None
    assert found["recommendation"]["kind"] == "none"
    assert {"NO_CODE_ESTIMATE", "NOT_RUN", "NO_FORMULA", "GPU_ASSUMED"} <= codes(found)
    assert not found["fallback"]


def _asking(gpus: int, *words: str) -> dict[str, Any]:
    manifest = pod(*words)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return manifest


async def test_the_arguments_decide_the_processes_and_not_the_gpus_that_are_asked_for(http: httpx.AsyncClient) -> None:
    await ask(
        http, _asking(8, "litgpt", "finetune_lora", "microsoft/phi-2", "--devices", "1", "--precision", "bf16-true")
    )
    (advice,) = parse_recommendations((await http.get("/v1/recommendations")).json()).size_advice
    assert advice.needed_milli_gpu is not None
    assert advice.needed_milli_gpu < 1000
    assert advice.saved_milli_gpu == 8000 - advice.needed_milli_gpu


async def test_an_engine_that_limits_itself_is_not_sent_to_a_larger_gpu(http: httpx.AsyncClient) -> None:
    manifest = _asking(4, "vllm", "serve", "meta-llama/Llama-3.1-8B", "--gpu-memory-utilization", "0.9")
    manifest["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    found = await ask(http, manifest)
    assert found["recommendation"]["count"] == 1
    assert found["recommendation"]["gpu"] == found["gpu"]
    assert found["memory"]["high_bytes"] <= 0.9 * find_gpu(found["gpu"]).usable_bytes


async def test_what_no_gpu_holds_is_not_asked_for(http: httpx.AsyncClient) -> None:
    words = ("litgpt", "finetune_full", "meta-llama/Llama-2-70b-hf", "--devices", "1", "--precision", "bf16-true")
    found = await ask(http, _asking(8, *words))
    assert "FITS_NONE" in codes(found)
    (advice,) = parse_recommendations((await http.get("/v1/recommendations")).json()).size_advice
    assert (advice.advised, advice.saved_milli_gpu, advice.patch()) == ("no advice", None, None)
    assert "fit no GPU of the catalogue" in advice.why_no_advice
    assert re.search(r"it would fit the .* with .*sharded over \d+ GPUs", advice.why_no_advice)
    assert "ABOVE_ANY_GPU" in codes(found)


async def test_what_was_likely_misread_is_refused_with_its_code(http: httpx.AsyncClient) -> None:
    words = ("litgpt", "finetune_full", "meta-llama/Llama-3.1-405B", "--devices", "1", "--precision", "bf16-true")
    found = await ask(http, _asking(1, *words))
    assert "DOUBTFUL_SIZE" in codes(found)
    assert found["recommendation"]["kind"] == "none"
    (advice,) = parse_recommendations((await http.get("/v1/recommendations")).json()).size_advice
    assert "likely the number of GPUs" in advice.why_no_advice


async def test_a_script_is_read_but_never_run(http: httpx.AsyncClient, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    await ask(http, {"script": f"open({str(mark)!r}, 'w').write('ran')\n"})
    await ask(http, ["python", "-c", f"open({str(mark)!r}, 'w')"])
    assert not mark.exists()


async def test_a_trace_that_was_sent_answers_the_next_question(
    http: httpx.AsyncClient,
) -> None:
    first = await ask(http, {"script": SCRIPT}, trace=summary(CODE))
    assert (first["method"], first["trace"], first["memory"]["reserved_bytes"]) == ("abstract", "full", 5 * GIB)
    again = await ask(http, {"script": SCRIPT})
    assert again["memory"] == first["memory"]
    assert "KNOWN_TRACE" in codes(again)
    assert "NOT_RUN" not in codes(again)
    other = await ask(http, {"script": SCRIPT + "# changed\n"})
    assert other["memory"]["peak_bytes"] is None, "another script is another job type"
    elsewhere = await ask(http, {"script": SCRIPT}, gpu="v100-32gb")
    assert elsewhere["memory"]["peak_bytes"] is None, "a trace is of one kind of GPU"


async def test_a_dry_run_is_remembered_for_the_job_type(
    http: httpx.AsyncClient,
) -> None:
    first = await ask(http, pod("./server"), profile=PROFILE)
    assert first["method"] == "profile"
    assert first["memory"]["low_bytes"] == first["observed_peak_bytes"] == 9 * GIB
    assert (await ask(http, pod("./server")))["memory"] == first["memory"]
    assert (await ask(http, pod("./server", image="registry/train:2")))["memory"]["peak_bytes"] is None


async def test_what_one_caller_sends_is_for_its_own_answers_only(endpoint: Endpoint) -> None:
    table = endpoint.service(SizingService).table
    assert table is not None
    table.put(["a"], "job", 1.0, sent=StoredEvidence({"x": 1}), advice={"name": "of a"})
    table.put(["a"], "job", 2.0, sent=StoredEvidence(profile={"y": 2}), advice={"name": "newer"})
    assert table.evidence("a", "job").read() == StoredEvidence({"x": 1}, {"y": 2})
    assert table.evidence("b", "job").read().empty
    assert table.advice("b") == []
    assert table.advice(None) == [{"name": "newer"}]


async def test_what_is_kept_has_no_secrets(http: httpx.AsyncClient, tmp_path: Path) -> None:
    await ask(http, f"{MEGATRON} --hf-token hf_verysecret --api-key=sk-hidden")
    await http.get("/v1/recommendations")
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("sizing.db*"))
    assert b"pretrain_gpt.py" in kept
    assert b"verysecret" not in kept
    assert b"sk-hidden" not in kept


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "workload"),
        ({"workload": ""}, "workload.command"),
        ({"workload": 7}, "workload.manifest"),
        ({"workload": "ls -l"}, "workload"),
        ({"workload": {"kind": "ConfigMap"}}, "workload"),
        ({"workload": {"script": "def f(:\n"}}, "workload.script"),
        ({"workload": {"script": "x" * (3 << 20)}}, "workload.script.script"),
        ({"workload": {"script": "[" * 5000}}, "workload.script"),
        ({"workload": "python train.py", "gpu": "abacus"}, "gpu"),
        ({"workload": "python train.py", "profile": {"gpu": "h100"}}, "profile"),
        ({"workload": "python train.py", "trace": {"schema": "kopt/v1"}}, "trace"),
        ({"workload": "python train.py", "world_size": 0}, "world_size"),
        ({"workload": "python train.py", "surprise": 1}, "surprise"),
    ],
)
async def test_wrong_questions_are_refused_with_the_field(
    http: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    reply = await http.post("/v1/sizing", json=body)
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["errors"][0]["field"] == field


async def test_a_deeply_nested_manifest_is_refused(http: httpx.AsyncClient) -> None:
    depth = 100_000
    text = '{"workload":' + '{"spec":' * depth + "{}" + "}" * depth + "}"
    reply = await http.post("/v1/sizing", content=text, headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422)


async def test_past_the_deadline_nothing_is_advised_and_that_is_marked(
    http: httpx.AsyncClient, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, shipped: SizingPredictor
) -> None:
    monkeypatch.setattr(SizingPredictor, "predict", lambda *_: time.sleep(0.5))
    reply = await http.post("/v1/sizing", json={"workload": MEGATRON}, headers={DEADLINE_HEADER: "50"})
    found = reply.json()
    assert found["fallback"]
    assert found["reasons"][0]["code"] == "DEADLINE"
    assert found["recommendation"]["kind"] == "none"


async def test_a_model_that_fails_is_not_the_callers_outage(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SizingPredictor, "predict", lambda *_: 1 / 0)
    found = await ask(http, MEGATRON)
    assert found["fallback"]
    assert "MODEL_ERROR" in codes(found)


async def test_before_a_model_is_loaded_the_fallback_says_so(http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    endpoint.service(SizingService).slot.current = None
    assert "NO_MODEL" in codes(await ask(http, MEGATRON))


async def test_answers_are_counted(http: httpx.AsyncClient) -> None:
    await ask(http, MEGATRON)
    await ask(http, {"script": SCRIPT})
    text = (await http.get("/metrics")).text
    assert 'kopt_sizing_answers_total{method="analytic"} 1.0' in text
    assert 'kopt_sizing_refusals_total{reason="NO_CODE_ESTIMATE"} 1.0' in text
    assert 'kopt_requests_total{route="/v1/sizing",status="200"} 2.0' in text


class _Signed(MemorySource):
    """A registry with a sizing champion whose signature nobody trusts."""

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if name == "sizing":
            return RegisteredModel(name, "9", "9" * 64, "run", 0.0, (alias,))
        return super().resolve(name, alias)

    def load(self, name: str, version: str) -> Any:
        raise RegistryError(f"{name} version {version} is refused: no trusted signature")


async def test_the_default_model_is_listed_as_the_one_that_answers(
    http: httpx.AsyncClient, source: MemorySource
) -> None:
    listed = (await http.get("/v1/models")).json()["models"]
    assert {(one["name"], one["version"], one["serving"]) for one in listed} == {
        ("demand", "1", True),
        ("sizing", "shipped", True),
    }
    source.down = True
    assert (await http.get("/v1/models")).json()["models"] == listed


class _Registered(MemorySource):
    """Version 3 of sizing is the champion, version 4 waits."""

    sizing: Any = None

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        if name != "sizing":
            return super().list(name)
        return (RegisteredModel(name, "4", "4" * 64, "run", 0.0, ("challenger",)), self.resolve(name, "champion"))

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if name != "sizing":
            return super().resolve(name, alias)
        return RegisteredModel(name, "3", "3" * 64, "run", 0.0, (alias,))

    def load(self, name: str, version: str) -> Any:
        return self.sizing if name == "sizing" else super().load(name, version)


async def test_every_predictors_versions_are_listed_with_the_one_that_serves(
    tmp_path: Path, shipped: SizingPredictor, model: StandInModel
) -> None:
    source = _Registered()
    source.add(model)
    source.sizing = copy.copy(shipped)
    source.sizing.version = ModelVersion("sizing", "3", "3" * 64)
    endpoint = assemble(Settings(home=tmp_path), Parts(source, StoredFeatures(no_store), refresh_s=3600))
    endpoint.refresh()
    endpoint.service(SizingService).refresh()
    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        known = parse_models((await http.get("/v1/models")).json())
    endpoint.stop()
    assert [(one.name, one.version, one.alias, one.serving) for one in known.models] == [
        ("demand", "1", "champion", True),
        ("sizing", "4", "challenger", False),
        ("sizing", "3", "champion", True),
    ]


def test_a_champion_that_cannot_be_loaded_at_the_start_leaves_the_answer_to_the_default_model(
    shipped: SizingPredictor,
) -> None:
    slot = sizing_slot(_Signed(), lambda: shipped)
    assert slot.refresh()
    assert slot.current is shipped
    assert slot.error is not None
    assert slot.error.code == "MODEL_REFUSED"


def test_a_champion_that_is_refused_leaves_the_serving_model(tmp_path: Path, shipped: SizingPredictor) -> None:
    slot = sizing_slot(MemorySource(), lambda: shipped)
    assert slot.refresh()
    assert slot.current is shipped
    refusing = sizing_slot(_Signed(), lambda: shipped)
    refusing.current = shipped
    assert not refusing.refresh()
    assert refusing.current is shipped
    assert refusing.error is not None
    assert refusing.error.code == "MODEL_REFUSED"


def test_a_summary_comes_back_as_it_was_sent() -> None:
    assert read_summary(json.loads(json.dumps(summary(CODE)))) == CODE


@pytest.mark.parametrize(
    "change",
    [
        {"allocated_bytes": -1},
        {"allocated_bytes": True},
        {"reserved_bytes": 1},
        {"reserved_bytes": 1 << 60},
        {"method": "guess"},
        {"inputs": {"unheard": 1.0}},
        {"inputs": {"torch": "2"}},
        {"inputs": {"torch": 1e300}},
        {"breakdown": {"weights": -5}},
        {"breakdown": None},
        {"kernels": {"gemm": 3}},
        {"per_rank": [{}] * 2},
        {"assumptions": "x"},
        {"warnings": ["x" * 5000]},
        {"reasons": [{"code": 1}]},
        {"spread": 0.5},
    ],
)
def test_a_hostile_summary_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        read_summary(summary(CODE) | change)


async def test_many_questions_at_once_are_all_answered(http: httpx.AsyncClient) -> None:
    found = await asyncio.gather(*(ask(http, f"{MEGATRON} --seed {n}") for n in range(12)))
    assert len({one["memory"]["peak_bytes"] for one in found}) == 1


async def test_answers_become_recommendations_with_a_patch(http: httpx.AsyncClient) -> None:
    template = pod("python", "train.py") | {"metadata": {"name": "finetune"}}
    await ask(http, template, trace=summary(CODE))
    reply = await http.get("/v1/recommendations")
    TypeAdapter(RecommendationsResponse).validate_json(reply.content, strict=True, extra="forbid")
    (found,) = parse_recommendations(reply.json()).size_advice
    assert (found.name, found.script, found.requested_milli_gpu) == ("finetune", "train.py", 1000)
    assert found.high_bytes is not None
    assert found.kind is ShareKind.FRACTION
    assert found.saved_milli_gpu == 1000 - found.milli_gpu > 0
    asked_mib = (found.patch() or {})["metadata"]["annotations"]["kaiwo.ai/gpu-memory"]
    assert found.high_bytes <= int(asked_mib) << 20 < found.high_bytes + (2 << 20)


async def test_an_unknown_size_saves_nothing_and_patches_nothing(http: httpx.AsyncClient) -> None:
    await ask(http, pod("./server"))
    (found,) = parse_recommendations((await http.get("/v1/recommendations")).json()).size_advice
    assert (found.has_peak, found.saved_milli_gpu, found.patch()) == (False, None, None)


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "A", "value": "x" * 200_000}], "command": ["$(A)"] * 20_000},
        {
            "env": [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})" if n else "xx"} for n in range(17)]
            + [{"name": f"W{n}", "value": "$(V16)"} for n in range(20_000)],
            "command": ["python", "x.py"],
        },
    ],
)
async def test_short_words_that_stand_for_long_ones_are_bounded(
    http: httpx.AsyncClient, container: dict[str, Any]
) -> None:
    began = time.monotonic()
    found = await ask(http, {"spec": {"containers": [{"name": "main", "image": "x"} | container]}})
    assert time.monotonic() - began < 5
    assert "NO_ENTRYPOINT" in codes(found)


async def test_an_answer_of_a_moment_ago_is_not_repeated_once_something_new_was_sent(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await ask(http, MEGATRON)
    monkeypatch.setattr(SizingPredictor, "predict", lambda *_: 1 / 0)
    assert (await ask(http, MEGATRON))["memory"] == first["memory"]
    monkeypatch.undo()
    traced = await ask(http, MEGATRON, trace=summary(CODE))
    assert traced["method"] == "abstract"
    image = pod(*MEGATRON.split())
    sent = await ask(http, image, trace=summary(CODE))
    assert (await ask(http, image))["memory"] == sent["memory"] != first["memory"]


async def test_what_another_replica_was_sent_counts_at_once(
    http: httpx.AsyncClient, source: MemorySource, tmp_path: Path, shipped: SizingPredictor
) -> None:
    image = pod("python", "train.py")
    for _ in range(2):
        assert (await ask(http, image))["memory"]["peak_bytes"] is None
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"sizing": lambda: shipped})
    beside = assemble(Settings(home=tmp_path), parts)
    beside.service(SizingService).refresh()
    transport = httpx.ASGITransport(create_app(beside, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as other:
        sent = await ask(other, image, trace=summary(CODE))
        assert (await ask(http, image))["memory"] == sent["memory"]
        larger = summary(replace(CODE, reserved_bytes=Bytes(7 * GIB)))
        newer = await ask(other, image, trace=larger)
    assert newer["memory"]["peak_bytes"] > sent["memory"]["peak_bytes"]
    assert (await ask(http, image))["memory"] == newer["memory"]
    beside.stop()


async def test_a_known_trace_is_answered_while_every_thread_is_busy(
    http: httpx.AsyncClient, endpoint: Endpoint
) -> None:
    image, free = pod("python", "train.py"), threading.Event()
    sent = await ask(http, image, trace=summary(CODE))
    busy = [
        asyncio.create_task(endpoint.service(SizingService)._workers.run(Deadline(float("inf"), 1), free.wait))
        for _ in range(2)
    ]
    try:
        found = await asyncio.wait_for(ask(http, image), 20)
    finally:
        free.set()
        await asyncio.gather(*busy)
    assert found["memory"] == sent["memory"]


def test_answers_wait_for_the_disk_and_never_undo_evidence(tmp_path: Path) -> None:
    table = SizeTable(tmp_path / "sizing.db")
    with table._db.transaction():
        # The writer is held up in the middle of a write, as by a slow disk.
        for n in range(3):
            table.put_later("a", "job", float(n), advice={"name": f"answer {n}"}, named=True)
        assert table.evidence("a", "job").read().empty
    table.put(["a"], "job", 9.0, sent=StoredEvidence({"x": 1}), advice={"name": "newest"})
    assert table.advice("a") == [{"name": "newest"}]
    table.put_later("a", "other", 10.0, advice={"name": "last"}, named=True)
    table.close()
    again = SizeTable(tmp_path / "sizing.db")
    assert again.advice("a") == [{"name": "last"}, {"name": "newest"}]
    assert again.evidence("a", "job").read() == StoredEvidence({"x": 1})
    again.close()


async def test_a_trace_is_not_remembered_for_a_path_that_may_hold_any_script(
    http: httpx.AsyncClient,
) -> None:
    for _ in range(2):
        assert (await ask(http, "python train.py", trace=summary(CODE)))["method"] == "abstract"
        assert (await ask(http, "python train.py"))["memory"]["peak_bytes"] is None
