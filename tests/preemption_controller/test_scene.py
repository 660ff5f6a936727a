"""The moment a decision is about, as it is built from Workloads, queues and pods."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.checkpoints.status import latest_status, members_of
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.cluster.workloads.kueue.reading import local_queue_target, read_kueue_workload
from kopt.controllers.preemption.patches import stamp
from kopt.controllers.preemption.snapshot import QueueSnapshot, refusal, snapshot_for, to_shield, would_preempt
from kopt.core.workload.checkpoint import JobState
from kopt.policies.preemption import decide

from .builders import GPU, NOW_S, QUEUE, notes, pod, queue, workload

words = st.text(max_size=12) | st.sampled_from(
    ["true", "false", "TRAIN", "CKPT_WRITING", "UNKNOWN", stamp(NOW_S), "5", "1-9"]
)
NAMES = sorted(notes())
some_notes = st.dictionaries(st.sampled_from(NAMES), words) | st.builds(
    notes,
    st.sampled_from([one.value for one in JobState]),
    st.booleans(),
    st.floats(0, 1e6),
    st.floats(0, 600),
    st.booleans(),
)
running = st.lists(
    st.tuples(st.integers(1, 8), st.integers(-5, 1500), st.booleans(), some_notes, st.integers(1, 9)),
    min_size=1,
    max_size=6,
)


def facts_of(made: list[tuple[int, int, bool, dict[str, str], int]], quota: int) -> QueueSnapshot:
    views, pods = [], {}
    for n, (gpus, priority, leaving, said, seen) in enumerate(made):
        view = read_kueue_workload(workload(f"gang-{n}", gpus, priority))
        views.append(replace(view, evicted_at_s=NOW_S) if leaving else view)
        pods[view.uid] = [pod(f"gang-{n}", seen, said)]
    return QueueSnapshot(NOW_S, queue(quota), views, pods)


def urgent(gpus: int, priority: int = 1000) -> KueueWorkload:
    return read_kueue_workload(workload("urgent", gpus, priority, held=True))


@given(running, st.integers(1, 8), st.integers(0, 8))
def test_gpus_are_counted_once_and_what_leaves_is_nobodys(
    made: list[tuple[int, int, bool, dict[str, str], int]], asks: int, spare: int
) -> None:
    total = sum(gpus for gpus, *_ in made)
    facts, waiting = facts_of(made, total + spare), urgent(asks)
    if refusal(waiting, facts):
        return
    scene = snapshot_for(waiting, facts, 300.0)
    assert scene.free == {"h100 of research": 1000 * spare}, "what is leaving is promised to somebody already"
    assert scene.queues[QUEUE].used == 1000 * total
    assert scene.preemptor.gpus == 1000 * asks
    stay = {f"team/gang-{n}": gpus for n, (gpus, _, leaving, *_) in enumerate(made) if not leaving}
    assert {one.name: one.gpus // 1000 for one in scene.gangs}.items() <= stay.items()
    for one in scene.gangs:
        gpus, _, _, said, seen = made[int(one.name.rpartition("-")[2])]
        if all(member.status and member.status.safe for member in one.members):
            assert said["kaiwo.ai/checkpoint-safe"] == "true"
            assert said["kaiwo.ai/checkpoint-state"] not in ("CKPT_WRITING", "UNKNOWN")
            assert "kaiwo.ai/last-checkpoint-time" in said or "kaiwo.ai/last-checkpoint-step" in said
            assert seen >= gpus, "some of its pods were not seen"


@given(running, st.integers(1, 8), st.integers(-5, 1500), st.integers(0, 3))
def test_nobody_can_be_taken_but_the_chosen(
    made: list[tuple[int, int, bool, dict[str, str], int]], asks: int, priority: int, chosen: int
) -> None:
    facts, waiting = facts_of(made, sum(gpus for gpus, *_ in made)), urgent(asks, priority)
    spared = {one.uid for one in facts.workloads[:chosen]}
    covered = {one.uid for one in to_shield(waiting, facts, spared)}
    for one in facts.workloads:
        open_to_kueue = one.running and one.priority <= priority and one.uid not in covered
        assert not open_to_kueue or one.uid in spared
    if would_preempt(waiting, facts):
        assert any(one.running and one.priority < priority for one in facts.workloads)


@given(some_notes)
def test_whatever_stands_on_pods_can_be_read(said: dict[str, str]) -> None:
    for one in members_of(4000, [pod("a", 4, said)], NOW_S, 75.0):
        assert one.status is None or one.status.state in JobState
    assert sum(one.gpus for one in members_of(4000, [pod("a", 9, said), pod("b", 2)], NOW_S, 75.0)) == 4000


def test_one_rank_that_writes_makes_its_gang_unsafe() -> None:
    said = latest_status([notes(age_s=2), notes("CKPT_WRITING", safe=False, age_s=40)], NOW_S, 75.0)
    assert said is not None
    assert said.status.state is JobState.CKPT_WRITING
    old = latest_status([notes(age_s=2), notes("CKPT_WRITING", safe=False, age_s=400)], NOW_S, 75.0)
    assert old is not None
    assert old.status.safe


@pytest.mark.parametrize("state", ["CKPT_WRITING", "UNKNOWN", "", "no state"])
def test_a_write_is_not_safe_whatever_else_is_said(state: str) -> None:
    (one,) = members_of(4000, [pod("a", 4, notes(state, safe=True))], NOW_S, 75.0)
    assert one.status is not None
    assert not one.status.safe


@pytest.mark.parametrize("without", ["kaiwo.ai/checkpoint-model", "kaiwo.ai/work-at-risk-interval"])
def test_a_figure_without_interval_or_model_counts_as_none(without: str) -> None:
    said = latest_status([{name: value for name, value in notes().items() if name != without}], NOW_S, 75.0)
    assert said is not None
    assert said.status.work_at_risk_gpu_seconds is None


@pytest.mark.parametrize("asks", [3, 13])
def test_kueue_looks_for_no_victims(asks: int) -> None:
    """There is room, or never will be."""
    facts = facts_of([(8, 100, False, notes(), 8)], 12)
    assert not would_preempt(urgent(asks), facts)
    assert would_preempt(urgent(5), facts)


def test_a_raised_priority_is_not_its_own() -> None:
    document = workload("a", 4, 100)
    document["spec"]["priority"] = 1001
    document["metadata"] |= {
        "labels": {"kaiwo.ai/held": "preemption"},
        "annotations": {
            "kaiwo.ai/held-undo": '{"priority":100,"raised":1001,"for":"x","until":"2030-01-01T00:00:00Z"}'
        },
    }
    assert read_kueue_workload(document).priority == 100
    document["spec"]["priority"] = 500
    assert read_kueue_workload(document).priority == 500, "somebody else has set it meanwhile"
    assert GPU in read_kueue_workload(document).requests


def test_of_many_only_the_cheapest_and_the_newest_are_weighed() -> None:
    made = [(8, 100, False, notes(lost=1000 + n), 8) for n in range(300)]
    facts = facts_of(made, 2400)
    views = [replace(one, reserved_s=NOW_S - 9000 + n) for n, one in enumerate(facts.workloads)]
    scene = snapshot_for(urgent(8), replace(facts, workloads=views), 300.0)
    assert {one.name for one in scene.gangs} == {f"team/gang-{n}" for n in (*range(12), *range(288, 300))}
    large = snapshot_for(urgent(800), replace(facts, workloads=views), 300.0)
    assert sum(one.gpus for one in large.gangs[:100]) == 800_000


def test_what_pods_that_have_ended_had_is_free() -> None:
    """As Kueue counts: a set of eight of which six have ended; four were admitted in part."""
    document = workload("sweep", 16)
    document["spec"]["podSets"][0]["count"] = 8
    document["status"]["admission"]["podSetAssignments"][0]["count"] = 8
    used = read_kueue_workload(document).uses["h100", GPU]
    document["status"]["reclaimablePods"] = [{"name": "main", "count": 6}]
    view = read_kueue_workload(document)
    assert (used, view.uses["h100", GPU]) == (16_000, 4_000)
    assert view.requests[GPU] == 2 * 16_000
    assert not would_preempt(urgent(12), QueueSnapshot(NOW_S, queue(16), [view])), "there is room"
    document["status"]["admission"]["podSetAssignments"][0]["count"] = 4
    document["status"]["reclaimablePods"] = [{"name": "main", "count": 2}]
    assert read_kueue_workload(document).uses["h100", GPU] == 16_000


def test_what_a_smaller_quota_takes_away_is_to_be_freed_first() -> None:
    facts = facts_of([(4, 100 + n, False, notes(lost=n), 4) for n in range(3)], 4)
    decision, _ = decide(snapshot_for(urgent(4), facts, 0.0))
    assert decision.victims == ("team/gang-0", "team/gang-1", "team/gang-2")


def test_pods_are_a_resource_too() -> None:
    document = workload("many", 4, held=True)
    document["spec"]["podSets"][0]["count"] = 3
    assert read_kueue_workload(document).requests["pods"] == 3000


def test_nobody_waits_in_a_local_queue_that_is_stopped() -> None:
    assert local_queue_target({"spec": {"clusterQueue": "all", "stopPolicy": "None"}}) == "all"
    assert local_queue_target({"spec": {"clusterQueue": "all"}}) == "all"
    assert local_queue_target({"spec": {"clusterQueue": "all", "stopPolicy": "Hold"}}) == ""
