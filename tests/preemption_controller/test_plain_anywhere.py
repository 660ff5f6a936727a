"""Plain pods in memory: whatever runs and wherever it dies, only the safe are evicted, whole, once, and for a use."""

import asyncio
import contextlib
from typing import Any, cast

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kopt.controllers.preemption.plain.views import PlainNode

from .builders import KilledError
from .worlds import KINDS, SETTINGS, Made, World, fill, fresh, gangs, live_and_die


@settings(max_examples=150, deadline=None, phases=[Phase.generate])
@given(gangs, st.integers(1, 2), st.integers(1, 4), st.lists(st.integers(0, 8), max_size=4))
def test_only_the_safe_go_whole_and_once(made: list[Made], pods: int, gpus: int, deaths: list[int]) -> None:
    one = world(made, pods, gpus)
    gone = live_and_die(one, made, deaths, below=1000)
    bound = [name for name, pod in one.pods.items() if name.startswith("urgent") and pod["spec"]["nodeName"]]
    assert not gone or len(bound) == pods, "somebody went and it did not help"
    assert not [name for name, pod in one.pods.items() if "kaiwo.ai/evicting" in pod["metadata"]["annotations"]]


def world(made: list[Made], pods: int, gpus: int) -> World:
    one = World()
    fill(one, made, pods, gpus)
    return one


def three(*kinds: str, pods: int = 1) -> World:
    """A gang of four GPUs on each node, and one that waits."""
    one = World()
    for number, kind in enumerate(kinds):
        one.add(f"gang-{number}", 0, 4, 10, f"n{number}", dict(KINDS[kind]))
    for number in range(pods):
        one.add("urgent", number, 4, 1000, never=True)
    return one


def test_who_was_told_is_evicted_by_the_next_leader() -> None:
    one = three("writing", "cheap", "silent")
    # Decision, promise, notice.
    one.dies_after = 3
    with contextlib.suppress(KilledError):
        one.passes(5)
    assert one.evicted == []
    assert one.pods["urgent-0"]["status"]["nominatedNodeName"] == "n1"
    one.dies_after = None
    one.passes()
    assert one.evicted == ["gang-1-0"]


def test_the_rest_goes_where_only_one_of_two_was_told() -> None:
    one = world([("cheap", [0, 0], 10, False), ("cheap", [0, 0], 10, False)], 1, 4)
    # Decision, promise, one gang of two pods.
    one.dies_after = 4
    with contextlib.suppress(KilledError):
        one.passes(5)
    assert one.evicted == []
    one.dies_after = None
    one.now_s += 6
    fresh(one)
    one.passes(4)
    assert len(one.evicted) == 4


def test_a_gang_that_lost_a_pod_goes_whole_although_nobody_waits_any_more() -> None:
    one = world([("cheap", [0, 1, 2], 10, False)], 1, 1)
    # Decision, promise, three notices, one eviction.
    one.dies_after = 6
    with contextlib.suppress(KilledError):
        one.passes(5)
    assert len(one.evicted) == 1
    one.dies_after = None
    one.goes_on()
    assert one.pods["urgent-0"]["spec"]["nodeName"]
    one.passes()
    assert len(one.evicted) == 3


def test_one_that_begins_to_write_after_it_was_told_stays() -> None:
    one = three("writing", "cheap", "silent")
    one.dies_after = 3
    with contextlib.suppress(KilledError):
        one.passes(5)
    one.dies_after = None
    one.pods["gang-1-0"]["metadata"]["annotations"] |= KINDS["writing"]
    one.passes()
    assert one.evicted == []
    assert "kaiwo.ai/evicting" not in one.pods["gang-1-0"]["metadata"]["annotations"]


def test_it_stays_where_room_came_free_or_nothing_is_known_any_more() -> None:
    for what in ("room", "silence"):
        one = three("writing", "cheap", "silent")
        one.dies_after = 3
        with contextlib.suppress(KilledError):
            one.passes(5)
        one.dies_after = None
        if what == "room":
            del one.pods["gang-2-0"]
        else:
            one.now_s += 600
        one.passes()
        assert one.evicted == []
        assert "kaiwo.ai/evicting" not in one.pods["gang-1-0"]["metadata"]["annotations"]


def test_what_a_budget_protects_is_not_told() -> None:
    one = three("safe", "cheap", "silent")
    one.refuses = {"gang-1-0"}
    one.passes(4)
    assert one.evicted == ["gang-0-0"]


def test_nobody_goes_where_other_resources_lack() -> None:
    one = three("safe", "cheap", "silent")
    one.pods["urgent-0"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000"
    one.passes(4)
    assert one.evicted == []
    assert ("urgent-0", "PreemptionWaits") in one.told


def test_nobody_goes_on_nodes_that_it_may_not_use() -> None:
    one = three("safe", "cheap", "silent")
    one.nodes["n1"] = PlainNode("n1", one.nodes["n1"].room, {}, (("dedicated", "others", "NoSchedule"),))
    one.passes(4)
    assert one.evicted == ["gang-0-0"]


def test_affinities_are_not_judged() -> None:
    one = three("safe", "cheap", "silent")
    one.pods["urgent-0"]["spec"]["affinity"] = {"podAntiAffinity": {}}
    one.passes(4)
    assert one.evicted == []


def test_what_was_said_of_those_that_are_gone_is_forgotten() -> None:
    one = three("writing", "silent", "silent")
    taking = one.takes(one, cast(Any, one), SETTINGS, one.tell, lambda: one.now_s)
    for number in range(3):
        one.add(f"urgent-{number}", 0, 4, 1000, never=True)
        asyncio.run(taking.step())
        assert f"team/urgent-{number}" in taking._said
        del one.pods[f"urgent-{number}-0"]
    assert set(taking._said) <= {"team/urgent", "team/urgent-2"}
    del one.pods["urgent-0"]
    asyncio.run(taking.step())
    assert taking._said == {}
