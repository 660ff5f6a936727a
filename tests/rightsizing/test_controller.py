"""The controller over an API server in memory, by a clock of its own: one change at a time, kept or taken back."""

from dataclasses import replace

import pytest
from attacks.scenarios.objects import job

from kopt.cluster.client.errors import Invalid
from kopt.cluster.client.resources import JOBS, PODS
from kopt.cluster.objects.kaiwo_workloads import GPU_WORKLOADS
from kopt.cluster.objects.resize_history import RESIZES, RESIZING, marked_open, written
from kopt.core.decision import Mode
from kopt.core.times import stamp
from kopt.core.workload.rightsizing import (
    Batch,
    Bounds,
    ChangeRecord,
    Lever,
    Outcome,
    Resize,
    ResizeRecord,
    WidthChange,
)

from .trainers import BEFORE, SETTINGS, Leader, Trainers, killed

HALF = BEFORE | {"cpu": "4"}
WRITES_OF_A_BEGINNING = 4
"""A record and a resize of each of two pods."""


async def _begun(trainers: Trainers) -> Leader:
    leader = Leader(trainers)
    leader.observe(1200)
    await leader.step()
    assert trainers.requests() == [HALF] * 2
    return leader


async def test_a_change_that_costs_no_time_is_kept() -> None:
    trainers = Trainers()
    leader = await _begun(trainers)
    assert trainers.marked() == ["trains-0", "trains-1"]
    await leader.run(600)
    assert trainers.requests() == [HALF] * 2
    assert [record.outcome for record in trainers.history()] == [Outcome.KEPT]
    assert trainers.marked() == []
    assert leader.reconciler.open == 0
    assert trainers.reasons() == ["ResizeProposed", "ResizeApplied", "ResizeKept"]


async def test_a_change_that_makes_steps_slower_is_taken_back_and_not_tried_again_that_day() -> None:
    trainers = Trainers(step_s=lambda _, cpu: 2.0 if cpu >= 8000 else 2.6)
    leader = await _begun(trainers)
    began_s = trainers.now_s
    while trainers.marked():
        await leader.run(30)
    assert trainers.now_s - began_s <= 300, "it is seen within minutes"
    assert trainers.requests() == [BEFORE] * 2
    assert [record.outcome for record in trainers.history()] == [Outcome.UNDONE]
    await leader.run(7200, every_s=60)
    assert trainers.reasons().count("ResizeApplied") == 1


async def test_what_is_not_shown_in_time_is_taken_back() -> None:
    noise = iter([1.2, 3.1, 2.2, 4.0, 1.4, 2.9, 1.1, 3.6] * 100)
    trainers = Trainers(step_s=lambda *_: next(noise))
    leader = await _begun(trainers)
    await leader.run(600)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.reasons()[-1] == "ResizeUndone"


async def test_without_enforce_it_is_only_proposed_and_once() -> None:
    trainers = Trainers()
    leader = Leader(trainers, replace(SETTINGS, mode=Mode.OBSERVE))
    trainers.kube.put(
        next(each.resource for each in leader.cluster.informers if each.resource.kind == "Namespace"),
        {"metadata": {"name": "team", "labels": {"kaiwo.ai/managed": "true"}}},
    )
    await leader.run(1800)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.reasons() == ["ResizeProposed"]
    assert leader.reconciler.proposed == 1


async def test_a_namespace_that_has_not_opted_in_is_left_alone() -> None:
    trainers = Trainers()
    leader = Leader(trainers)
    trainers.kube.put(
        next(each.resource for each in leader.cluster.informers if each.resource.kind == "Namespace"),
        {"metadata": {"name": "team", "annotations": {"kaiwo.ai/mode": "enforce"}}},
    )
    await leader.run(1800)
    assert trainers.requests() == [BEFORE] * 2


async def test_no_more_than_a_number_of_workloads_at_a_time() -> None:
    trainers = Trainers(names=("first", "second", "third"), pods=1)
    leader = Leader(trainers)
    leader.observe(1200)
    most = 0
    for _ in range(60):
        await leader.run(30)
        most = max(most, len(trainers.marked()))
    assert most == SETTINGS.most_open == 2
    assert trainers.reasons().count("ResizeKept") >= 3, "all of them get their turn"


async def test_nothing_is_begun_while_a_checkpoint_is_written() -> None:
    trainers = Trainers()
    leader = Leader(trainers)
    leader.observe(1200)
    state = {"kaiwo.ai/checkpoint-state": "CKPT_WRITING", "kaiwo.ai/checkpoint-safe": "false"}
    trainers.annotate("trains-1", **state, **{"kaiwo.ai/checkpoint-observed-at": stamp(trainers.now_s)})
    await leader.run(120)
    assert trainers.requests() == [BEFORE] * 2
    trainers.annotate("trains-1", **{"kaiwo.ai/checkpoint-state": "TRAIN"})
    await leader.run(60)
    assert trainers.requests() == [HALF] * 2


async def test_without_steps_nothing_is_changed() -> None:
    trainers = Trainers()
    leader = Leader(trainers)
    await leader.run(300)
    assert trainers.requests() == [BEFORE] * 2, "five minutes are no baseline"
    trainers = Trainers()
    leader = Leader(trainers)
    leader.observe(1200)
    trainers.now_s += 600
    await leader.step()
    assert trainers.requests() == [BEFORE] * 2, "it does no step any more"


async def test_the_opt_out_of_the_job_counts_also_while_a_change_is_open() -> None:
    trainers = Trainers()
    leader = await _begun(trainers)
    trainers.kube.put(JOBS, job("trains", uid="job-trains", annotations={"kaiwo.ai/opt-out": "true"}))
    await leader.run(30)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.marked() == []
    assert "opts out" in trainers.reported[-1][1]
    trainers.annotate("trains-0", **{RESIZES: None})
    trainers.annotate("trains-1", **{RESIZES: None})
    await leader.run(1200)
    assert trainers.requests() == [BEFORE] * 2


async def test_a_width_that_was_kept_lately_counts_as_a_change_of_the_workload() -> None:
    trainers = Trainers()
    record = ChangeRecord(WidthChange(1, 2, Batch.FIXED), trainers.now_s, Outcome.KEPT, trainers.now_s + 1200, "Fine.")
    trainers.kube.put(JOBS, job("trains", uid="job-trains", annotations={RESIZES: written([record])}))
    leader = Leader(trainers)
    leader.observe(1200)
    await leader.run(600)
    assert trainers.requests() == [BEFORE] * 2
    await leader.run(1500)
    assert trainers.requests() == [HALF] * 2


async def test_what_kaiwo_ends_for_idling_is_left_to_kaiwo() -> None:
    trainers = Trainers()
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "trains", "uid": "job-trains"}
    status = {"phase": "Idle", "idleSince": stamp(trainers.now_s)}
    document = {"metadata": {"name": "trains", "namespace": "team"}, "spec": {"workloadRef": reference}}
    trainers.kube.put(GPU_WORKLOADS, document | {"status": status})
    leader = Leader(trainers)
    await leader.run(1800)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.reported == []


async def test_what_the_node_refuses_is_taken_back() -> None:
    trainers = Trainers(refuses="Infeasible")
    leader = await _begun(trainers)
    await leader.run(60)
    assert trainers.requests() == [BEFORE] * 2
    assert "The node refuses it" in trainers.reported[-1][1]


async def test_what_the_api_server_refuses_is_said_once_and_tried_again_after_an_hour() -> None:
    trainers = Trainers()
    leader = Leader(trainers)
    leader.observe(1200)
    trainers.kube.refused = Invalid(422, "Invalid", "pods: node without support for resize")
    await leader.run(600)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.reasons() == ["ResizeProposed", "ResizeRefused"]
    assert "node without support for resize" in trainers.reported[-1][1]
    trainers.kube.refused = None
    await leader.run(3600)
    assert trainers.requests() == [HALF] * 2


async def test_a_kubelet_that_does_not_answer_is_given_a_minute() -> None:
    trainers = Trainers(kubelet=False)
    leader = await _begun(trainers)
    await leader.run(120)
    assert trainers.requests() == [BEFORE] * 2
    assert "No kubelet has made the change" in trainers.reported[-1][1]


async def test_a_pod_that_is_replaced_ends_the_watch() -> None:
    trainers = Trainers()
    leader = await _begun(trainers)
    await trainers.kube.delete(PODS, "trains-1", "team")
    await leader.run(60)
    assert trainers.requests() == [BEFORE]
    assert "A pod of it ended" in trainers.reported[-1][1]


async def test_a_workload_that_ends_takes_its_change_with_it() -> None:
    trainers = Trainers()
    leader = await _begun(trainers)
    for number in range(2):
        await trainers.kube.delete(PODS, f"trains-{number}", "team")
    await leader.run(30)
    assert leader.reconciler.open == 0


@pytest.mark.parametrize("writes", range(WRITES_OF_A_BEGINNING + 1))
async def test_killed_while_it_begins_the_next_leader_takes_it_back(writes: int) -> None:
    trainers = Trainers()
    leader = Leader(trainers)
    leader.observe(1200)
    with killed(leader, writes):
        await leader.step()
    heir = Leader(trainers, use=False)
    await heir.run(30)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.marked() == []
    assert all(record.outcome is Outcome.UNDONE for record in trainers.history())


@pytest.mark.parametrize("writes", range(5))
async def test_killed_while_it_takes_back_the_next_leader_goes_on(writes: int) -> None:
    trainers = Trainers(step_s=lambda _, cpu: 2.0 if cpu >= 8000 else 2.6)
    leader = await _begun(trainers)
    with killed(leader, writes):
        await leader.run(600)
    heir = Leader(trainers, use=False)
    await heir.run(30)
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.marked() == []


@pytest.mark.parametrize("writes", range(3))
async def test_killed_while_it_keeps_all_pods_end_alike(writes: int) -> None:
    trainers = Trainers()
    leader = await _begun(trainers)
    with killed(leader, writes):
        await leader.run(600)
    heir = Leader(trainers, use=False)
    await heir.run(30)
    assert trainers.requests() == [BEFORE if writes == 0 else HALF] * 2
    assert trainers.marked() == []


async def test_whoever_leads_no_more_writes_nothing() -> None:
    trainers = Trainers()
    leader = Leader(trainers)
    leader.observe(1200)
    leader.term.holds = False
    with pytest.raises(Exception, match="another leads"):
        await leader.step()
    assert trainers.requests() == [BEFORE] * 2
    assert trainers.marked() == []


async def test_a_record_that_anybody_may_write_is_not_acted_upon() -> None:
    """Otherwise a user would have the controller give a pod what the user may not."""
    trainers = Trainers()
    forged = ResizeRecord(Resize("a", Lever.CPU, Bounds(64_000), Bounds(8000)), trainers.now_s)
    note = marked_open(forged, "somebody-else", sealed=True)["annotations"][RESIZING]
    trainers.annotate("trains-0", **{RESIZES: written([forged]), RESIZING: note})
    leader = Leader(trainers)
    await leader.run(1800)
    assert trainers.requests() == [BEFORE] * 2


async def test_what_ended_is_not_ended_again_by_who_sees_it_late() -> None:
    trainers = Trainers()
    leader = await _begun(trainers)
    late = Leader(trainers, use=False)
    assert all(pod.open for pods in late.cluster.workloads().values() for pod in pods)
    await leader.run(600)
    assert trainers.reasons()[-1] == "ResizeKept"
    # It leads from now on, and its informers are ten minutes behind.
    await late.reconciler.step()
    assert trainers.requests() == [HALF] * 2
    assert [record.outcome for record in trainers.history()] == [Outcome.KEPT]
