"""Plain pods in memory: whatever runs and wherever it dies, only the safe are evicted, whole, once, and for a use."""

import asyncio
import json
from typing import Any, cast

import pytest
from example_budget import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kopt.cluster.workloads.jobs import outlives
from kopt.controllers.preemption.kube_scheduler.views import PlainNode
from kopt.controllers.preemption.patches import stamp

from .worlds import KINDS, SETTINGS, Made, Object, World, fill, fresh, gangs, live_and_die


@settings(max_examples=examples(40), deadline=None, phases=[Phase.generate])
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
    one.dies(3)
    assert one.evicted == []
    assert one.pods["urgent-0"]["status"]["nominatedNodeName"] == "n1"
    one.passes()
    assert one.evicted == ["gang-1-0"]


def test_the_rest_goes_where_only_one_of_two_was_told() -> None:
    one = world([("cheap", [0, 0], 10, False), ("cheap", [0, 0], 10, False)], 1, 4)
    # Decision, promise, one gang of two pods.
    one.dies(4)
    assert one.evicted == []
    one.now_s += 6
    fresh(one)
    one.passes(4)
    assert len(one.evicted) == 4


def test_a_gang_that_lost_a_pod_goes_whole_although_nobody_waits_any_more() -> None:
    one = world([("cheap", [0, 1, 2], 10, False)], 1, 1)
    # Decision, promise, three notices, one eviction.
    one.dies(6)
    assert len(one.evicted) == 1
    one.goes_on()
    assert one.pods["urgent-0"]["spec"]["nodeName"]
    one.passes()
    assert len(one.evicted) == 3


def test_one_that_begins_to_write_after_it_was_told_stays() -> None:
    one = three("writing", "cheap", "silent")
    one.dies(3)
    one.pods["gang-1-0"]["metadata"]["annotations"] |= KINDS["writing"]
    one.passes()
    assert one.evicted == []
    assert "kaiwo.ai/evicting" not in one.pods["gang-1-0"]["metadata"]["annotations"]


def test_it_stays_where_room_came_free_or_nothing_is_known_any_more() -> None:
    for what in ("room", "silence"):
        one = three("writing", "cheap", "silent")
        one.dies(3)
        if what == "room":
            del one.pods["gang-2-0"]
        else:
            one.now_s += 600
        one.passes()
        assert one.evicted == []
        assert "kaiwo.ai/evicting" not in one.pods["gang-1-0"]["metadata"]["annotations"]


def test_the_jobs_of_a_job_set_go_together() -> None:
    one = three("cheap", "cheap", "safe")
    for name in ("gang-0-0", "gang-1-0"):
        one.pods[name]["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "set"}
    one.sets = {"job-gang-0": "set", "job-gang-1": "set"}
    one.passes(4)
    assert one.evicted == ["gang-0-0", "gang-1-0"]
    one = three("cheap", "writing", "safe")
    for name in ("gang-0-0", "gang-1-0"):
        one.pods[name]["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "set"}
    one.sets = {"job-gang-0": "set", "job-gang-1": "set"}
    one.passes(4)
    assert one.evicted == ["gang-2-0"], "one of its Jobs is in a write"


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
        assert f"team/urgent-{number}" in taking._reported
        del one.pods[f"urgent-{number}-0"]
    assert set(taking._reported) <= {"team/urgent", "team/urgent-2"}
    del one.pods["urgent-0"]
    asyncio.run(taking.step())
    assert taking._reported == {}


def test_of_two_owners_of_one_name_none_is_chosen_and_others_are() -> None:
    one = three("cheap", "safe", "silent")
    one.add("gang-0", 1, 4, 10, "n2", dict(KINDS["cheap"]))
    del one.pods["gang-2-0"]
    one.pods["gang-0-1"]["metadata"]["ownerReferences"][0]["uid"] = "another"
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


def test_a_job_that_was_deleted_and_made_again_is_another() -> None:
    """Its old pods take their time; what they leave is not enough."""
    one = three("cheap", "safe", "silent", pods=2)
    one.pods["gang-0-old"] = one.pods.pop("gang-0-0")
    one.pods["gang-0-old"]["metadata"] |= {"name": "gang-0-old", "deletionTimestamp": stamp(one.now_s)}
    one.add("gang-0", 0, 4, 10, "n1", dict(KINDS["cheap"]))
    one.pods["gang-0-0"]["metadata"]["ownerReferences"][0]["uid"] = "another"
    del one.pods["gang-1-0"]
    one.passes(4)
    assert one.evicted == ["gang-0-0"]


@pytest.mark.parametrize(("since_s", "evicted"), [(10, []), (600, ["gang-1-0"])])
def test_nobody_goes_where_room_is_being_left_unless_that_hangs(since_s: float, evicted: list[str]) -> None:
    one = three("writing", "cheap", "silent")
    one.pods["gang-2-0"]["metadata"]["deletionTimestamp"] = stamp(one.now_s - since_s)
    one.passes(4)
    assert one.evicted == evicted


@pytest.mark.parametrize("kind", ["Workflow", "TaskRun", "StatefulSet", "VirtualMachineInstance"])
def test_whose_owner_may_not_make_another_stays(kind: str) -> None:
    one = three("cheap", "safe", "silent")
    one.pods["gang-0-0"]["metadata"]["ownerReferences"][0]["kind"] = kind
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


def test_a_job_that_would_end_for_good_stays() -> None:
    one = three("cheap", "safe", "silent")
    one.jobs["team/gang-0"] = {"spec": {"backoffLimit": 2}, "status": {"failed": 2}}
    one.passes(4)
    assert one.evicted == ["gang-1-0"]


ON_DISRUPTION = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
ON_CODES = {"onExitCodes": {"operator": "NotIn", "values": [42]}}


@pytest.mark.parametrize(
    ("job", "pods", "lives"),
    [
        ({}, 6, True),
        ({}, 7, False),
        ({"backoffLimit": 0}, 1, False),
        ({"backoffLimit": 8, "failed": 4}, 4, True),
        ({"backoffLimit": 8, "failed": 5}, 4, False),
        ({"rules": [{"action": "Ignore", **ON_DISRUPTION}]}, 99, True),
        ({"rules": [{"action": "Count", **ON_DISRUPTION}]}, 7, False),
        ({"backoffLimit": 99, "rules": [{"action": "FailJob", **ON_DISRUPTION}]}, 1, False),
        ({"rules": [{"action": "FailJob", **ON_CODES}, {"action": "Ignore", **ON_DISRUPTION}]}, 1, False),
        ({"rules": [{"action": "Ignore", **ON_DISRUPTION}, {"action": "FailJob", **ON_CODES}]}, 99, True),
        ({"backoffLimit": 1 << 30, "backoffLimitPerIndex": 2, "failed": 1}, 64, True),
        ({"backoffLimit": 1 << 30, "backoffLimitPerIndex": 0}, 1, False),
    ],
)
def test_pods_that_are_evicted_count_as_failures_of_their_job(job: Object, pods: int, lives: bool) -> None:
    spec = {name: value for name, value in job.items() if name.startswith("backoff")}
    document = {
        "spec": spec | {"podFailurePolicy": {"rules": job.get("rules", [])}},
        "status": {"failed": job.get("failed", 0)},
    }
    assert outlives(document, pods) is lives


def test_what_refuses_to_go_after_it_was_told_stays_and_another_goes() -> None:
    one = three("safe", "cheap", "silent")
    one.dies(3)
    one.refuses = {"gang-1-0"}
    one.passes(1)
    one.now_s += 6
    fresh(one)
    one.passes(4)
    assert one.evicted == ["gang-0-0"]
    assert "kaiwo.ai/evicting" not in one.pods["gang-1-0"]["metadata"]["annotations"]


def test_a_gang_of_which_a_pod_is_refused_does_not_keep_the_others() -> None:
    """A budget of disruptions lets one of its pods go, and then no other."""
    one = world([("cheap", [0, 1], 10, False), ("safe", [2], 10, False)], 1, 1)
    one.dies(4)
    one.refuses = {"gang-0-1"}
    one.passes(2)
    assert one.evicted == ["gang-0-0"]
    one.goes_on()
    one.add("next", 0, 1, 900, never=True)
    fresh(one)
    one.passes(4)
    assert one.evicted == ["gang-0-0", "gang-1-0"]
    one.refuses = set()
    one.passes(2)
    assert sorted(one.evicted) == ["gang-0-0", "gang-0-1", "gang-1-0"]


def test_words_on_a_pod_that_its_user_wrote_evict_nobody_of_more_priority() -> None:
    one = three("cheap", "cheap", "silent")
    one.pods["gang-1-0"]["spec"]["priority"] = 5000
    notice = json.dumps({"by": "kopt-preemption", "for": "team/urgent", "at": stamp(one.now_s), "pods": 1})
    one.pods["gang-0-0"]["metadata"]["annotations"]["kaiwo.ai/evicting"] = notice
    said = {"verdict": "preempt", "at": stamp(one.now_s - 8), "victims": ["team/gang-0", "team/gang-1"]}
    one.pods["urgent-0"]["metadata"]["annotations"]["kaiwo.ai/preemption"] = json.dumps(said)
    one.passes(4)
    assert one.evicted == ["gang-0-0"]
