"""``/v1/checkpoint`` with the shipped model: sessions by job, numbered lines, gaps, replicas, restarts, hostility."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_budget import examples
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from kopt.core.settings import Settings
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.checkpoint.session import Session
from kopt.models.registry.loading import load_predictor
from kopt.serving.checkpoint import service as checkpoint
from kopt.serving.checkpoint.job import FollowedJob
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.checkpoint.table import JobTable
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.checkpoint_answers import CheckpointResponse, CheckpointsResponse
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import URL, MemorySource, no_store

JOB = "team/train-1"
NOW = 1_790_000_000.0


def training(saves: int = 4) -> list[dict[str, Any]]:
    """A log with told ends: ten steps, a save, and so on; every line when it came, the last just now."""
    at = NOW - 13.2 * saves - 0.3
    found: list[dict[str, Any]] = [{"text": "Loading dataset from cache", "at": at}]
    for save in range(1, saves + 1):
        for step in range((save - 1) * 10 + 1, save * 10 + 1):
            at += 1.0
            found.append({"text": f"step {step}/400 loss 1.{step:03d} lr 0.0001", "at": at})
        at += 0.2
        found.append({"text": f"Saving checkpoint to /out/checkpoint-{save * 10} ...", "at": at})
        at += 3.0
        found.append(
            {"text": f"successfully saved checkpoint at iteration {save * 10} to /out/checkpoint-{save * 10}", "at": at}
        )
    return found


@pytest.fixture(scope="session")
def shipped() -> CheckpointPredictor:
    found = load_predictor("checkpoint", "shipped")
    assert isinstance(found, CheckpointPredictor)
    return found


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


Build = Callable[[], Endpoint]


@pytest.fixture
def replica(source: MemorySource, tmp_path: Path, shipped: CheckpointPredictor, clock: Clock) -> Iterator[Build]:
    """Builds replicas that share one home."""
    started: list[Endpoint] = []

    def build() -> Endpoint:
        parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"checkpoint": lambda: shipped})
        made = assemble(Settings(home=tmp_path), parts)
        made.service(CheckpointService)._clock = clock
        made.start()
        made.service(CheckpointService).refresh()
        started.append(made)
        return made

    yield build
    for one in started:
        one.stop()


@pytest.fixture
def endpoint(replica: Build) -> Endpoint:
    return replica()


def over(application: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"})


def served(endpoint: Endpoint) -> httpx.AsyncClient:
    return over(create_app(endpoint, manage=False))


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    async with served(endpoint) as client:
        yield client


async def post(http: httpx.AsyncClient, lines: Any = (), job: str = JOB, **more: Any) -> dict[str, Any]:
    reply = await http.post("/v1/checkpoint", json={"job": job, "lines": list(lines), **more})
    assert reply.status_code == 200, reply.text
    TypeAdapter(CheckpointResponse).validate_json(reply.content, strict=True, extra="forbid")
    document: dict[str, Any] = reply.json()
    return document


async def listed(http: httpx.AsyncClient, **parameters: str) -> list[dict[str, Any]]:
    reply = await http.get("/v1/checkpoint", params=parameters)
    assert reply.status_code == 200, reply.text
    TypeAdapter(CheckpointsResponse).validate_json(reply.content, strict=True, extra="forbid")
    found: list[dict[str, Any]] = reply.json()["jobs"]
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {**one, "notes": []} == {**other, "notes": []}


def saved(step: int, at_s: float, files: int = 3) -> list[dict[str, Any]]:
    return [
        {"path": f"checkpoint-{step}/part-{n}.pt", "bytes": 1000, "modified_at": at_s + n, "is_folder": False}
        for n in range(files)
    ]


async def test_files_tell_of_saves_that_the_log_is_silent_about(
    http: httpx.AsyncClient, clock: Clock, replica: Build
) -> None:
    steps = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 200 + 2 * n} for n in range(1, 100)]
    assert not (await post(http, steps, first=1))["evidence"]
    clock.now_s = NOW
    await post(http, files=saved(50, NOW - 100), files_at=NOW - 95)
    clock.now_s = NOW + 1
    found = await post(http, [{"text": "step 100/400 loss 1.2", "at": NOW}], first=100)
    assert (found["safe"], found["last_durable_step"], found["evidence"]) == (False, 50, True)
    assert "due at step 100" in found["reason"]
    found = await post(http, [{"text": "step 101/400 loss 1.2", "at": NOW + 1}], first=101)
    assert (found["safe"], found["last_durable_at"]) == (True, NOW - 100)
    clock.now_s = NOW + 3
    writing = saved(50, NOW - 100) + saved(102, NOW + 2, files=1)
    found = await post(http, files=writing, files_at=NOW + 3)
    assert not found["safe"]
    assert "checkpoint-102 is being written" in found["reason"]
    clock.now_s = NOW + 30
    async with served(replica()) as other:
        found = await post(other, files=saved(50, NOW - 100) + saved(102, NOW + 2), files_at=NOW + 30)
        assert found["last_durable_step"] == 102


async def test_files_end_a_write_that_the_log_leaves_open(http: httpx.AsyncClient, clock: Clock) -> None:
    lines = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(1, 21)]
    lines += [{"text": "Saving checkpoint to /out/checkpoint-20 in the background", "at": NOW - 79}]
    lines += [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(21, 30)]
    assert (await post(http, lines, first=1))["state"] == "CKPT_WRITING"
    await post(http, files=saved(20, NOW - 78), files_at=NOW - 70)
    clock.now_s = NOW - 20
    found = await post(http, [{"text": "step 31/400 loss 1.2", "at": NOW - 20}], first=31)
    assert (found["state"], found["last_durable_step"]) == ("TRAIN", 20)


def found_in(folder: str, entries: list[dict[str, Any]], *, ephemeral: bool = False) -> list[dict[str, Any]]:
    return [{**entry, "folder": folder, "ephemeral": ephemeral} for entry in entries]


async def test_a_folder_that_nobody_named_is_the_jobs_by_a_step_that_it_was_at(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    steps = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 200 + 2 * n} for n in range(1, 100)]
    clock.now_s = NOW
    await post(http, steps, first=1)
    foreign = found_in("shared/others", saved(77, NOW - 100))
    model = found_in("shared/hub", saved(50, NOW - 500))
    nameless = [{"path": "last/model.pt", "bytes": 9, "modified_at": NOW - 90, "folder": "shared/x"}]
    others = [*foreign, *model, *nameless]
    await post(http, listings=[{"by": "pod-a", "files": others, "at": NOW - 150}])
    answer = await post(http, listings=[{"by": "pod-a", "at": NOW - 60}])
    assert not answer["evidence"], "another job's, the model that it began with, and what names no step"
    kept = [*others, *found_in("shared/run-3", saved(50, NOW - 100))]
    await post(http, listings=[{"by": "pod-a", "files": kept, "at": NOW - 50}, {"by": "pod-b", "files": []}])
    answer = await post(http, [{"text": "step 100/400 loss 1.2", "at": NOW}], first=100)
    assert not answer["evidence"], "it has not rested while somebody looked"
    answer = await post(http, listings=[{"by": "pod-a", "at": NOW}])
    assert (answer["evidence"], answer["last_durable_step"]) == (True, 50)
    answer = await post(http, [{"text": "step 101/400 loss 1.2", "at": NOW + 1}], first=101)
    assert answer["safe"], answer["reason"]
    growing = [*foreign, *found_in("shared/others", saved(99, NOW + 1, files=1))]
    answer = await post(http, listings=[{"by": "pod-b", "files": growing, "at": NOW + 2}])
    assert answer["safe"], "what others write holds nobody"
    assert answer["durable_evidence"] == "files"
    growing = found_in("shared/run-3", saved(101, NOW + 1, files=1), ephemeral=True)
    answer = await post(http, listings=[{"by": "pod-b", "files": growing, "at": NOW + 2}])
    assert not answer["safe"]
    assert "shared/run-3/checkpoint-101 is being written" in answer["reason"]


async def test_a_folder_is_the_jobs_by_a_bar_that_counts_the_batches_of_an_epoch(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    def bars(start: int, stop: int) -> list[dict[str, Any]]:
        return [
            {
                "text": f"Epoch {n // 100}: {n % 100}%|##  | {n % 100}/100 [00:01<00:01, 40.1it/s]",
                "at": NOW - 500 + 2 * n,
            }
            for n in range(start, stop)
        ]

    clock.now_s = NOW
    await post(http, bars(101, 249), first=1)
    foreign = found_in("shared/others", saved(300, NOW - 101))
    await post(http, listings=[{"by": "pod-a", "files": foreign, "at": NOW - 90}])
    answer = await post(http, listings=[{"by": "pod-a", "at": NOW - 51}])
    assert not answer["evidence"], "the job was never at this step"
    own = found_in("shared/run-3", saved(200, NOW - 100))
    await post(http, listings=[{"by": "pod-a", "files": [*foreign, *own], "at": NOW - 50}])
    answer = await post(http, listings=[{"by": "pod-a", "at": NOW}])
    assert (answer["last_durable_step"], answer["durable_evidence"]) == (200, "files")
    answer = await post(http, bars(249, 251), first=149)
    assert (answer["step"], answer["safe"]) == (250, True), answer["reason"]


@pytest.mark.parametrize("exclusive", [True, False])
async def test_a_job_whose_log_says_nothing_is_safe_by_the_files_of_a_volume_of_its_own(
    http: httpx.AsyncClient, clock: Clock, replica: Build, exclusive: bool
) -> None:
    async def look(client: httpx.AsyncClient, at_s: float, *, changed: bool = True) -> dict[str, Any]:
        """All saves that have begun every 300 s; the last file of each is there two seconds later."""
        clock.now_s = at_s
        numbers = range(int(at_s - NOW) // 300 + 1)
        files = [
            entry
            for number in numbers
            for entry in saved(number * 1600, NOW + 300 * number, files=3 if at_s >= NOW + 300 * number + 2 else 1)
        ]
        listing = {"by": "pod-a", "at": at_s}
        marked = [{**entry, "exclusive": True} if exclusive else entry for entry in found_in("pv-1/out", files)]
        return await post(client, listings=[{**listing, "files": marked} if changed else listing])

    clock.now_s = NOW - 50
    await post(http, [{"text": "GPU available: True (cuda), used: True", "at": NOW - 50}], first=1)
    answers = list[dict[str, Any]]()
    for number in range(4):
        await look(http, NOW + 300 * number + 1)
        await look(http, NOW + 300 * number + 6)
        answers.append(await look(http, NOW + 300 * number + 40, changed=False))
        await look(http, NOW + 300 * number + 290, changed=False)
    assert [answer["safe"] for answer in answers] == [False, False, exclusive, exclusive], answers[-1]["reason"]
    if not exclusive:
        return
    assert (answers[-1]["state"], answers[-1]["last_durable_step"]) == ("TRAIN", 4800)
    assert "in volumes that this job alone writes" in answers[-1]["reason"]
    due = await look(http, NOW + 900 + 280, changed=False)
    assert (due["safe"], "is due" in due["reason"]) == (False, True)
    async with served(replica()) as other:
        assert not (await look(other, NOW + 1201))["safe"]
        torn = await look(other, NOW + 1201.5, changed=False)
        assert "is being written" in torn["reason"]
        await look(other, NOW + 1206)
        assert (await look(other, NOW + 1240, changed=False))["safe"]


async def test_what_is_gone_with_its_pod_is_no_checkpoint(http: httpx.AsyncClient, clock: Clock) -> None:
    steps = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 200 + 2 * n} for n in range(1, 100)]
    clock.now_s = NOW
    await post(http, steps, first=1)
    for ephemeral in (True, False):
        files = found_in("scratch", saved(50, NOW - 100), ephemeral=ephemeral)
        await post(http, listings=[{"by": f"pod-{ephemeral}", "files": files, "at": NOW - 60}])
        answer = await post(http, listings=[{"by": f"pod-{ephemeral}", "at": NOW}])
        assert answer["evidence"] == (not ephemeral)


async def test_text_needs_a_second_save_unless_somebody_still_looks_at_the_files(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    lines = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(1, 21)]
    lines += [{"text": "Saved checkpoint to /out/checkpoint-20", "at": NOW - 79}]
    lines += [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(21, 81)]
    clock.now_s = NOW - 20
    answer = await post(http, lines, first=1)
    assert not answer["safe"]
    assert "Text alone cannot tell" in answer["reason"]
    assert answer["durable_evidence"] == "text"
    step = {"text": "step 81/400 loss 1.2", "at": NOW - 19.5}
    answer = await post(http, [step], first=82, files=saved(20, NOW - 83), files_at=NOW - 60)
    assert answer["safe"], answer["reason"]
    elsewhere = {"text": "Saved best model to s3://bucket/best", "at": NOW + 30}
    clock.now_s = NOW + 36
    between = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(82, 131)]
    after = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(131, 137)]
    answer = await post(http, [*between, elsewhere, *after], first=83, files_at=NOW + 36)
    assert "Text alone cannot tell" in answer["reason"], "the last save is not among the files"


async def test_a_listing_that_nobody_confirms_is_no_evidence(http: httpx.AsyncClient, clock: Clock) -> None:
    lines = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(1, 21)]
    lines += [{"text": "Saved checkpoint to /out/checkpoint-20", "at": NOW - 79}]
    lines += [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(21, 82)]
    clock.now_s = NOW - 18
    answer = await post(http, lines, first=1, files=saved(20, NOW - 83), files_at=NOW - 60)
    assert answer["safe"], answer["reason"]
    later = [{"text": f"step {n}/400 loss 1.2", "at": NOW - 100 + n} for n in range(82, 306)]
    clock.now_s = NOW + 205
    answer = await post(http, later, first=83)
    assert not answer["safe"], "nobody has looked for two minutes"
    answer = await post(http, files_at=NOW + 205)
    assert answer["safe"], answer["reason"]


async def test_lines_become_a_state_with_its_evidence_and_the_work_at_risk(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    lines = training()
    clock.now_s = lines[-1]["at"] + 0.5
    ended = await post(http, lines, gpus=8, source="train-1-0/main", first=1)
    assert (ended["safe"], ended["evidence"], ended["last_durable_step"]) == (False, True, 40)
    assert "not yet that the training goes on" in ended["reason"]
    assert ended["evidence_text"].startswith("successfully saved checkpoint at iteration 40")
    lines = [{"text": "step 41/400 loss 1.041 lr 0.0001", "at": clock.now_s}]
    found = await post(http, lines, source="train-1-0/main", first=ended["lines"] + 1)
    assert (found["safe"], found["evidence"], found["last_durable_step"]) == (True, True, 40)
    assert found["next"] == {"train-1-0/main": found["lines"] + 1}
    assert found["work_at_risk_low"] < found["work_at_risk_gpu_seconds"] < found["work_at_risk_high"]
    assert found["work_at_risk_gpu_seconds"] >= 8 * found["seconds_since_durable"]
    assert (found["fallback"], found["model"]["version"]) == (False, "shipped")
    half = await post(http, gpus=0.5)
    assert half["work_at_risk_gpu_seconds"] == pytest.approx(found["work_at_risk_gpu_seconds"] / 16)


async def test_a_job_in_a_write_is_not_safe_and_neither_is_one_without_a_checkpoint(http: httpx.AsyncClient) -> None:
    assert not (await post(http, training(0), job="a/none"))["safe"]
    writing = await post(http, training()[:-1])
    assert (writing["state"], writing["safe"]) == ("CKPT_WRITING", False)
    assert "being written" in writing["reason"]


async def test_asking_without_lines_tells_the_state_now_and_makes_no_job(http: httpx.AsyncClient, clock: Clock) -> None:
    unknown = await post(http, job="a/never-heard-of")
    assert (unknown["state"], unknown["safe"], unknown["next"]) == ("UNKNOWN", False, {})
    assert await listed(http) == []
    lines = training()
    clock.now_s = lines[-1]["at"]
    first = await post(http, lines)
    clock.now_s += 100_000
    later = await post(http)
    assert (later["state"], first["state"] != "STALLED") == ("STALLED", True)
    assert later["seconds_since_durable"] == pytest.approx(first["seconds_since_durable"] + 100_000)
    assert (await listed(http))[0]["changes"][-1]["state"] == "STALLED"


async def test_a_senders_clock_that_is_ahead_hides_no_silence(http: httpx.AsyncClient, clock: Clock) -> None:
    await post(http, [{**one, "at": one["at"] + 500_000} for one in training()])
    clock.now_s += 100_000
    assert (await post(http))["state"] == "STALLED"


async def test_times_of_another_zone_in_the_lines_hide_no_loss(http: httpx.AsyncClient, clock: Clock) -> None:
    lines = [
        {"text": f"2026-09-21 23:{n // 60:02}:{n % 60:02} {one['text']}", "at": None}
        for n, one in enumerate(training())
    ]
    assert (await post(http, lines))["evidence"]
    clock.now_s += 3000
    later = await post(http, [{"text": "step 41/400 loss 1.0", "at": clock.now_s}])
    assert later["seconds_since_durable"] >= 3000
    assert later["work_at_risk_gpu_seconds"] >= 3000


async def test_lines_that_come_again_count_once(http: httpx.AsyncClient) -> None:
    lines = training()
    once = await post(http, lines, first=1)
    for first in (1, 5, len(lines)):
        assert same(await post(http, lines[first - 1 :], first=first), once)
    overlapping = await post(http, [*lines[-3:], {"text": "step 41/400 loss 1.0", "at": NOW}], first=len(lines) - 2)
    assert overlapping["lines"] == len(lines) + 1
    assert overlapping["next"][""] == len(lines) + 2


async def test_any_cut_into_requests_gives_the_same_state(http: httpx.AsyncClient) -> None:
    lines = training()
    whole = await post(http, lines, job="a/whole", first=1)
    for at in range(0, len(lines), 7):
        pieces = await post(http, lines[at : at + 7], job="a/pieces", first=at + 1)
    assert same(pieces, {**whole, "job": "a/pieces"})


async def test_a_gap_is_told_and_nothing_is_safe_until_a_save_is_seen_whole(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    lines = training(6)
    saved = next(at for at, one in enumerate(lines) if "checkpoint-40" in one["text"]) + 3
    clock.now_s = lines[saved - 1]["at"]
    assert (await post(http, lines[:saved], first=1))["safe"]
    clock.now_s = lines[saved + 4]["at"]
    gone = await post(http, lines[saved + 2 : saved + 5], first=saved + 3)
    assert gone["missed"] == {"": 2}
    assert gone["next"] == {"": saved + 6}
    assert not gone["safe"]
    assert "2 lines are missing" in gone["reason"]
    clock.now_s = NOW
    rest = [*lines[saved + 5 :], {"text": "step 61/400 loss 1.061 lr 0.0001", "at": NOW}]
    again = await post(http, rest, first=saved + 6)
    assert (again["safe"], again["last_durable_step"]) == (True, 60)


async def test_sources_count_by_themselves(http: httpx.AsyncClient) -> None:
    await post(http, ["a", "b"], source="pod-0/main", first=1)
    found = await post(http, ["a"], source="pod-1/main", first=1)
    assert found["next"] == {"pod-0/main": 3, "pod-1/main": 2}
    assert found["missed"] == {}


async def test_a_session_survives_a_restart(replica: Build, clock: Clock) -> None:
    lines = training()
    before, after = replica(), replica()
    async with served(before) as http:
        first = await post(http, lines[:-1], first=1, gpus=4)
    async with served(after) as http:
        assert same(await post(http), first)
        last = await post(http, lines[-1:], first=len(lines))
    assert (last["state"], last["last_durable_step"], last["missed"]) == ("CKPT_DONE", 40, {})


async def test_replicas_that_get_lines_in_turn_read_as_one(replica: Build) -> None:
    lines = training(6)
    alone, beside = replica(), replica()
    async with served(alone) as one, served(beside) as other:
        expected = await post(one, lines, job="a/alone", first=1)
        for at in range(0, len(lines), 3):
            found = await post((one, other)[at % 2], lines[at : at + 3], first=at + 1)
        for asked in (one, other):
            assert same(await post(asked), found)
    assert same(found, {**expected, "job": JOB})


async def test_a_replica_that_was_overtaken_reads_onto_what_the_other_stored(
    replica: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = training()
    slow, quick = replica(), replica()
    store, between = slow.service(CheckpointService).table.store, [True]
    async with served(slow) as one, served(quick) as other:
        loop = asyncio.get_running_loop()

        def overtaken(*args: Any) -> str | None:
            if between.pop() if between else False:
                sending = post(other, lines[:20], source="pod-1", first=1)
                asyncio.run_coroutine_threadsafe(sending, loop).result(60)
            return store(*args)

        await post(one, lines[:5], source="pod-0", first=1)
        between[:] = [True]
        monkeypatch.setattr(slow.service(CheckpointService).table, "store", overtaken)
        found = await post(one, lines[5:10], source="pod-0", first=6)
    assert not between
    assert found["next"] == {"pod-1": 21, "pod-0": 11}
    assert found["lines"] == 30


async def test_past_the_deadline_nothing_is_known_but_the_lines_are_read(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, read = threading.Event(), Session.read

    def slowly(self: Session, *args: Any) -> Any:
        held.wait(60)
        return read(self, *args)

    monkeypatch.setattr(Session, "read", slowly)
    try:
        found = await post(http, training(), first=1, deadline_ms=50)
    finally:
        held.set()
    assert (found["fallback"], found["state"], found["safe"]) == (True, "UNKNOWN", False)
    assert "deadline" in found["reason"]
    assert (await post(http))["lines"] == len(training())


async def test_a_model_that_fails_is_never_safe(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await post(http, training(), first=1)
    monkeypatch.setattr(FollowedJob, "read_lines", lambda *_: 1 / 0)
    found = await post(http, ["step 41"])
    assert (found["fallback"], found["safe"], found["state"]) == (True, False, "UNKNOWN")
    monkeypatch.undo()
    assert (await post(http))["last_durable_step"] == 40


async def test_without_a_model_lines_are_refused_for_now_and_questions_answered(
    http: httpx.AsyncClient, endpoint: Endpoint
) -> None:
    endpoint.service(CheckpointService).slot.current = None
    refused = await http.post("/v1/checkpoint", json={"job": JOB, "lines": ["x"]})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert (await post(http))["fallback"]


async def test_too_many_waiting_lines_are_refused_with_a_pause(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_QUEUED", 0)
    refused = await http.post("/v1/checkpoint", json={"job": JOB, "lines": ["x"]})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "job"),
        ({"job": ""}, "job"),
        ({"job": "a\nb"}, "job"),
        ({"job": "x" * 600}, "job"),
        ({"job": 7}, "job"),
        ({"job": "a", "lines": "text"}, "lines"),
        ({"job": "a", "lines": ["ok", 7]}, "lines.1"),
        ({"job": "a", "lines": [{"text": "x", "at": "now"}]}, "lines.0.line.at"),
        ({"job": "a", "lines": [{"text": "x", "at": -1}]}, "lines.0.line.at"),
        ({"job": "a", "lines": [{"text": "x", "at": 1e300}]}, "lines.0.line.at"),
        ({"job": "a", "lines": [{"at": 1}]}, "lines.0.line.text"),
        ({"job": "a", "lines": ["x"] * 100_000}, "lines"),
        ({"job": "a", "first": 0}, "first"),
        ({"job": "a", "first": 1.5}, "first"),
        ({"job": "a", "gpus": -1}, "gpus"),
        ({"job": "a", "gpus": True}, "gpus"),
        ({"job": "a", "files": [{"path": "x"}]}, "files.0.bytes"),
        ({"job": "a", "annotations": {"a": 1}}, "annotations.a"),
        ({"job": "a", "surprise": 1}, "surprise"),
    ],
)
async def test_wrong_requests_are_refused_with_the_field(
    http: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    reply = await http.post("/v1/checkpoint", json=body)
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["errors"][0]["field"] == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
async def test_a_time_that_is_no_number_is_refused(http: httpx.AsyncClient, number: str) -> None:
    body = f'{{"job": "a", "lines": [{{"text": "x", "at": {number}}}]}}'
    reply = await http.post("/v1/checkpoint", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 422


async def test_a_body_that_is_too_large_is_refused(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/checkpoint", json={"job": "a", "lines": ["x" * (9 << 20)]})
    assert reply.status_code == 413


async def test_lines_of_a_megabyte_and_times_in_disorder_are_read(http: httpx.AsyncClient, tmp_path: Path) -> None:
    long = "x" * (1 << 20)
    lines = [{"text": long, "at": 5.0}, {"text": "step 1\x00\x1b[31m\nloss", "at": 1.0}, {"text": "", "at": 9e10}]
    found = await post(http, [*lines, long + "step 2"], first=1)
    assert found["lines"] == 4
    assert len(found["evidence_text"]) <= 400
    assert found["evidence_text"].isprintable()
    assert sum(path.stat().st_size for path in tmp_path.glob("checkpoint.db*")) < 1 << 20


async def test_writers_without_end_do_not_fill_the_store(
    http: httpx.AsyncClient, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "w" * 500
    lines = [f"({name}{n} pid={n}) Saving checkpoint to /out/checkpoint-{n} ..." for n in range(3000)]
    found = await post(http, lines, first=1)
    assert not found["safe"]
    kept = endpoint.service(CheckpointService).table.load("", JOB)
    assert kept is not None
    assert len(kept[1]) <= 1 << 20
    after = await post(http, training(), first=3001)
    assert after["lines"] == 3000 + len(training())


async def test_only_a_line_of_evidence_is_kept_and_no_secret(http: httpx.AsyncClient, tmp_path: Path) -> None:
    secrets = ("hf_abcdefghijkl", "hunter2hunter2", "sk-0123456789abcdef")
    lines = training()
    lines[7]["text"] += ", nobody's business"
    lines[-1]["text"] += f" with token={secrets[0]} password: {secrets[1]} key {secrets[2]}"
    lines[-2]["text"] += f" api_key={secrets[2]}"
    found = await post(http, lines, first=1)
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("checkpoint.db*"))
    assert b"checkpoint-40" in kept
    assert b"nobody's business" not in kept
    for secret in secrets:
        assert secret.encode() not in kept
        assert secret not in json.dumps(found) + json.dumps(await listed(http))


@pytest.mark.parametrize("moment", ["2026-09-21T14:00:00Z", "1789999200"])
async def test_a_checkpoint_that_its_owner_recorded_counts(http: httpx.AsyncClient, moment: str) -> None:
    lines = training(0) + [{"text": f"step {n} loss 2.0", "at": NOW - 3500 + n} for n in range(50)]
    assert not (await post(http, lines))["evidence"]
    note = {"kaiwo.ai/last-checkpoint-time": moment, "kaiwo.ai/last-checkpoint-step": "17", "other": "x"}
    found = await post(http, annotations=note)
    assert (found["evidence"], found["last_durable_step"], found["notes"]) == (True, 17, [])
    assert found["last_durable_claimed"]
    assert found["durable_evidence"] == "annotation"
    assert "say by annotation" in found["reason"] or not found["safe"]
    assert "line None" not in found["reason"]
    older = note | {"kaiwo.ai/last-checkpoint-time": "2026-09-21T13:00:00Z", "kaiwo.ai/last-checkpoint-step": "9"}
    assert (await post(http, annotations=older))["last_durable_step"] == 17
    saved = [{**line, "at": NOW - 100 + n} for n, line in enumerate(training())]
    assert not (await post(http, saved, first=len(lines) + 1))["last_durable_claimed"], "its log shows one"


@pytest.mark.parametrize("moment", ["soon", "2026-09-21T14:00:00", "2999-01-01T00:00:00Z", "-5", "9" * 400])
async def test_a_recorded_time_that_cannot_be_is_told_and_not_believed(http: httpx.AsyncClient, moment: str) -> None:
    found = await post(http, training(0), annotations={"kaiwo.ai/last-checkpoint-time": moment})
    assert not found["evidence"]
    assert "last-checkpoint-time" in found["notes"][0]


async def test_jobs_are_listed_with_their_states_over_time(http: httpx.AsyncClient, clock: Clock) -> None:
    lines = training()
    clock.now_s = lines[-1]["at"]
    await post(http, lines, gpus=2)
    await post(http, training(1), job="b/other")
    found = {one["job"]: one for one in await listed(http)}
    assert set(found) == {JOB, "b/other"}
    changes = found[JOB]["changes"]
    times = [one["at"] for one in changes]
    assert times == sorted(times)
    states = [one["state"] for one in changes]
    assert states.count("CKPT_WRITING") == 4
    writing = next(one for one in changes if one["state"] == "CKPT_WRITING")
    assert not writing["safe"]
    assert "Saving checkpoint" in writing["text"]
    assert found[JOB]["gpus"] == 2
    assert [one["job"] for one in await listed(http, job="b/other")] == ["b/other"]
    clock.now_s += 2 * 86_400
    assert await listed(http) == []


async def test_changes_stay_few_however_long_a_job_runs(http: httpx.AsyncClient) -> None:
    found = 0
    for part in range(6):
        flapping = [
            {"text": "Evaluating: loss 1.0" if n % 2 else f"step {n} loss 1.0", "at": NOW - 3000 + part * 500 + n / 10}
            for n in range(1000)
        ]
        await post(http, flapping)
        (one,) = await listed(http)
        found = len(one["changes"])
        assert found <= 150
    assert found > 20


async def test_the_client_of_the_agent_gets_its_answer(endpoint: Endpoint) -> None:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    async with AsyncPredictionClient(URL, transport=transport, deadline_s=30) as client:
        found = await client.checkpoint({"job": JOB, "lines": ["step 1"], "source": "p/c", "first": 1, "gpus": 8.0})
    assert found["next"] == {"p/c": 2}


def test_the_table_is_bounded_and_keeps_callers_apart(tmp_path: Path) -> None:
    table = JobTable(tmp_path / "jobs.db", most=10)
    for n in range(500):
        assert table.store("a", f"job-{n}", None, NOW + n, "{}")
    assert table.store("b", "job-499", None, NOW + 501, "{}")
    assert len(table.rows(None, 0, 1000)) <= 10 + 200
    assert table.load("b", "job-1") is None
    assert [one.job for one in table.rows("b", 0, 10)] == ["job-499"]
    stamp = table.stamp("a", "job-499")
    assert stamp is not None
    fresh = table.store("a", "job-499", stamp, NOW + 600, '{"newer": 1}')
    assert fresh not in (None, stamp)
    assert table.store("a", "job-499", stamp, NOW + 601, '{"lost": 1}') is None
    assert table.store("a", "job-499", None, NOW + 601, '{"lost": 1}') is None
    assert table.load("a", "job-499") == (fresh, '{"newer": 1}')
    table.close()


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
said = st.sampled_from(
    [
        "step 3/9 loss 1.0",
        "Saving checkpoint to /out/c-3 ...",
        "successfully saved checkpoint at iteration 3",
        "",
        "\x00",
    ]
)
line = (
    said | st.text(max_size=30) | st.fixed_dictionaries({"text": said}, optional={"at": st.floats() | st.none()}) | junk
)
near = st.fixed_dictionaries(
    {"job": st.sampled_from(["a/b", "a/c"])},
    optional={
        "lines": st.lists(line, max_size=5) | junk,
        "source": st.sampled_from(["", "p/c"]) | junk,
        "first": st.integers(-2, 40) | junk,
        "gpus": st.floats() | junk,
        "files": junk,
        "files_at": junk,
        "annotations": st.dictionaries(
            st.sampled_from(["kaiwo.ai/last-checkpoint-time", "kaiwo.ai/last-checkpoint-step"]),
            st.text(max_size=12) | st.floats().map(str) | st.datetimes().map(lambda at: f"{at.isoformat()}Z"),
        )
        | junk,
        "deadline_ms": st.just(30_000) | junk,
    },
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(body=near | junk)
async def test_whatever_is_sent_the_answer_is_a_document(application: FastAPI, body: Any) -> None:
    async with over(application) as http:
        text = json.dumps(body)
        reply = await http.post("/v1/checkpoint", content=text, headers={"content-type": "application/json"})
        assert reply.status_code in (200, 400, 422), reply.text
        if reply.status_code == 200:
            found = TypeAdapter(CheckpointResponse).validate_json(reply.content, strict=True)
            assert not (found.safe and found.state == "CKPT_WRITING")
            assert not (found.fallback and found.lines), found
            assert "The model failed" not in found.reason
        await listed(http)
