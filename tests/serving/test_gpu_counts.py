"""How many GPUs of a training are useful, through ``/v1/sizing``: computed once, kept, corrected by its own runs."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from kopt.cluster.workloads.memory_need import parse_need
from kopt.core.settings import Settings
from kopt.models.sizing.estimate import load_sizing
from kopt.models.sizing.predictor import SizingPredictor
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.contract.recommendation_answers import parse_recommendations
from kopt.serving.contract.sizing_answers import SizingResponse
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.sizing.service import SizingService
from tests.admission.patching import patched
from tests.parallelism.test_useful_count import manifest, read
from tests.serving.conftest import URL, MemorySource, no_store

GPU = "h100-80gb"


@pytest.fixture(scope="session")
def shipped() -> SizingPredictor:
    return load_sizing("shipped")


def built(home: Path, source: MemorySource, shipped: SizingPredictor) -> Endpoint:
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"sizing": lambda: shipped})
    endpoint = assemble(Settings(home=home), parts)
    endpoint.start()
    endpoint.service(SizingService).refresh()
    return endpoint


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path, shipped: SizingPredictor) -> Iterator[Endpoint]:
    made = built(tmp_path, source, shipped)
    yield made
    made.stop()


def client_of(endpoint: Endpoint) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "60000"})


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(endpoint) as client:
        yield client


async def ask(http: httpx.AsyncClient, workload: Any, **more: Any) -> dict[str, Any]:
    reply = await http.post("/v1/sizing", json={"workload": workload, "gpu": GPU, "namespace": "research", **more})
    assert reply.status_code == 200, reply.text
    TypeAdapter(SizingResponse).validate_json(reply.content, strict=True, extra="forbid")
    document: dict[str, Any] = reply.json()
    return document


async def listed(http: httpx.AsyncClient) -> Any:
    answer = parse_recommendations((await http.get("/v1/recommendations")).json())
    return {advice.name: advice.gpu_count for advice in answer.size_advice}


async def test_a_size_is_not_kept_waiting_and_the_count_is_there_later(http: httpx.AsyncClient) -> None:
    job = manifest(8, 8, 64)
    began_s = time.monotonic()
    first = await ask(http, job)
    assert first["memory"]["peak_bytes"]
    assert first["gpu_count"] is None
    assert time.monotonic() - began_s < 2.0, "the size waited for the curve"
    async with asyncio.timeout(60):
        while (count := (await ask(http, job))["gpu_count"]) is None:
            await asyncio.sleep(0.2)
    assert count["requested_gpus"] == 64
    assert count["advised_gpus"] == count["useful_gpus"] < 64
    need = parse_need(await ask(http, job))
    assert need is not None
    assert need.useful is not None
    assert (need.useful.requested, need.useful.advised) == (64, count["advised_gpus"])
    shown = (await listed(http))["pretrain"]
    assert shown.to_dict() == count, "the page and `kopt recommend` show another"


async def test_the_patch_is_of_the_manifest_that_was_sent(http: httpx.AsyncClient) -> None:
    job = manifest(8, 8, 64)
    count = (await ask(http, job, scaling=True))["gpu_count"]
    plan, gpus = read(patched(job, count["patch"]))
    assert gpus == plan.parallel.world == count["advised_gpus"]
    assert count["no_patch"] == ""


async def test_a_patch_with_a_secret_is_not_kept(http: httpx.AsyncClient) -> None:
    job = manifest(8, 8, 64)
    job["spec"]["template"]["spec"]["containers"][0]["args"] += ["--wandb-api-key", "4d2b9c7e5a1f"]
    count = (await ask(http, job, scaling=True))["gpu_count"]
    assert count["patch"] == []
    assert "secret" in count["no_patch"]
    assert "4d2b9c7e5a1f" not in (await http.get("/v1/recommendations")).text


async def test_own_runs_are_kept_for_other_counts_of_the_same_training(
    source: MemorySource, tmp_path: Path, shipped: SizingPredictor
) -> None:
    first = built(tmp_path, source, shipped)
    async with client_of(first) as http:
        plain = (await ask(http, manifest(2, 8, 1024), scaling=True))["gpu_count"]
        assert plain["advised_gpus"] == 16
        step = {point["gpus"]: point["step_seconds"] for point in plain["points"]}
        told = {"8": step[8], "16": 0.95 * step[8]}
        own = (await ask(http, manifest(2, 8, 1024), measured_steps=told))["gpu_count"]
        assert own["advised_gpus"] == 8
    first.stop()
    # Another process, another number of pods: the training is the same.
    second = built(tmp_path, source, shipped)
    async with client_of(second) as http:
        more = (await ask(http, manifest(4, 8, 1024), scaling=True))["gpu_count"]
        assert "OWN_RUNS" in {reason["code"] for reason in more["reasons"]}
        assert more["advised_gpus"] == 8
        other = (await ask(http, manifest(4, 8, 2048), scaling=True))["gpu_count"]
        assert "OWN_RUNS" not in {reason["code"] for reason in other["reasons"]}, "another batch is another training"
    second.stop()


@pytest.mark.parametrize(
    "more",
    [
        {"measured_steps": {"0": 1.0}},
        {"measured_steps": {"8": 0.0}},
        {"measured_steps": {"8": -1.0}},
        {"measured_steps": {"9": 1.0}},
        {"threshold": 0},
    ],
)
async def test_steps_that_cannot_be_are_refused(http: httpx.AsyncClient, more: dict[str, Any]) -> None:
    body = {"workload": manifest(2, 8, 64), "gpu": GPU, **more}
    reply = await http.post("/v1/sizing", json=body)
    assert reply.status_code == 422, reply.text
    assert reply.json()["errors"][0]["field"].split(".")[0] in ("measured_steps", "threshold")


async def test_what_does_not_say_how_it_scales_has_no_count(http: httpx.AsyncClient) -> None:
    tuning = "litgpt finetune_lora meta-llama/Llama-3.2-1B --precision bf16-true --devices 2"
    assert (await ask(http, tuning, scaling=True))["gpu_count"] is None
    assert (await ask(http, "torchrun --nproc-per-node 8 train.py", scaling=True))["gpu_count"] is None
