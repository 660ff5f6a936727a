"""The loop is closed: a training borrows GPUs, saves and stops before a spike, and goes on where it was."""

import pytest
from controlplane.kueue import admitted

from tests.story.conftest import PEAK, Cluster, Demand, demand_at

pytestmark = [pytest.mark.cluster, pytest.mark.trainers, pytest.mark.slow, pytest.mark.timeout(900)]
QUIET, RISING, OVER = PEAK - 4, PEAK - 1, PEAK + 18
CAREFUL = 0.98


def capacity(url: str, demand: Demand) -> float:
    """Requests that a GPU answers in five minutes, such that two suffice while it is quiet and not when it rises."""
    demand.stand_at(QUIET)
    quiet = demand_at(url, CAREFUL)
    return quiet / 1.6


def test_training_borrows_gives_back_and_goes_on(cluster: Cluster, demand: Demand) -> None:
    cluster.tell("one node with four GPUs, a service that needs one, Kueue, a ledger, lending and a log agent")
    cluster.scale_service(1)
    cluster.start()
    cluster.lend(capacity(cluster.endpoint, demand))
    cluster.until(lambda: cluster.lent() >= 2, "the forecast leaves room: two of the service's four GPUs are lent")
    cluster.submit()
    cluster.until(lambda: admitted(cluster.workload()), "Kueue admits the training to them")
    (pod,) = cluster.until(lambda: cluster.trainers(), "it trains, a Hugging Face Trainer")
    cluster.until(lambda: cluster.notes().get("kaiwo.ai/last-checkpoint-step"), "its log tells of a checkpoint")

    (before,) = cluster.saved_steps()
    cluster.until(lambda: f" {before + 200}/" in cluster.log(pod), "it has trained on: there is work to lose")
    cluster.tell("the recorded demand rises")
    demand.stand_at(RISING)
    request = cluster.until(
        lambda: cluster.notes().get("kaiwo.ai/save-requested"), "the forecast sees the spike: it is asked to save"
    )
    assert "kopt-reallocation" in request
    cluster.until(
        lambda: cluster.workload()["spec"].get("active") is False, "its log has told of the checkpoint: it is stopped"
    )
    cluster.until(lambda: not cluster.trainers(), "its pod is gone")
    saved = max(cluster.saved_steps())
    assert saved > before + 200, "it was saved on request"
    demand.stand_at(PEAK)
    cluster.scale_service(4)
    cluster.until(lambda: cluster.serving() == 4, "the spike is here: the service runs on four GPUs")
    (line,) = cluster.until(lambda: cluster.evictions(), "the ledger has the eviction")
    assert line["spec"]["cause"] == "Lending"
    assert line["spec"]["by"] == "kopt-reallocation"
    assert line["spec"]["lastDurableStep"] == saved
    assert line["spec"]["lostGpuSeconds"] < 60

    cluster.show("why", f"{cluster.space}/llama")

    cluster.tell("the spike is over")
    cluster.scale_service(1)
    demand.stand_at(OVER)
    (pod,) = cluster.until(lambda: cluster.trainers(), "it trains again")
    cluster.until(lambda: f" {saved + 1}/" in cluster.log(pod), "it goes on at the step that was saved")
    assert " 1/100000" not in cluster.log(pod)
    outcome = cluster.until(
        lambda: (one := cluster.evictions()[0].get("status", {})).get("verified") == "Yes" and one,
        "the ledger has seen in its log that it did",
    )
    assert outcome["phase"] == "Resumed"
    assert saved <= outcome["resumedStep"] <= saved + 20
    assert "llama" in cluster.kopt("evictions", "-n", cluster.space, "-o", "json")
    assert "lent" in cluster.kopt("why", f"{cluster.space}/llama", "-o", "json")

    page = cluster.until(lambda: "llama" in (text := cluster.page()) and text, "the page Cluster shows it")
    assert cluster.space in page
    assert "loan taken back" in page

    (cluster.output / "enough").touch()
    cluster.until(lambda: cluster.evictions()[0]["status"]["phase"] == "Finished", "it finishes")
    cluster.show("evictions", "-n", cluster.space)
    assert len(cluster.evictions()) == 1
    assert cluster.pool()["history"]


def test_without_any_of_ours_the_service_gets_its_gpus_and_nothing_is_lost(cluster: Cluster, demand: Demand) -> None:
    cluster.tell("the same again, until everything of ours is killed")
    cluster.scale_service(1)
    cluster.start()
    cluster.lend(capacity(cluster.endpoint, demand))
    cluster.until(lambda: cluster.lent() >= 2, "the forecast leaves room: two of the service's four GPUs are lent")
    cluster.submit()
    cluster.until(lambda: cluster.trainers(), "it trains")
    cluster.until(lambda: cluster.notes().get("kaiwo.ai/last-checkpoint-step"), "its log tells of a checkpoint")
    cluster.kill()
    cluster.tell("everything of ours is killed")
    cluster.scale_service(4)
    cluster.until(lambda: cluster.serving() == 4, "the native scheduler makes room")
    saved = max(cluster.saved_steps())
    cluster.scale_service(1)
    demand.stand_at(OVER)
    cluster.start()
    (pod,) = cluster.until(lambda: cluster.trainers(), "it trains again")
    cluster.until(lambda: f" {saved + 1}/" in cluster.log(pod), "it goes on at the step that was saved")
    (cluster.output / "enough").touch()
    job = cluster.until(
        lambda: (
            (one := cluster.plane.api.get("batch/v1", "Job", "llama", cluster.space))["status"].get("succeeded") and one
        ),
        "it finishes",
    )
    assert job["status"]["succeeded"] == 1
