"""The loop is closed: a training borrows GPUs, saves and stops before a rush, and goes on where it was.

Nothing here stands for a component: Prometheus scrapes the service, `kopt controller ingest` follows it, forecasts lend
GPUs and scale the service. Only clients, a submitter and, where everything of ours is dead, an administrator act.
"""

import time

import pytest
from controlplane.kueue import admitted
from example_budget import THOROUGH

from tests.story.cluster import READER, STRANGER, Cluster
from tests.story.conftest import Story
from tests.story.service import answered_by_one_process
from tests.story.traffic import BUCKET_S, DAY_S

pytestmark = [pytest.mark.cluster, pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(2400)]
STARTING_S = 200.0
"""Within which the training trains and has saved once."""


def borrow(cluster: Cluster) -> None:
    """A training runs on lent GPUs, and has work to lose."""
    cluster.tell("one node with four GPUs, a service that needs one, Kueue, and everything of ours is ready")
    cluster.lend()
    cluster.until(lambda: cluster.lent() >= 2, "the forecast leaves room: two of the service's four GPUs are lent")
    cluster.submit()
    cluster.until(lambda: admitted(cluster.workload()), "Kueue admits the training to them")
    cluster.until(lambda: cluster.trainers(), "it trains, a Hugging Face Trainer")
    cluster.until(lambda: cluster.notes().get("kaiwo.ai/last-checkpoint-step"), "its log tells of a checkpoint")


def lose_a_replica(cluster: Cluster) -> None:
    """One of the endpoint's two replicas is killed while the log is followed: the other one knows what it knew."""
    service = cluster.endpoint
    cluster.until(lambda: {one.replica for one in service.exchanges} == {0, 1}, "both replicas have read its log")
    killed = service.kill_one()
    before = len(service.exchanges)
    cluster.tell("one of the two replicas of the prediction endpoint is killed: it had answered last")
    step = int(cluster.notes()["kaiwo.ai/last-checkpoint-step"])
    cluster.until(lambda: len(service.exchanges) > before + 2, "the other one goes on reading the log")
    assert {one.replica for one in service.exchanges[before:]} == {1 - killed}
    for exchange in service.exchanges[before:]:
        assert exchange.answer["last_durable_step"] >= step
        assert exchange.answer["lines"] > 10
        assert not exchange.answer["fallback"]


def the_answers_were_those_of_one_process(cluster: Cluster) -> None:
    """The same lines, asked of a single process at the same times."""
    pairs = answered_by_one_process(cluster.endpoint.exchanges, cluster.folder)
    assert [both for both in pairs if both[0] != both[1]] == []
    cluster.tell(f"a single process gives the same {len(pairs)} answers, {sum(one['safe'] for one, _ in pairs)} safe")


def resumed(cluster: Cluster, saved: int, timeout_s: float = 90.0) -> None:
    (pod,) = cluster.until(lambda: cluster.trainers(), "it trains again", timeout_s)
    cluster.until(lambda: f" {saved + 1}/" in cluster.log(pod), "it goes on at the step that was saved")
    assert " 1/100000" not in cluster.log(pod)


def test_training_borrows_gives_back_and_goes_on(story: Story) -> None:
    with story(STARTING_S) as cluster:
        borrow(cluster)
        (before,) = cluster.saved_steps()
        (pod,) = cluster.trainers()
        cluster.until(lambda: f" {before + 100}/" in cluster.log(pod), "it trains on")
        lose_a_replica(cluster)
        cluster.until(lambda: f" {before + 200}/" in cluster.log(pod), "it has trained on: there is work to lose")

        request = cluster.until(
            lambda: cluster.notes().get("kaiwo.ai/save-requested"),
            "the forecast sees the daily rush: it is asked to save",
            2 * BUCKET_S + 30,
        )
        late_s = time.time() % BUCKET_S
        cluster.tell(f"{late_s:.1f} s after the end of the five minutes in which the last request was counted")
        assert "kopt-reallocation" in request
        cluster.until(
            lambda: cluster.workload()["spec"].get("active") is False,
            "its log has told of the checkpoint: it is stopped",
        )
        cluster.until(lambda: not cluster.trainers(), "its pod is gone")
        saved = max(cluster.saved_steps())
        assert saved > before + 200, "it was saved on request"
        cluster.until(lambda: len(cluster.servers()) == 4, "the autoscaler has seen it too: the service has four GPUs")
        (eviction,) = cluster.until(lambda: cluster.evictions(), "the loan taken back has its Eviction")
        assert eviction["spec"]["cause"] == "Lending"
        assert eviction["spec"]["by"] == "kopt-reallocation"
        assert eviction["spec"]["lastDurableStep"] == saved
        assert eviction["spec"]["lostGpuSeconds"] < 60
        cluster.show("why", f"{cluster.space}/llama")
        assert "lent" in cluster.kopt("why", f"{cluster.space}/llama", "-o", "json")
        page = cluster.until(
            lambda: "llama" in (text := cluster.page(READER)) and text, "the page Cluster shows it to who may see it"
        )
        assert cluster.space in page
        assert "loan taken back" in page
        assert cluster.page(STRANGER), "somebody else logs in as well"
        assert "llama" not in cluster.page(STRANGER)
        the_answers_were_those_of_one_process(cluster)
        if THOROUGH:
            until_it_has_finished(cluster, saved)


def until_it_has_finished(cluster: Cluster, saved: int) -> None:
    """After the rush of ten minutes."""
    cluster.until(lambda: len(cluster.servers()) <= 2, "the rush is over: the service is scaled down", 1200)
    resumed(cluster, saved, 900)
    outcome = cluster.until(
        lambda: (one := cluster.evictions()[0].get("status", {})).get("verified") == "Yes" and one,
        "its log shows the controller of Evictions that it did",
    )
    assert outcome["phase"] == "Resumed"
    assert saved <= outcome["resumedStep"] <= saved + 20
    assert "llama" in cluster.kopt("evictions", "-n", cluster.space, "-o", "json")
    (cluster.output / "enough").touch()
    cluster.until(lambda: cluster.evictions()[0]["status"]["phase"] == "Finished", "it finishes")
    cluster.show("evictions", "-n", cluster.space)
    assert len(cluster.evictions()) == 1
    assert cluster.pool()["history"]


def test_without_any_of_ours_the_service_gets_its_gpus_and_nothing_is_lost(story: Story) -> None:
    with story(DAY_S / 2) as cluster:
        cluster.tell("the same again, until everything of ours is killed")
        borrow(cluster)
        cluster.kill()
        cluster.tell("everything of ours is killed")
        cluster.scale(4)
        cluster.until(lambda: len(cluster.servers()) == 4, "the native scheduler makes room")
        saved = max(cluster.saved_steps())
        cluster.revive()
        cluster.until(lambda: len(cluster.servers()) <= 2, "the autoscaler has a forecast again")
        resumed(cluster, saved, 900)
        (cluster.output / "enough").touch()
        job = cluster.until(
            lambda: (
                (one := cluster.plane.api.get("batch/v1", "Job", "llama", cluster.space))["status"].get("succeeded")
                and one
            ),
            "it finishes",
        )
        assert job["status"]["succeeded"] == 1
