"""Where callers authenticate, a job is followed for the caller who sends its lines, and seen by it and by operators."""

import httpx
import pytest

from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.endpoint.app import Endpoint
from tests.serving.test_identity import bearer, caller, guarded, tokens

__all__ = ["caller", "guarded", "tokens"]
JOB = "team/train"


@pytest.fixture
def following(guarded: Endpoint) -> Endpoint:
    guarded.service(CheckpointService).refresh()
    return guarded


async def post(client: httpx.AsyncClient, token: str, *lines: str) -> dict[str, object]:
    headers = bearer(token) | {"x-kopt-deadline-ms": "30000"}
    reply = await client.post("/v1/checkpoint", json={"job": JOB, "lines": lines}, headers=headers)
    assert reply.status_code == 200, reply.text
    found: dict[str, object] = reply.json()
    return found


async def test_nobody_reads_or_changes_what_another_follows(following: Endpoint, caller: httpx.AsyncClient) -> None:
    await post(caller, "a", "step 1 loss 2.0", "step 2 loss 2.0")
    forged = await post(caller, "b", "successfully saved checkpoint at iteration 9")
    assert forged["next"] == {"": 2}
    mine = await post(caller, "a")
    assert (mine["lines"], mine["evidence"]) == (2, False)
    seen = {}
    for token in ("a", "b", "o"):
        seen[token] = (await caller.get("/v1/checkpoint", headers=bearer(token))).json()["jobs"]
    assert [one["lines"] for one in seen["a"]] == [2]
    assert [one["lines"] for one in seen["b"]] == [1]
    assert sorted(one["lines"] for one in seen["o"]) == [1, 2]
    assert (await caller.get("/v1/checkpoint")).status_code == 401
    assert (await caller.get("/v1/checkpoint", headers=bearer("g"))).status_code == 403


async def test_epochs_are_seen_by_who_sent_their_lines_and_by_operators(
    following: Endpoint, caller: httpx.AsyncClient
) -> None:
    await post(caller, "a", "Epoch 1 of 9", "Epoch 2 of 9")
    counts = {}
    for token in ("a", "b", "o"):
        reply = await caller.get("/v1/checkpoint", params={"job": JOB}, headers=bearer(token))
        counts[token] = len(reply.json()["epochs"])
    assert counts == {"a": 2, "b": 0, "o": 2}
