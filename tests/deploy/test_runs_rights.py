"""The runs controller with its own account's token: Jobs run on a node, the endpoint hears when they start and end, and
the command says how long the next one will run. Killed, the other replica goes on; it is refused nothing."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from asgi_server import served
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT
from serving.conftest import MemorySource, StandInModel, no_store

from kopt.core.settings import Settings
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.runtime.service import RunTimeService

from .rights import (
    Object,
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    roles_of,
    start_controller,
)

ACCOUNT, SPACE = "kopt-runs", "timed"
VALUES = {
    "runs": {"enabled": True},
    **WITHOUT_DEFAULTS,
}
BATCH, GPU = ("batch/v1", "Job"), "nvidia.com/gpu"
RUN_S = 2
HOLDERS = ("sleeper-5e", "sleeper-6f", "sleeper-7g", "sleeper-8h")
SELDOM = {
    ("create", "events.k8s.io", "events"): "only where an object cannot be read at all",
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("watch", "kueue.x-k8s.io", "workloads"): "only where there is Kueue",
}


explained: dict[str, Any] = {}
"""The diagnosis of the Job that waited, filled in while the cluster was there."""


def job(name: str, node: Kubelet, seconds: int = RUN_S) -> Object:
    spec = {
        "containers": [
            {"name": "main", "image": "any", "command": ["sleep", str(seconds)], "resources": {"limits": {GPU: "1"}}}
        ],
        "nodeSelector": node.selector,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"template": {"spec": spec}},
    }


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real endpoint with the shipped model of run times."""
    source = MemorySource()
    source.add(StandInModel())
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600)
    built = assemble(Settings(home=tmp_path_factory.mktemp("endpoint")), parts)
    built.start()
    built.service(RunTimeService).refresh()
    with served(create_app(built, manage=False)) as address:
        yield address
    built.stop()


def metric(address: str, name: str) -> float:
    lines = httpx.get(address, trust_env=False).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def estimate(url: str, *arguments: str) -> dict[str, Any] | None:
    """What `kopt runtime estimate` says of the next sleeper; None while nothing is known."""
    command = [*KOPT, "runtime", "estimate", "--queue", SPACE, "--gpus", "1", "--name", "sleeper", "--user", SPACE]
    env = {**os.environ, "KOPT_URL": url}
    done = subprocess.run([*command, "-o", "json", *arguments], capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        assert "has ended yet" in done.stderr, done.stderr
        return None
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _forget_workloads(api: Api) -> None:
    """Those of earlier tests, of which Kueue was stopped: nobody ends one that was admitted, and it would count as a
    run that goes on."""
    workload = ("kueue.x-k8s.io/v1beta1", "Workload")
    if api.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", "workloads.kueue.x-k8s.io") is None:
        return
    for document in api.list(*workload):
        name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
        api.patch(*workload, name, {"metadata": {"finalizers": None}}, namespace)
        api.delete(*workload, name, namespace)
    wait_for(lambda: not api.list(*workload), what="no Workload is left")


@pytest.fixture(scope="module")
def worked(control_plane: ControlPlane, charts: Any, install: Callable[..., None], url: str) -> list[Object]:
    """The audit log of two replicas, of which one was killed."""
    install(VALUES)
    started, api = datetime.now(UTC), control_plane.api
    _forget_workloads(api)
    api.namespace(SPACE)
    values = VALUES | {"predictions": {"url": url, "auth": "none"}}
    with Kubelet(control_plane, "timed", {GPU: "4"}) as node:
        first, first_metrics = start_controller(control_plane, charts, values, ACCOUNT)
        first.wait_until(lambda: metric(first_metrics, "kopt_runs_leading") == 1)
        second, second_metrics = start_controller(control_plane, charts, values, ACCOUNT, replica=1)
        second.wait_until(lambda: metric(second_metrics, "kopt_runs_running") == 0, what="no GPU workload runs")
        assert estimate(url) is None, "no run is known, so none is made up"
        ended(api, *("sleeper-1a", "sleeper-2b"), node=node)
        wait_for(lambda: (estimate(url) or {}).get("finished") == 2, what="two runs are known", timeout_s=60)
        # The next ones are reported by the other replica, and one that is stopped does not count as short.
        first.kill()
        second.wait_until(lambda: metric(second_metrics, "kopt_runs_leading") == 1)
        api.create(job("sleeper-3c", node, seconds=600))
        api.wait(*BATCH, "sleeper-3c", lambda document: document["status"].get("ready"), SPACE)
        wait_for(lambda: metric(second_metrics, "kopt_runs_running") == 1, what="it is seen to run")
        api.patch(*BATCH, "sleeper-3c", {"spec": {"suspend": True}}, SPACE)
        ended(api, "sleeper-4d", node=node)
        wait_for(lambda: (estimate(url) or {}).get("finished") == 3, what="three runs are known", timeout_s=90)
        # Four of them hold the node, and the fifth is told when it can start.
        for name in HOLDERS:
            api.create(job(name, node, seconds=600))
            api.wait(*BATCH, name, lambda document: document["status"].get("ready"), SPACE)
        api.create(job("sleeper-9z", node))
        explained.update(why(control_plane, url))
        # One ends, the fifth starts, and the prediction is compared with that.
        api.delete(*BATCH, HOLDERS[0], SPACE, propagationPolicy="Background")
        wait_for(lambda: queues(url)[0]["starts"] == 1, what="the predicted start has come", timeout_s=60)
        second.stop()
        for name in ("sleeper-1a", "sleeper-2b", "sleeper-3c", "sleeper-4d", *HOLDERS, "sleeper-9z"):
            api.delete(*BATCH, name, SPACE, propagationPolicy="Background")
    return audited(control_plane, ACCOUNT, started)


def queues(url: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = httpx.get(f"{url}/v1/runtime/queues", trust_env=False).json()["queues"]
    return result


def why(plane: ControlPlane, url: str) -> dict[str, Any]:
    """The diagnosis of the Job that waits, once kube-scheduler has said that it does."""
    env = {**os.environ, "KOPT_URL": url, "KUBECONFIG": str(plane.kubeconfig)}
    command = [*KOPT, "why", f"{SPACE}/sleeper-9z", "-o", "json"]
    for _ in range(60):
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        diagnosis: dict[str, Any] = json.loads(done.stdout)["diagnosis"] or {}
        if diagnosis.get("causes"):
            return diagnosis
        time.sleep(0.5)
    raise AssertionError(f"nothing is said of why it waits: {done.stdout}")


def ended(api: Api, *names: str, node: Kubelet) -> None:
    for name in names:
        api.create(job(name, node))
    for name in names:
        api.wait(*BATCH, name, lambda document: document["status"].get("completionTime"), SPACE)


@pytest.mark.cluster
def test_it_is_refused_nothing_and_uses_its_rights(worked: list[Object], charts: Any) -> None:
    assert_refused_nothing(worked)
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), worked, SELDOM)


@pytest.mark.cluster
def test_the_next_run_is_expected_to_take_as_long_as_the_last(worked: list[Object], url: str) -> None:
    answer = estimate(url)
    assert answer is not None
    assert answer["level"] == "name"
    assert answer["run_seconds"]["p05"] <= RUN_S + 1
    assert RUN_S / 3 < answer["run_seconds"]["p50"] < 30
    (queue,) = queues(url)
    # The one that waited may have ended since.
    assert queue["queue"] == SPACE
    assert queue["running"] in (len(HOLDERS) - 1, len(HOLDERS)), "what waits does not run"


@pytest.mark.cluster
def test_what_waits_is_told_when_it_can_start(worked: list[Object]) -> None:
    start = explained["start"]
    assert start["p50_s"] is not None, start
    assert 0 <= start["p50_s"] <= start["p90_s"]
    assert {cause["code"] for cause in explained["causes"]} & {"GPUS_IN_USE"}, explained


@pytest.mark.cluster
def test_the_start_that_was_predicted_is_compared_with_the_one_that_came(worked: list[Object], url: str) -> None:
    (queue,) = queues(url)
    assert queue["starts"] == 1
    assert queue["start_coverage"] in (0.0, 1.0)


@pytest.mark.cluster
def test_a_log_that_shows_its_steps_beats_history(worked: list[Object], url: str, tmp_path: Any) -> None:
    log = tmp_path / "train.log"
    now_s = time.time()
    lines = [
        f"{datetime.fromtimestamp(now_s - 100 + 2 * step, UTC):%Y-%m-%d %H:%M:%S} step {step}/500 loss 1.0"
        for step in range(1, 51)
    ]
    log.write_text("\n".join(lines) + "\n")
    answer = estimate(url, "--running", "100s", "--log", str(log))
    assert answer is not None
    assert answer["by_steps"]
    assert answer["remaining_seconds"]["p50"] == pytest.approx(900, abs=15)
