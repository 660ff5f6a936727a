"""Which of KAI's pods are held as they are created."""

from typing import Any, cast

from kopt.controllers.preemption.kai.scheduling_gates import Gating
from kopt.controllers.preemption.kai.snapshot import kai_refusal
from kopt.controllers.preemption.kai.views import KaiQueue, kai_queue
from kopt.controllers.preemption.patches import stamp
from kopt.core.decision import Mode

from .builders import NOW_S
from .kai_worlds import ask, full, new

Object = dict[str, Any]


def test_who_would_make_kai_pre_empt_is_held_and_nobody_else() -> None:
    one = full("cheap", "safe", "writing")
    del one.pods["urgent-0"]
    assert ask(one, new(one))
    assert not ask(one, new(one, priority=10)), "nobody is lower"
    assert not ask(one, new(one, gpus=5)), "no node has so many"
    assert not ask(one, new(one, gpus=0))
    for change in (
        {"schedulerName": "default-scheduler"},
        {"schedulingGates": [{"name": "others"}]},
        {"affinity": {"podAffinity": {}}},
        {"priorityClassName": ""},
    ):
        other = new(one)
        other["spec"] |= change
        assert not ask(one, other), change
    one.queues = {"team": KaiQueue(12_000, 8_000)}
    assert ask(one, new(one)), "room for it can be made below the limit"
    one.queues = {"team": KaiQueue(3_000, None)}
    assert not ask(one, new(one))
    one.queues = {"team": KaiQueue(12_000, None)}
    one.space_mode = "annotate"
    assert not ask(one, new(one))
    one.space_mode = ""
    del one.pods["gang-0-0"]
    assert not ask(one, new(one)), "there is room"


def test_of_a_gang_whose_pods_come_at_once_those_without_room_are_held() -> None:
    one = full("cheap", "safe")
    del one.pods["urgent-0"]
    gating = Gating(cast(Any, one), Mode.ENFORCE, lambda: one.now_s)
    assert [ask(one, new(one), gating) for _ in range(3)] == [False, True, True]
    one.now_s += 10
    assert not ask(one, new(one), gating), "those have gone elsewhere"


def test_room_that_is_being_left_is_for_the_one_that_it_was_made_for() -> None:
    one = full("cheap", "writing", "silent")
    one.passes(4)
    assert (one.evicted, one.held()) == (["gang-0-0"], [])
    assert ask(one, new(one, priority=500)), "KAI would pre-empt for it, as it gives the room to the first"
    one = full("cheap", "writing", "silent")
    one.pods["gang-0-0"]["metadata"]["deletionTimestamp"] = stamp(one.now_s + 30)
    del one.pods["urgent-0"]
    assert not ask(one, new(one)), "its user deletes that job; KAI waits for the room"


def test_numbers_of_a_queue() -> None:
    spec = {"resources": {"gpu": {"quota": 1.5, "limit": -1}}}
    assert kai_queue({"spec": spec}) == KaiQueue(1500, None)
    spec |= {"parentQueue": "all", "preemptMinRuntime": "1h30m0.5s"}
    assert kai_queue({"spec": spec}) == KaiQueue(1500, None, "all", 5400.5)
    assert kai_queue({"spec": {}}) == KaiQueue(0, 0)
    one = full("cheap", "safe", "writing")
    moment = one.snapshot(NOW_S)
    assert kai_refusal(moment.preemptors()[0], moment) is None
