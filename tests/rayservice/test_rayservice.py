"""Our RayService under KubeRay's own operator: it runs, takes a new champion, survives its head, and is upgraded.

In this order, on one installation, as each needs minutes to come up.
"""

import time

import pytest
from asked_by_name import LATEST_S, asked_by_name, assert_clear, push_history
from controlplane.api import has_condition
from controlplane.processes import wait_for

from kopt.models.registry.registry import Registry
from tests.models.team_mlflow_server import TeamMlflow
from tests.rayservice.cluster import NAMESPACE, STARTS_WITHIN_S, Predictions, bad
from tests.serving.conftest import wave

pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.ray,
    pytest.mark.services,
    pytest.mark.timeout(2400),
]
LINES = [f"{{'loss': 1.{step}, 'learning_rate': 5e-05, 'epoch': 0.{step}}}" for step in range(10)]
JOB = "research/llama"


def test_the_operator_runs_our_rayservice(predictions: Predictions) -> None:
    predictions.wait_running()
    predictions.wait_answer("1")
    assert predictions.service()["serviceStatus"] == "Running"
    (worker,) = predictions.pods("worker")
    address = worker["status"]["podIP"]
    wait_for(lambda: address in predictions.addresses(), what="the Service leads to the worker")
    assert len(predictions.replicas()) == 1
    assert predictions.ask(token="").status_code == 401


def test_a_new_champion_is_taken_while_it_runs(predictions: Predictions, registry: tuple[Registry, TeamMlflow]) -> None:
    predictions.wait_running()
    replicas = predictions.replicas()
    with predictions.asked_all_the_time() as answers:
        registry[0].promote("demand", "2", force=True, reason="test")
        wait_for(lambda: answers and answers[-1].version == "2", 300, "the new champion answers")
    assert not bad(answers)
    assert predictions.replicas() == replicas


def test_answers_go_on_while_a_killed_head_is_replaced(predictions: Predictions) -> None:
    cluster = predictions.wait_running()
    predictions.wait_answer("2")
    (head,) = predictions.pods("head")
    (worker,) = predictions.pods("worker")
    replicas = predictions.replicas()
    job = {"job": JOB, "lines": LINES}
    assert predictions.ask("/v1/checkpoint", job).json()["lines"] == len(LINES)
    name = head["metadata"]["name"]
    with (
        predictions.controller() as client,
        predictions.asked_all_the_time() as answers,
        asked_by_name(client, "team/chat") as calls,
    ):
        push_history(client, "team/chat", wave(700))
        wait_for(lambda: len(answers) >= 5, what="it is asked")
        wait_for(lambda: calls and calls[-1].good, 120, "it answers by name")
        killed_s = time.monotonic()
        predictions.plane.api.delete("v1", "Pod", name, NAMESPACE, gracePeriodSeconds=0)

        def replaced() -> bool:
            heads = predictions.pods("head")
            return len(heads) == 1 and heads[0]["metadata"]["name"] != name and has_condition(heads[0], "Ready")

        wait_for(replaced, STARTS_WITHIN_S, "another head is ready")
        assert predictions.wait_running() == cluster
        wait_for(lambda: answers[-1].at_s > killed_s + 10, what="it is asked for a while")
    away = [one for one in answers if not one.good]
    # Whom the head was just answering, and who was sent to it before the Service knew.
    assert all(one.at_s < killed_s + 5 for one in away), bad(away)
    assert_clear([call for call in calls if call.at_s > killed_s - LATEST_S])
    assert [call for call in calls if not call.good and call.at_s > killed_s + 10] == []
    assert predictions.replicas() == replicas
    assert [pod["metadata"]["name"] for pod in predictions.pods("worker")] == [worker["metadata"]["name"]]
    assert predictions.ask("/v1/checkpoint", {"job": JOB, "lines": []}).json()["lines"] == len(LINES)


def test_an_upgrade_costs_no_request(predictions: Predictions) -> None:
    before = predictions.wait_running()
    predictions.wait_answer("2")
    with predictions.asked_all_the_time() as answers:
        predictions.install(env={"KOPT_LOG_LEVEL": "info"})
        after = predictions.wait_running(cluster_other_than=before)
        # The operator deletes the old cluster a minute later.
        gone = lambda: not predictions.pods("head", before) and not predictions.pods("worker", before)  # noqa: E731
        wait_for(gone, STARTS_WITHIN_S, "the old Ray cluster is gone")
        enough_s = time.monotonic() + 5
        wait_for(lambda: answers[-1].at_s > enough_s, what="it is asked for a while")
    assert after != before
    assert not bad(answers)
    assert {one.version for one in answers} == {"2"}
