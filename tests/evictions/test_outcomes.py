"""What becomes of evicted workloads, and which lines may go."""

import asyncio
import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.seals import SEAL
from kopt.controllers.evictions.observations import MOST_TIMES
from kopt.core.scheduling.eviction import Cause, Entry, Eviction, LastReport, Phase, Return, System, WorkloadRef
from kopt.policies.evictions import Keeping, lost_gpu_s, order_of_return, outlived

from .test_any_order import NOW, Event, Object, Replica, Server, at, gone, job, pod, workload


def played(*chapters: list[Event]) -> list[list[Object]]:
    """The ledger after each chapter: its lines in their order."""
    server, time = Server(), [NOW + 3600.0]
    replica = Replica(server, time)
    found = []

    async def run() -> None:
        for chapter in chapters:
            for event in chapter:
                replica.tell(event)
            for _ in range(3):
                await replica.step()
                time[0] += 1.0
            found.append(sorted(server.objects.values(), key=lambda one: one["spec"]["order"]))

    asyncio.run(run())
    return found


def phases(lines: list[Object]) -> list[str]:
    return [one["status"]["phase"] for one in lines]


BEGIN: list[Event] = [job("a", 3), *[pod(f"a-{n}", "a", 0) for n in range(3)]]
TAKEN = [pod(f"a-{n}", "a", 0, disrupted=5, deleted=5) for n in range(3)]


def test_a_gang_is_back_when_all_of_it_runs() -> None:
    chapters = played(
        BEGIN,
        [*TAKEN, *map(gone, TAKEN)],
        [pod("b-0", "a", 6), pod("b-1", "a", 6), pod("b-2", "a", None)],
        [pod("b-2", "a", 9)],
    )
    assert list(map(phases, chapters)) == [[], ["Waiting"], ["Waiting"], ["Resumed"]]
    assert chapters[-1][0]["status"]["resumedAt"] == at(9)


def test_each_eviction_after_a_return_is_a_line_of_its_own_and_ends_with_the_workload() -> None:
    back = [pod(f"b-{n}", "a", 6) for n in range(3)]
    again = [pod(f"b-{n}", "a", 6, disrupted=20, deleted=20) for n in range(3)]
    ended = job("a", 3)
    ended[1]["status"] = {
        "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-03-01T00:00:00Z"}]
    }
    chapters = played(BEGIN, TAKEN, back, again, [ended])
    assert list(map(phases, chapters[1:])) == [
        ["Waiting"],
        ["Resumed"],
        ["Resumed", "Waiting"],
        ["Finished", "Finished"],
    ]


def test_one_that_is_evicted_again_before_it_ran_waits_once() -> None:
    kueue = [workload("a", 3, admitted=0), workload("a", 3, admitted=0, evicted=5)]
    chapters = played(
        [job("a", 3, queued=True), *BEGIN[1:], *kueue],
        [workload("a", 3, admitted=8, evicted=5)],
        [workload("a", 3, admitted=8, evicted=12)],
    )
    assert list(map(phases, chapters)) == [["Waiting"], ["Waiting"], ["Gone", "Waiting"]]
    assert chapters[-1][0]["status"]["message"] == "It was evicted again before it was seen to run."


QUEUED = [job("a", 3, queued=True), *BEGIN[1:], workload("a", 3, admitted=-1)]


def test_a_gang_whose_pods_alone_were_lost_is_back_although_its_queue_never_let_go_of_it() -> None:
    back = [pod(f"b-{n}", "a", 5.5) for n in range(3)]
    preempted = workload("a", 3, admitted=-1, evicted=20)
    soon = workload("a", 3, admitted=-1, evicted=5.7)
    for taken in (preempted, soon):
        chapters = played(QUEUED, [*TAKEN, *map(gone, TAKEN)], back, [taken])
        assert list(map(phases, chapters)) == [[], ["Waiting"], ["Resumed"], ["Resumed", "Waiting"]]


def test_a_job_that_is_evicted_for_weeks_is_not_remembered_without_end() -> None:
    replica = Replica(Server(), [NOW])
    for minute in range(300):
        replica.tell(workload("a", 1, admitted=minute, evicted=minute + 0.5))
        replica.tell(job("a", 1, suspended=minute))
    replica.observed.forget()
    for index in (replica.observed.evicted, replica.observed.suspended):
        assert len(index["job-a"]) == MOST_TIMES
        assert max(index["job-a"]) > NOW + 60 * 298, "the last ones"


def ended(event: Event) -> Event:
    kind, document, there = event
    return kind, document | {"status": document["status"] | {"phase": "Failed", "containerStatuses": []}}, there


def test_a_pod_that_ends_at_once_when_it_is_deleted_was_taken() -> None:
    deleted = pod("a-0", "a", 0, deleted=5)
    lines = played([job("a", 1), pod("a-0", "a", 0)], [deleted, ended(deleted), gone(ended(deleted))])[-1]
    assert [one["spec"]["cause"] for one in lines] == ["Deleted"]


def test_what_had_failed_before_a_drain_loses_nothing_by_it() -> None:
    crashed, cleared = ended(pod("a-0", "a", 0)), ended(pod("a-0", "a", 0, disrupted=30, deleted=30))
    again = pod("a-1", "a", 2)
    chapters = played([job("a", 1), pod("a-0", "a", 0)], [crashed, again], [cleared, cleared, gone(cleared)])
    assert chapters == [[], [], []]


def test_one_that_loses_its_node_soon_after_its_queue_let_it_begin_was_evicted() -> None:
    born = [job("a", 1, suspended=0, queued=True), job("a", 1, suspended=0, resumed=0, queued=True)]
    lost = pod("a-0", "a", 0, disrupted=0.8, deleted=0.8)
    chapters = played([*born, workload("a", 1, admitted=0), pod("a-0", "a", 0)], [lost, gone(lost)])
    assert list(map(phases, chapters)) == [[], ["Waiting"]]


def test_what_kueue_takes_from_a_gang_that_lost_pods_is_a_line_of_its_own() -> None:
    preempted = workload("a", 3, admitted=-1, evicted=20)
    chapters = played(QUEUED, [TAKEN[0], gone(TAKEN[0])], [preempted])
    assert list(map(phases, chapters)) == [[], ["Waiting"], ["Gone", "Waiting"]]
    assert [one["spec"]["cause"] for one in chapters[-1]] == ["Drained", "Preempted"]


def test_a_workload_that_is_deleted_is_gone_and_was_not_evicted_by_that() -> None:
    assert played(BEGIN, [gone(BEGIN[0]), *TAKEN])[-1] == []
    assert phases(played(BEGIN, TAKEN, [gone(BEGIN[0])])[-1]) == ["Gone"]


@st.composite
def ledgers(draw: st.DrawFn) -> list[Entry]:
    found = []
    for number in range(draw(st.integers(0, 25))):
        uid = draw(st.sampled_from("abcde"))
        at_s = draw(st.floats(0, 1e6))
        ref = WorkloadRef("batch/v1", "Job", uid, uid)
        eviction = Eviction(
            "n",
            f"e-{number}",
            ref,
            System.NONE,
            at_s,
            Cause.DRAINED,
            "",
            "",
            "",
            1000,
            order_of_return(at_s, None, 1000),
        )
        found.append(Entry(eviction, Return(draw(st.sampled_from(Phase)))))
    return found


@given(ledgers(), st.floats(1, 1e6), st.integers(1, 30))
def test_old_lines_go_and_never_the_newest_of_what_lives(lines: list[Entry], age_s: float, most: int) -> None:
    keeping = Keeping(age_s, most)
    gone_ = outlived(lines, 1e6, keeping)
    left = [one for one in lines if one not in gone_]
    newest: dict[str, Entry] = {}
    for one in sorted(lines, key=lambda one: (one.eviction.evicted_at_s, one.eviction.name)):
        newest[one.eviction.workload.uid] = one
    last = [one for one in lines if newest[one.eviction.workload.uid] is one]
    assert not [one for one in gone_ if one in last and one.outcome.phase is Phase.WAITING], "what waits is kept"
    young = [one for one in gone_ if one.eviction.evicted_at_s >= 1e6 - age_s]
    assert not [one for one in young if one in last and not one.outcome.final]
    assert len(left) <= most or all(one in last and not one.outcome.final for one in left)
    assert all(one.eviction.evicted_at_s >= 1e6 - age_s or one in last for one in left)
    assert outlived(left, 1e6, keeping) == []


@given(
    st.floats(0, 4e9),
    st.floats(0, 4e9),
    st.none() | st.floats(0, 1e12),
    st.none() | st.floats(0, 1e12),
    st.integers(1, 10**6),
)
def test_the_order_rises_with_the_time_and_falls_with_the_loss(
    first_s: float, second_s: float, first: float | None, second: float | None, gpus: int
) -> None:
    orders = order_of_return(first_s, first, gpus), order_of_return(second_s, second, gpus)
    if int(first_s) < int(second_s):
        assert orders[0] < orders[1]
    if int(first_s) == int(second_s) and (first or 0.0) >= (second or 0.0):
        assert orders[0] <= orders[1]


def test_lost_work_is_what_was_at_risk_and_what_came_since() -> None:
    word = LastReport(1000.0, 5, 900.0, 300.0)
    assert lost_gpu_s(word, 2000, 1010.0) == 320.0
    assert lost_gpu_s(dataclasses.replace(word, risk_gpu_s=None), 2000, 1010.0) == 220.0
    assert lost_gpu_s(LastReport(1000.0), 2000, 1010.0) is None
    assert lost_gpu_s(None, 2000, 1010.0) is None


def test_what_kueue_never_admitted_was_not_evicted() -> None:
    """What is deactivated while it waits has the condition all the same."""
    held = workload("a", 3, admitted=0, evicted=5)
    held[1]["status"]["conditions"] = [one for one in held[1]["status"]["conditions"] if one["type"] == "Evicted"]
    older = workload("a", 3, admitted=0, evicted=5)
    older[1]["status"]["conditions"][0]["status"] = "False"
    for one in (held, older):
        assert played([job("a", 3, queued=True)], [one])[-1] == []


def test_a_notice_is_of_the_first_eviction_after_it() -> None:
    first, second = workload("a", 1, admitted=0, evicted=5), workload("a", 1, admitted=6, evicted=7)
    notice = {"by": "kopt-x", "cause": "Lending", "for": "n/b", "at": at(4.9), "reason": "r"}
    for one in (first, second):
        sealed = SEAL.sealed("kaiwo.ai/evicting", one[1]["metadata"]["uid"], notice)
        one[1]["metadata"]["annotations"] = {"kaiwo.ai/evicting": sealed}
    lines = played([job("a", 1, queued=True), first], [pod("a-0", "a", 6), workload("a", 1, admitted=6)], [second])[-1]
    assert [(one["spec"]["cause"], one["spec"]["by"]) for one in lines] == [
        ("Lending", "kopt-x"),
        ("Preempted", "kueue"),
    ]
