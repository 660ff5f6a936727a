"""The story's two replicas by themselves: processes with PostgreSQL and Redis, one killed while it has a request."""

import threading
import time
from pathlib import Path

import httpx
import pytest
from controlplane.plane import ControlPlane

from tests.serving.test_state_in_database import log
from tests.story.service import CHECKPOINT, Service, answered_by_one_process, two_replicas

pytestmark = [pytest.mark.services, pytest.mark.cluster, pytest.mark.timeout(600)]
JOB, TRIES = "team/train-1", 20


def send(client: httpx.Client, text: str, first: int) -> None:
    """As the log agent does: what was not answered is sent again, under the number that the line has."""
    line = {"text": text, "at": time.time()}
    for _ in range(TRIES):
        reply = client.post(CHECKPOINT, json={"job": JOB, "first": first, "lines": [line]})
        if reply.status_code == 200:
            return
        assert reply.status_code in (502, 503), reply.text
        time.sleep(0.5)
    raise AssertionError(f"no replica took line {first}")


def kill_while_it_answers(service: Service, client: httpx.Client) -> int:
    """Kill a replica that has a request that it has not answered yet."""
    waiting = threading.Thread(target=lambda: client.get("/v1/models"))
    waiting.start()
    number = service.kill_one()
    waiting.join()
    return number


def test_one_killed_half_way_and_the_answers_are_those_of_one_process(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    # Written as they are sent: the replicas have clocks of their own.
    lines = [text for text, _ in log()]
    half = len(lines) // 2
    with two_replicas(control_plane, tmp_path / "endpoint") as service:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=120) as client:
            for number, line in enumerate(lines[:half], 1):
                send(client, line, number)
            assert {one.replica for one in service.exchanges} == {0, 1}
            killed = kill_while_it_answers(service, client)
            for number, line in enumerate(lines[half:], half + 1):
                send(client, line, number)
        assert {one.replica for one in service.exchanges[half:]} == {1 - killed}
        last = service.exchanges[-1].answer
        assert last["lines"] == len(lines)
        assert last["last_durable_step"] == 40
        pairs = answered_by_one_process(service.exchanges, tmp_path)
    assert [both for both in pairs if both[0] != both[1]] == []
    assert {one["safe"] for one, _ in pairs} == {True, False}
