"""A tournament on real nodes, pods and logs: sick nodes are named, and nothing is measured twice."""

from collections.abc import Callable

import pytest
from controlplane.processes import Server

from .conftest import BANDWIDTH, Pool

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Start = Callable[..., Server]


def test_a_slow_node_ends_degraded_and_it_is_said_why(pool: Callable[[int], Pool], start_controller: Start) -> None:
    cluster = pool(6)
    sick = cluster.nodes[3]
    cluster.shares.write_text(f"{sick} 0.4\n")
    start_controller()
    cluster.start()
    status = cluster.wait(lambda one: one.get("measured") == 15 and one.get("degradedNodes") == 1)
    assert (status["due"], status["running"], status["slowPairs"], status["failedPairs"]) == (0, 0, 5, 0)
    assert status["conditions"][0]["reason"] == "UpToDate"
    found = cluster.bandwidths()
    assert {name: one["health"] for name, one in found.items()} == {
        name: "Slow" if name == sick else "Healthy" for name in cluster.nodes
    }
    assert found[sick]["reason"] == (
        "all_reduce with 5 of 5 nodes reaches 0.40 of what such pairs reach (median 92 GB/s)"
    )
    peers = cluster.measured()
    assert len(peers) == 15
    good = peers[(cluster.nodes[0], cluster.nodes[1])]
    assert good["betaGBps"] == pytest.approx(92, rel=0.01)
    assert good["alphaMicroseconds"] == pytest.approx(25, rel=0.02)
    assert (good["software"], good["gpusPerNode"], len(good["points"])) == ("nccl 2.27.3", 4, 11)
    api = cluster.plane.api
    owner = api.get(*BANDWIDTH, sick)["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", sick)
    events = api.list("events.k8s.io/v1", "Event", fields=f"regarding.name={sick}")
    (told,) = [one["note"] for one in events if one["reason"] == "BandwidthDegraded"]
    assert "reaches 0.40 of what such pairs reach" in told
    assert not cluster.jobs()


@pytest.mark.long
def test_a_restart_in_the_middle_measures_nothing_twice(pool: Callable[[int], Pool], start_controller: Start) -> None:
    cluster = pool(4)
    cluster.shares.write_text("seconds 1\n")
    first = start_controller()
    cluster.start(maxPairsAtOnce=2)
    cluster.wait(lambda one: one.get("measured", 0) >= 1 and one.get("running") == 2)
    running = {job["metadata"]["uid"] for job in cluster.jobs()}
    first.kill()
    start_controller()
    cluster.wait(lambda one: one.get("measured") == 6)
    assert running
    assert cluster.started() == 6
    assert len(cluster.measured()) == 6
