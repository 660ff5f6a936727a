"""Logs that cannot be read, tests that never end or are killed, and pods that want the GPUs."""

import json
from collections.abc import Callable

import pytest
from controlplane.processes import Server, wait_for

from .conftest import BENCHMARK, GPU, GPUS, SPACE, Object, Pool

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Start = Callable[..., Server]


def wanting(name: str, pool: Pool, gpus: int = GPUS, **spec: object) -> Object:
    """A user's pod that wants the GPUs of a node of the pool."""
    container = {
        "name": "train",
        "image": "team/train:1",
        "command": ["sleep", "600"],
        "resources": {"limits": {GPU: str(gpus)}},
    }
    pod = {"containers": [container], "nodeSelector": {"pool": pool.name}, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": pod | spec}


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        ("garbage", "not the output of a tool"),
        ("cut", "the log is cut"),
        ("broken", "rank 0 ended with exit code 3"),
        ("never", "it did not end within 8 s"),
    ],
)
@pytest.mark.long
def test_a_test_that_shows_nothing_is_a_failed_pair_and_stops_no_other(
    pool: Callable[[int], Pool], start_controller: Start, fate: str, reason: str
) -> None:
    cluster = pool(3)
    one, other, _ = cluster.nodes
    cluster.shares.write_text(f"{one},{other} {fate}\n")
    start_controller()
    cluster.start(timeout="8s" if fate == "never" else "2m")
    status = cluster.wait(lambda one: one.get("measured") == 3)
    assert status["failedPairs"] == 1
    assert reason in status["lastError"]
    peers = cluster.measured()
    bad = peers.pop((one, other))
    assert bad["health"] == "Failed"
    assert reason in bad["reason"]
    assert bad.get("points", []) == []
    assert {peer["health"] for peer in peers.values()} == {"Healthy"}
    assert cluster.jobs() == []


@pytest.mark.long
def test_a_killed_pod_is_no_result_and_the_pair_is_measured_again(
    pool: Callable[[int], Pool], start_controller: Start
) -> None:
    cluster = pool(2)
    cluster.shares.write_text("seconds 30\n")
    start_controller()
    cluster.start()
    (pod,) = wait_for(cluster.running, what="a test runs")
    cluster.shares.write_text("")
    cluster.plane.api.delete("v1", "Pod", pod["metadata"]["name"], SPACE)
    status = cluster.wait(lambda one: one.get("measured") == 1)
    assert (status["failedPairs"], status["slowPairs"]) == (0, 0)
    assert cluster.started() == 2


def test_a_test_gives_way_to_a_pod_that_waits_for_its_gpus(
    pool: Callable[[int], Pool], start_controller: Start
) -> None:
    cluster = pool(2)
    cluster.shares.write_text("seconds 300\n")
    start_controller()
    cluster.start()
    wait_for(cluster.running, what="a test runs")
    api = cluster.plane.api
    api.create(wanting("patient", cluster))
    api.wait("v1", "Pod", "patient", lambda one: one["status"].get("phase") == "Running")
    status = cluster.wait(lambda one: one.get("running") == 0 and one.get("due") == 1)
    assert status["conditions"][0]["reason"] == "NodesBusy"
    assert cluster.measured() == {}
    assert status["budget"]["gpuSeconds"] > 0
    cluster.shares.write_text("")
    api.delete("v1", "Pod", "patient", gracePeriodSeconds=0)
    cluster.wait(lambda one: one.get("measured") == 1)


@pytest.mark.long
def test_nothing_starts_on_nodes_whose_gpus_are_in_use(pool: Callable[[int], Pool], start_controller: Start) -> None:
    cluster = pool(3)
    api = cluster.plane.api
    busy = cluster.nodes[2]
    api.create(wanting("one-gpu", cluster, 1, nodeName=busy))
    try:
        start_controller()
        cluster.start()
        status = cluster.wait(lambda one: one.get("measured") == 1 and one.get("due") == 2)
        assert list(cluster.measured()) == [(cluster.nodes[0], cluster.nodes[1])]
        assert status["conditions"][0]["reason"] == "NodesBusy"
    finally:
        api.delete("v1", "Pod", "one-gpu", gracePeriodSeconds=0)
    cluster.wait(lambda one: one.get("measured") == 3)


@pytest.mark.long
def test_the_budget_of_a_day_and_windows_keep_tests_from_starting(
    pool: Callable[[int], Pool], start_controller: Start
) -> None:
    cluster = pool(2)
    start_controller()
    cluster.start(gpuSecondsPerDay=10)
    cluster.wait(lambda one: (one.get("conditions") or [{}])[0].get("reason") == "BudgetSpent")
    api = cluster.plane.api
    # A window of a minute is shorter than a test may take, whatever the time is now.
    short = {"spec": {"gpuSecondsPerDay": 0, "windows": [{"from": "00:00", "to": "00:01"}]}}
    api.patch(*BENCHMARK, cluster.name, short)
    cluster.wait(lambda one: (one.get("conditions") or [{}])[0].get("reason") == "OutsideWindow")
    assert cluster.started() == 0
    api.patch(*BENCHMARK, cluster.name, {"spec": {"windows": [{"from": "00:00", "to": "24:00"}], "suspend": True}})
    cluster.wait(lambda one: (one.get("conditions") or [{}])[0].get("reason") == "Suspended")
    api.patch(*BENCHMARK, cluster.name, {"spec": {"suspend": False, "windows": []}})
    cluster.wait(lambda one: one.get("measured") == 1)


@pytest.mark.long
def test_a_template_that_is_no_pod_is_told(pool: Callable[[int], Pool], start_controller: Start) -> None:
    cluster = pool(2)
    start_controller()
    cluster.start(template={"spec": {"containers": [{"image": "x", "name": "NOT A NAME"}]}})
    status = cluster.wait(lambda one: (one.get("conditions") or [{}])[0].get("reason") == "TestsRefused")
    assert "NOT A NAME" in status["conditions"][0]["message"]


@pytest.mark.long
def test_what_is_gone_leaves_the_others_objects(pool: Callable[[int], Pool], start_controller: Start) -> None:
    cluster = pool(3)
    start_controller()
    cluster.start()
    cluster.wait(lambda one: one.get("measured") == 3)
    gone = cluster.kubelets.pop(1)
    gone.stop()

    def forgotten() -> bool:
        return gone.name not in cluster.bandwidths() and gone.name not in json.dumps(cluster.bandwidths())

    wait_for(forgotten, what="nothing names the node")
    assert cluster.wait(lambda one: one.get("nodes") == 2)["measured"] == 1
