"""A challenger that reads logs is held against what the jobs' folders show: it stops when it takes writes to be over
that go on, and only then."""

import asyncio
from typing import Any

import httpx
import pytest

from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.measured.health import LEAST
from tests.serving import test_canary
from tests.serving.test_canary import PERCENT, canary, refresh, served

source, endpoint = test_canary.source, test_canary.endpoint
SAVED_S = 12.0
"""After the beginning of a job its log says that the checkpoint is saved."""
FIRST, SECOND = "checkpoint-100/trainer_state.json", "checkpoint-100/model.safetensors"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(endpoint: Endpoint) -> Clock:
    clock = Clock()
    service = endpoint.service(CheckpointService)
    service._clock = clock
    return clock


async def follow(http: httpx.AsyncClient, job: str, **body: Any) -> dict[str, Any]:
    reply = await http.post("/v1/checkpoint", json={"job": job, **body})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    assert not answer["fallback"], answer
    return answer


async def save(http: httpx.AsyncClient, clock: Clock, job: str, ended_s: float, *, silent: bool = False) -> str:
    """A job that says after 12 s that it has saved, and whose files change until ``ended_s``; the version that read."""
    began_s = clock.now_s

    def lines(*said: tuple[float, str]) -> list[dict[str, Any]]:
        return [{"text": text, "at": began_s + after_s} for after_s, text in said]

    def files(now_s: float) -> dict[str, Any]:
        clock.now_s = began_s + now_s
        parts = [(FIRST, 100, 10.5), (SECOND, 10**9, min(now_s, ended_s))] if now_s >= 11.0 else []
        listed = [{"path": path, "bytes": size, "modified_at": began_s + at_s} for path, size, at_s in parts]
        return {"files": listed, "files_at": clock.now_s}

    steps = [(0.5 + number / 2, f"step {90 + number}/1000 loss 1.{number}") for number in range(10)]
    answer = await follow(http, job, lines=lines(*steps), **files(5.0))
    said = (
        []
        if silent
        else [(10.0, "Saving model checkpoint to out/checkpoint-100"), (SAVED_S, "Saved state to out/checkpoint-100")]
    )
    await follow(http, job, lines=lines(*said, (SAVED_S + 1, "step 101/1000 loss 1.0")), **files(SAVED_S + 1))
    for later_s in (30.0, 60.0, 120.0):
        await follow(http, job, lines=[], **files(later_s))
    version: str = answer["model"]["version"]
    return version


async def trial(endpoint: Endpoint, clock: Clock, ended_s: float, *, silent: bool = False) -> tuple[int, list[str]]:
    """What is said of the trial after enough jobs of the challenger's share."""
    async with served(endpoint) as http:
        read = 0
        for number in range(200):
            read += await save(http, clock, f"team/job-{number}", ended_s, silent=silent) == "2"
            if read > LEAST:
                break
        assert read > LEAST
        await asyncio.to_thread(refresh, endpoint)
        result = await canary(http, "checkpoint")
        if not result[0]:
            assert {await save(http, clock, f"team/job-{n}", ended_s) for n in range(30)} == {"1"}
        return result


async def test_it_stops_when_writes_go_on_that_it_took_to_be_over(endpoint: Endpoint, clock: Clock) -> None:
    percent, reasons = await trial(endpoint, clock, ended_s=40.0)
    assert percent == 0
    (reason,) = [reason for reason in reasons if "writes went on" in reason]
    assert reason.startswith(f"{LEAST + 1} of the last {LEAST + 1} writes")


async def test_it_goes_on_while_writes_end_as_they_are_read(endpoint: Endpoint, clock: Clock) -> None:
    assert await trial(endpoint, clock, ended_s=SAVED_S - 0.5) == (PERCENT, [])


async def test_a_log_that_says_nothing_of_its_saves_speaks_against_nobody(endpoint: Endpoint, clock: Clock) -> None:
    assert await trial(endpoint, clock, ended_s=40.0, silent=True) == (PERCENT, [])
