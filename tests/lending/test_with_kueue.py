"""GPUs are lent by a real Kueue's quota, taken back before a spike, and those who gave them back go on."""

from collections.abc import Callable

import pytest
from controlplane.processes import wait_for

from .conftest import CLUSTER_QUEUE, POOL, WORKLOAD, Controller, Scene


def test_borrow_spike_reclaim_and_return(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    scene.serve("chat-0", "chat-1")
    scene.expect(2, 2.4, 2.6, 2.9)
    scene.pool()
    wait_for(lambda: scene.lent(5), what="five GPUs are lent")
    wait_for(lambda: scene.quota() == 5, what="the queue may use them")
    scene.run("one", 2)
    scene.run("two", 3)
    wait_for(lambda: scene.status()["borrowedGpus"] == 5, what="they are borrowed")
    for name in ("one", "two"):
        scene.note(name)
    # The forecast alone, before any pod asks for it.
    scene.expect(5, 6, 6.5, 6.9)
    wait_for(lambda: scene.quota() == 1, what="the quota falls")
    wait_for(lambda: scene.held() == {"one", "two"}, what="both were told to go")
    notice = scene.notice("two")
    assert (notice["by"], notice["cause"], notice["for"]) == ("kopt-reallocation", "Lending", f"{scene.space}/chat")
    wait_for(lambda: scene.runs() == set(), what="their pods are gone")
    scene.serve("chat-2", "chat-3", "chat-4", "chat-5")
    wait_for(lambda: len(scene.serving()) == 6, what="the service has its GPUs")
    wait_for(lambda: "reclaiming" not in scene.status(), what="nothing is being taken back any more")
    assert {"Lending", "Reclaiming", "Reclaimed"} <= scene.events().keys()
    # One GPU is lent, nobody fits.
    assert scene.held() == {"one", "two"}
    scene.stop_serving("chat-2", "chat-3", "chat-4", "chat-5")
    scene.expect(2, 2.4, 2.6, 2.9)
    wait_for(lambda: scene.runs() == {"one", "two"}, what="both go on")
    assert scene.held() == set()
    history = scene.status()["history"]
    assert history[-1].keys() >= {"at", "lent", "borrowed", "service", "provision", "p50", "p99"}


@pytest.mark.long
def test_it_only_says_so_where_it_observes(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    scene.serve("chat-0")
    scene.expect(2, 2.4, 2.6, 2.9)
    scene.pool("observe")
    wait_for(lambda: scene.lent(5), what="five GPUs would be lent")
    wait_for(lambda: "LendingAdvised" in scene.events(), what="it says so")
    assert scene.quota() == 0


@pytest.mark.long
def test_those_who_gave_back_return_in_the_ledgers_order(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    lend_to(scene, "one", "two")
    scene.expect(7, 7, 7, 8)
    wait_for(lambda: scene.held() == {"one", "two"}, what="both were told to go")
    wait_for(lambda: scene.runs() == set(), what="their pods are gone")
    # The ledger, by whoever keeps it: the second lost more.
    for name, order in (("one", 20), ("two", 10)):
        scene.line(name, order)
    scene.expect(3, 4, 4, 5)
    wait_for(lambda: scene.runs() == {"two"}, what="the first in order goes on")
    assert scene.held() == {"one"}
    scene.expect(2, 2.4, 2.6, 2.9)
    wait_for(lambda: scene.runs() == {"one", "two"}, what="then the other")
    assert scene.returned() == ["two", "one"]


@pytest.mark.long
def test_a_write_is_not_cut_by_us_but_the_service_gets_its_gpus(
    scene: Scene, controller: Callable[..., Controller]
) -> None:
    controller()
    lend_to(scene, "one", "two")
    scene.note("one", "CKPT_WRITING", safe=False)
    scene.note("two", "CKPT_WRITING", safe=False)
    scene.expect(7, 7, 7, 8)
    wait_for(lambda: "ReclaimWaits" in scene.events(), what="it waits for a better moment")
    assert scene.quota() == 0
    assert scene.held() == set()
    # The need is there before the checkpoint: the native scheduler makes room by priority.
    scene.serve("chat-2", "chat-3", "chat-4", "chat-5", "chat-6")
    wait_for(lambda: len(scene.serving()) == 7, what="the service has its GPUs")
    wait_for(lambda: scene.held() != set(), what="who lost his pods gives back the quota, too")


@pytest.mark.long
def test_who_can_be_asked_saves_first(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    scene.serve("chat-0", "chat-1")
    scene.expect(2, 2.4, 2.6, 2.9)
    scene.pool()
    scene.run("one", 4, askable=True)
    scene.note("one", lost=3600, saved_s=-900)
    scene.expect(7, 7, 7, 8)
    asked = wait_for(lambda: scene.asked("one"), what="it is asked to save")
    assert (asked["by"], asked["for"]) == ("kopt-reallocation", f"{scene.space}/chat")
    assert scene.held() == set()
    scene.note("one", "CKPT_WRITING", safe=False, lost=3600, saved_s=-900)
    assert scene.held() == set()
    scene.note("one", "TRAIN", lost=10, saved_s=2)
    wait_for(lambda: scene.held() == {"one"}, what="it has saved and is told to go")
    wait_for(lambda: scene.status()["state"].get("saves"), what="how long that took is remembered")


@pytest.mark.long
def test_whom_its_user_stopped_stays_so(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    lend_to(scene, "one", "two")
    name = scene.workload("one")["metadata"]["name"]
    scene.api.patch(*WORKLOAD, name, {"spec": {"active": False}}, scene.space)
    wait_for(lambda: scene.runs() == {"two"}, what="its user has stopped it")
    scene.expect(7, 7, 7, 8)
    wait_for(lambda: scene.held() == {"two"}, what="the other was told to go")
    scene.expect(2, 2.4, 2.6, 2.9)
    wait_for(lambda: scene.runs() == {"two"}, what="the other goes on")
    wait_for(lambda: scene.lent(5) and scene.status()["borrowedGpus"] == 2, what="there is room for it")
    assert scene.workload("one")["spec"]["active"] is False


@pytest.mark.long
def test_a_pool_that_is_deleted_gives_everything_back(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    lend_to(scene, "one", "two")
    scene.expect(6, 6, 6, 6)
    wait_for(lambda: scene.held() != set(), what="somebody was told to go")
    scene.api.delete(*POOL, scene.space, "")
    wait_for(lambda: scene.quota() == 0, what="the queue has its own quota again")
    wait_for(lambda: scene.held() == set(), what="nobody is held")
    found = scene.api.get(*CLUSTER_QUEUE, scene.queue, "")["metadata"]
    assert "kaiwo.ai/held-undo" not in found.get("annotations", {})


@pytest.mark.long
def test_a_cohort_would_borrow_what_is_lent(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    scene.api.patch(*CLUSTER_QUEUE, scene.queue, {"spec": {"cohort": "all"}}, "")
    scene.serve("chat-0")
    scene.expect(2, 2.4, 2.6, 2.9)
    scene.pool()
    wait_for(lambda: scene.condition("Ready")["reason"] == "Cohort", what="it says that it cannot lend to it")
    assert scene.quota() == 0


def lend_to(scene: Scene, *names: str) -> None:
    """Jobs of two GPUs that run on lent ones, and are safe to stop."""
    scene.serve("chat-0", "chat-1")
    scene.expect(2, 2.4, 2.6, 2.9)
    scene.pool()
    for name in names:
        scene.run(name, 2)
        scene.note(name)
