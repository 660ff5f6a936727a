"""The story's two replicas by themselves: processes with PostgreSQL and Redis, one killed while it has a request."""

import threading
import time
from pathlib import Path

import httpx
import pytest
from asked_by_name import ask, asked_by_name, assert_clear, push_history
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.serving.client.blocking import PredictionClient
from tests.serving.conftest import wave
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


def test_who_asks_by_name_with_a_deadline_hears_in_time_while_one_dies(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with (
        two_replicas(control_plane, tmp_path / "endpoint") as service,
        PredictionClient(service.url) as client,
    ):
        push_history(client, "team/chat", wave(700))
        # The first answer of each replays days of the series.
        wait_for(lambda: all(ask(client, "team/chat").good for _ in range(4)), 120, "both answer by name")
        with asked_by_name(client, "team/chat") as calls:
            wait_for(lambda: len(calls) >= 10, what="it is asked")
            service.freeze(0)
            wait_for(lambda: sum(not call.good for call in calls) >= 2, what="the frozen one is asked")
            service.kill(0)
            killed_s = time.monotonic()
            wait_for(lambda: calls[-1].at_s > killed_s + 5, what="it is asked for a while")
    assert_clear(calls)
    assert "DEADLINE" in {call.reason for call in calls}
    assert [call for call in calls if not call.good and call.at_s > killed_s + 2] == []
