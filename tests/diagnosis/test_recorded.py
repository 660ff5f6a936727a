"""What components did to a job, in the answer of ``kopt why``: from an audit log as the endpoint serves it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgi_server import served
from fastapi import FastAPI
from fastapi.responses import Response

from kopt.controllers.overview.recorded import line, recorded_actions
from kopt.core.audit import AuditChain, read_record
from kopt.serving.audit.service import AuditService
from kopt.serving.audit.table import AuditTable
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.http.metrics import EndpointMetrics

NOW_S = time.time()


def records() -> Iterator[tuple[str, str, str, float, str]]:
    """Component, kind, name, time, text."""
    yield "preemption", "event", "train", NOW_S - 600, "Chosen as it loses the least work: 12 GPU-seconds."
    yield "staging", "event", "train", NOW_S - 60, "Its data is there."
    yield "sizing", "event", "another", NOW_S - 30, "Measured."
    for number in range(10):
        yield "lending", "event", "busy", NOW_S - number, f"number {number}"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[AuditTable]:
    result = AuditTable(tmp_path / "audit.db")
    chain = AuditChain("a-process")
    sealed = []
    for component, kind, name, at_s, text in records():
        content = {
            "at_s": at_s, "component": component, "kind": kind, "verb": "event", "reason": "R", "text": text,
            "object": {"kind": "Job", "namespace": "research", "name": name, "uid": "u"},
        }  # fmt: skip
        record = chain.seal(content)
        sealed.append((record, read_record(record)))
    result.append("system:serviceaccount:kopt-system:kopt", sealed)
    yield result
    result.close()


def answering(status: int, body: str) -> FastAPI:
    result = FastAPI()
    result.add_api_route("/v1/audit", lambda: Response(body, status, media_type="application/json"))
    return result


async def test_actions_are_those_of_the_job_the_newest_first(table: AuditTable) -> None:
    endpoint = Endpoint({}, EndpointMetrics(), audit=AuditService(table))
    with served(create_app(endpoint, manage=False)) as url:
        actions = await recorded_actions(url, "research", {("Job", "train", "")})
        busy = await recorded_actions(url, "research", {("Job", "busy", "")})
        assert await recorded_actions(url, "research", {("StagedData", "train", "")}) == ()
        nothing = await recorded_actions(url, "other", {("Job", "train", "")})
    assert [action.component for action in actions] == ["staging", "preemption"]
    assert line(actions[1], NOW_S) == (
        "preemption, 10 min ago: event Job train: Chosen as it loses the least work: 12 GPU-seconds."
    )
    assert [action.text for action in busy] == [f"number {number}" for number in range(5)]
    assert nothing == ()


@pytest.mark.parametrize(("status", "body"), [(403, "{}"), (500, "torn"), (200, "{}"), (200, "torn")])
async def test_an_endpoint_that_does_not_show_it_changes_nothing_else(status: int, body: str) -> None:
    with served(answering(status, body)) as url:
        assert await recorded_actions(url, "research", {("Job", "train", "")}) == ()


async def test_no_endpoint_is_no_error() -> None:
    assert await recorded_actions("http://127.0.0.1:9", "research", {("Job", "train", "")}) == ()
