"""KAI's pods in memory: who is held and who is not, and whatever runs and wherever it dies, only the safe are evicted,
whole, once, and for a use; and at last everybody is given to KAI."""

import json
from typing import Any

import pytest
from example_budget import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kopt.controllers.preemption.kai.views import KaiQueue
from kopt.controllers.preemption.patches import stamp

from .builders import notes
from .kai_worlds import KaiWorld, ask, full, new
from .worlds import KINDS, SETTINGS, Made, fill, fresh, gangs, live_and_die, node

Object = dict[str, Any]


@settings(max_examples=examples(40), deadline=None, phases=[Phase.generate])
@given(gangs, st.integers(1, 2), st.integers(1, 4), st.lists(st.integers(0, 8), max_size=4))
def test_only_the_safe_go_and_at_last_all_are_given_to_kai(
    made: list[Made], pods: int, gpus: int, deaths: list[int]
) -> None:
    one = KaiWorld()
    fill(one, made, pods, gpus)
    gone = live_and_die(one, made, deaths, below=100)
    assert one.held() == [], "somebody is held for ever"
    assert not gone or one.native == [], "somebody went and it did not help"
    assert all(json.loads(found)["verdict"] == "leave" for found in one.native), "it was let go without a word"


def test_the_cheapest_goes_and_its_room_is_given() -> None:
    one = full("writing", "cheap", "silent")
    one.passes(4)
    assert one.evicted == ["gang-1-0"]
    assert one.held() == []
    one.goes_on()
    assert one.pods["urgent-0"]["spec"]["nodeName"] == "n1"


def test_it_is_held_until_the_chosen_are_on_their_way_out() -> None:
    one = full("writing", "cheap", "silent")
    # Decision, notice.
    one.dies(2)
    assert (one.evicted, one.held()) == ([], ["urgent-0"])
    # And the eviction.
    one.dies(1)
    assert (one.evicted, one.held()) == (["gang-1-0"], ["urgent-0"])
    one.passes(2)
    assert one.held() == []


def test_who_was_told_and_began_to_write_stays_and_so_does_the_gate() -> None:
    one = full("writing", "cheap", "silent")
    one.dies(2)
    one.pods["gang-1-0"]["metadata"]["annotations"] |= KINDS["writing"]
    one.passes(1)
    assert (one.evicted, one.held()) == ([], ["urgent-0"])


def test_a_second_one_waits_until_the_first_has_its_room() -> None:
    one = full("cheap", "safe", "silent")
    one.add("next", 0, 4, 500, never=True)
    one.passes(4)
    assert one.held() == ["next-0"]
    assert one.evicted == ["gang-0-0"]
    one.goes_on()
    one.now_s += 1
    one.passes(4)
    assert one.evicted == ["gang-0-0", "gang-1-0"]


def test_room_that_is_made_is_not_taken_for_the_next_ones() -> None:
    one = full("cheap", "writing", "silent")
    one.add("next", 0, 4, 500, never=True)
    one.passes(4)
    # KAI has not bound it yet.
    del one.pods["gang-0-0"]
    one.now_s += 1
    one.passes(2)
    assert one.held() == ["next-0"]
    one.now_s += SETTINGS.shield_s
    one.passes(2)
    assert one.held() == []


def test_the_next_leader_finishes_what_was_begun() -> None:
    """The chosen are gone, and whoever evicted them died before the gate was opened."""
    one = full("cheap", "writing", "silent")
    one.add("next", 0, 4, 500, never=True)
    # Decision, notice, eviction.
    one.dies(3)
    assert (one.evicted, sorted(one.held())) == (["gang-0-0"], ["next-0", "urgent-0"])
    del one.pods["gang-0-0"]
    assert ask(one, new(one, priority=10, job="gang-0")), "who made room takes it again"
    assert not ask(one, new(one, priority=2000, gpus=1, job="other")), "a more important one"
    one.now_s += SETTINGS.shield_s + 1
    fresh(one)
    one.passes(1)
    assert one.held() == ["next-0"], "the room is for one of them"
    one.now_s += 1
    one.passes(2)
    assert one.held() == ["next-0"], "KAI has not given it yet"
    assert not ask(one, new(one, priority=10, job="gang-0")), "nobody is held who has decided already"
    one.goes_on()
    assert one.pods["urgent-0"]["spec"]["nodeName"] == "n0"
    one.passes(4)
    assert one.evicted == ["gang-0-0"]


def test_all_gates_of_a_gang_are_opened_although_somebody_died_between_two() -> None:
    one = full("cheap", "cheap", "writing")
    one.add("urgent", 1, 4, 1000, never=True)
    # Decisions, notices, evictions, a gate.
    one.dies(7)
    assert (len(one.evicted), len(one.held())) == (2, 1)
    for name in one.evicted:
        del one.pods[name]
    one.passes(1)
    assert one.held() == []


def test_where_others_took_the_room_that_was_made_nobody_else_is_evicted_at_once() -> None:
    one = full("cheap", "safe", "writing")
    one.dies(3)
    del one.pods["gang-0-0"]
    one.now_s += 10
    fresh(one)
    one.add("taker", 0, 4, 10, "n0")
    one.passes(4)
    assert one.evicted == ["gang-0-0"]


def test_where_kais_own_choice_loses_less_it_is_left_to_it() -> None:
    one = full("safe", "writing", "silent")
    one.pods["gang-0-0"]["metadata"]["annotations"] |= notes(lost=9_000)
    one.pods["gang-2-0"]["status"]["startTime"] = stamp(one.now_s - 3)
    one.passes(4)
    assert (one.evicted, one.held()) == ([], [])
    said = json.loads(one.pods["urgent-0"]["metadata"]["annotations"]["kaiwo.ai/preemption"])
    assert said["verdict"] == "leave"
    assert said["code"] not in ("BUDGET_SPENT", "NOT_ENOUGH")


def test_other_queues_and_who_is_not_pre_empted_by_kai_are_left_alone() -> None:
    one = full("cheap", "safe", "silent")
    one.pods["gang-0-0"]["metadata"]["labels"]["kai.scheduler/queue"] = "others"
    one.queues["others"] = KaiQueue(4_000, None)
    one.pods["gang-1-0"]["spec"]["priority"] = 100
    one.pods["gang-2-0"]["metadata"]["annotations"] = dict(KINDS["safe"])
    one.passes(4)
    assert one.evicted == ["gang-2-0"]


@pytest.mark.parametrize("label", ["priorityClassName", "kai.scheduler/preemptibility"])
def test_pods_with_rules_of_kais_own_are_left_alone(label: str) -> None:
    one = full("cheap", "safe", "silent")
    one.pods["gang-0-0"]["metadata"]["labels"][label] = "any"
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("mode", "MODE"),
        ("unmanaged", "MODE"),
        ("overdue", "OVERDUE"),
        ("room", "FITS"),
        ("cpu", "OTHER_RESOURCES"),
        ("quota", "QUEUE_QUOTA"),
        ("limit", "OTHER_RESOURCES"),
        ("others", "OTHER_QUEUES"),
        ("queue", "NO_QUEUE"),
    ],
)
def test_it_is_given_to_kai_where_it_is_not_ours(what: str, code: str) -> None:
    one = full("cheap", "safe", "writing")
    match what:
        case "mode":
            one.space_mode = "observe"
        case "unmanaged":
            one.managed = False
        case "overdue":
            one.now_s += 140
        case "room":
            del one.pods["gang-2-0"]
        case "cpu":
            one.pods["urgent-0"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000"
        case "quota":
            one.queues = {"team": KaiQueue(3_000, None)}
        case "limit":
            one.queues = {"team": KaiQueue(11_000, 11_000)}
        case "others":
            one.queues["others"] = KaiQueue(0, None)
            one.pods["gang-0-0"]["metadata"]["labels"]["kai.scheduler/queue"] = "others"
        case "queue":
            one.queues = {}
    one.passes(3)
    assert (one.evicted, one.held()) == ([], [])
    assert json.loads(one.pods["urgent-0"]["metadata"]["annotations"]["kaiwo.ai/preemption"])["code"] == code


def test_who_is_within_the_least_time_of_its_queue_is_left_alone() -> None:
    one = full("cheap", "safe", "writing")
    one.queues = {"team": KaiQueue(12_000, None, "all"), "all": KaiQueue(None, None, least_run_s=3600.0)}
    one.pods["gang-0-0"]["status"]["startTime"] = stamp(one.now_s - 60)
    one.passes(4)
    assert one.evicted == ["gang-1-0"]
    one = full("cheap", "writing", "writing")
    one.queues = {"team": KaiQueue(12_000, None, least_run_s=1e6)}
    assert not ask(one, new(one)), "KAI takes nobody of them"


@pytest.mark.parametrize(("limit", "evicted"), [(16_000, ["gang-0-0"]), (13_000, [])])
def test_nobody_goes_where_a_queue_above_would_be_over_its_limit(limit: int, evicted: list[str]) -> None:
    """Twelve are used below it; a node has room for one of two pods."""
    one = full("cheap", "safe", "silent")
    one.pods["gang-2-0"]["metadata"]["labels"]["kai.scheduler/queue"] = "others"
    one.add("urgent", 1, 4, 1000, never=True)
    one.nodes["n3"] = node("n3", 4)
    one.queues = {
        "team": KaiQueue(None, None, "all"),
        "others": KaiQueue(None, None, "all"),
        "all": KaiQueue(None, limit),
    }
    one.passes(4)
    assert (one.evicted, one.held()) == (evicted, [])


def test_what_cannot_be_evicted_holds_nobody_for_ever() -> None:
    one = full("cheap", "cheap", "writing")
    one.add("urgent", 1, 4, 1000, never=True)
    one.dies(4)
    one.refuses = {"gang-0-0", "gang-1-0"}
    one.passes(4)
    one.now_s += 140
    fresh(one)
    one.passes(4)
    assert (one.evicted, one.held()) == ([], [])


def test_what_cannot_be_written_holds_nobody_else_for_ever() -> None:
    one = full("cheap", "cheap", "writing")
    one.dies(3)
    one.rejects = {"urgent-0"}
    one.add("next", 0, 4, 500, never=True)
    one.now_s += 140
    fresh(one)
    one.passes(4)
    assert one.held() == ["urgent-0"]
