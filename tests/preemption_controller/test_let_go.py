"""What others have held comes to real Kueue when they let it go: then, too, those are taken whom we chose."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from controlplane.processes import wait_for

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS
from kopt.cluster.holds.hold import hold, parked, release
from kopt.controllers.preemption.patches import stamp
from kopt.controllers.preemption.workload_hold import Workloads

from .builders import NOW_S, workload
from .teams import WORKLOAD, Controller, Team

Object = dict[str, Any]
JOB = ("batch/v1", "Job")
TOLERATES = {"template": {"spec": {"tolerations": [{"key": "any", "operator": "Exists"}]}}}


def wait_until_held(team: Team, name: str) -> None:
    wait_for(lambda: "PreemptionWaits" in team.events(name), what=f"{name} is held")
    assert team.workload(name)["metadata"]["labels"]["kaiwo.ai/held"] == "preemption"
    assert team.evicted() == set()


def wait_until_taken(team: Team, waiting: str, victim: str) -> None:
    wait_for(lambda: team.note(victim, lost=10) or team.admitted(waiting), what=f"{waiting} has its GPUs", every_s=2)
    wait_for(lambda: not team.left_over(), what="every priority is back")
    assert team.evicted() == {victim}


def run_three(team: Team) -> None:
    """All of them write a checkpoint; Kueue by itself would take the newest."""
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)
        team.note(name, "CKPT_WRITING", safe=False)


def change(team: Team, name: str, changes: Object) -> None:
    team.api.patch(*JOB, name, changes, team.space)


def let_go(team: Team, name: str, **further: Any) -> None:
    """As staging and sizing do: its queue is given back to the Job."""
    changes = release(JOBS, team.api.get(*JOB, name, team.space))
    change(team, name, changes | ({"spec": further} if further else {}))


@pytest.mark.cluster
@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.long
def test_what_waited_for_its_data_in_no_queue(
    team: Team, controller: Callable[..., Controller], *, steered: bool
) -> None:
    """Kueue writes the queue, or with a changed template the whole of the Workload anew, into the one that there is."""
    controller("--mode=enforce")
    run_three(team)
    team.submit("urgent", 4, "high", metadata=parked("staging", "gpus"))
    assert team.workload("urgent")["spec"]["queueName"] == "kaiwo-held"
    assert "kaiwo.ai/held" not in team.workload("urgent")["metadata"].get("labels", {})
    let_go(team, "urgent", **(TOLERATES if steered else {}))
    wait_until_held(team, "urgent")
    wait_until_taken(team, "urgent", "middle")


@pytest.mark.long
@pytest.mark.cluster
def test_what_was_stopped_by_its_workload(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce")
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"), what="it was admitted before it was to be stopped")
    document = team.workload("urgent")
    name = document["metadata"]["name"]
    team.api.patch(*WORKLOAD, name, hold(KUEUE_WORKLOADS, document, "sizing"), team.space)
    wait_for(lambda: not team.admitted("urgent") and not team.pods("urgent"), what="Kueue stops it")
    run_three(team)
    team.api.patch(*WORKLOAD, name, release(KUEUE_WORKLOADS, team.workload("urgent")), team.space)
    wait_until_held(team, "urgent")
    wait_until_taken(team, "urgent", "oldest")


@pytest.mark.cluster
@pytest.mark.long
def test_one_that_is_held_stays_so_when_its_job_is_changed(team: Team, controller: Callable[..., Controller]) -> None:
    """Kueue writes the Workload of a changed Job anew, as an active one."""
    controller("--mode=enforce")
    run_three(team)
    team.submit("urgent", 4, "high")
    wait_until_held(team, "urgent")
    change(team, "urgent", {"spec": TOLERATES})

    def written() -> bool:
        return "tolerations" in team.workload("urgent")["spec"]["podSets"][0]["template"]["spec"]

    wait_for(written, what="Kueue has written it anew")
    wait_until_held(team, "urgent")
    wait_until_taken(team, "urgent", "middle")


@pytest.mark.long
@pytest.mark.cluster
def test_nobody_there_holds_nobody_who_is_let_go(team: Team, controller: Callable[..., Controller]) -> None:
    one = controller("--mode=enforce")
    run_three(team)
    team.submit("urgent", 4, "high", metadata=parked("staging", "gpus"))
    wait_for(lambda: team.workload("urgent"))
    one.server.kill()
    let_go(team, "urgent")
    wait_for(lambda: team.admitted("urgent"), what="Kueue goes by its own rule")
    assert team.evicted() == {"newest"}


def review(document: Object, old: Object | None = None, operation: str = "") -> list[Any]:
    """What is patched where Kueue would make room."""
    asked = Review(
        "u",
        "",
        "Workload",
        "team",
        "urgent",
        operation or ("UPDATE" if old else "CREATE"),
        False,
        "",
        (),
        document,
        old,
    )
    return list(Workloads(lambda *_: True).answer(asked).patch)


def waiting(queue: str = "gpus", held_by: str = "", since: str = "", **spec: Any) -> Object:
    found = workload("urgent", 4, 1000, runs=False)
    found["spec"] |= {"queueName": queue, **spec}
    if held_by:
        undo = {"active": True} | ({"since": since} if since else {})
        found["metadata"] |= {
            "labels": {"kaiwo.ai/held": held_by},
            "annotations": {"kaiwo.ai/held-undo": json.dumps(undo)},
        }
    return found


def test_whoever_comes_to_a_queue_is_held_and_nobody_who_was_let_go_by_us() -> None:
    parked_, stopped = waiting("kaiwo-held"), waiting(held_by="staging", active=False)
    ours = waiting(held_by="preemption", active=False)
    assert review(waiting())
    assert review(waiting(), parked_)
    assert review(waiting(active=True), stopped)
    assert review(waiting(priority=2000), waiting())
    assert not review(waiting(), waiting()), "nothing has changed for its queue"
    assert not review(parked_ | {"spec": {**parked_["spec"], "active": False}}, parked_), "it is stopped"
    assert not review(waiting(active=True), ours), "we let it go, or `kopt off`"
    assert not review(waiting(held_by="preemption", active=True), ours), "somebody overrules us"
    assert not review(waiting(held_by="lending"), parked_), "it is held by others"
    running = workload("urgent", 4, 1000)
    assert not review(running | {"spec": {**running["spec"], "priority": 1001}}, running), "it has its quota"
    assert not list(
        Workloads(lambda *_: False)
        .answer(Review("u", "", "Workload", "team", "urgent", "UPDATE", False, "", (), waiting(), parked_))
        .patch
    )


def undo_in(patch: list[Any]) -> Object:
    return dict(json.loads(next(one["value"] for one in patch if one["path"].endswith("held-undo"))))


def test_its_budget_counts_from_when_it_was_let_go() -> None:
    before = time.time()
    undo = undo_in(review(waiting(), waiting("kaiwo-held")))
    assert undo["active"] is True
    assert undo["since"] >= stamp(before)
    again = waiting(held_by="preemption", active=True, podSets=[])
    since = stamp(NOW_S - 40)
    assert undo_in(review(again, waiting(held_by="preemption", since=since, active=False)))["since"] == since
    assert "since" not in undo_in(review(waiting()))


def test_what_was_decided_before_does_not_count_when_it_comes_again() -> None:
    lapsed = {"kaiwo.ai/preemption": '{"verdict":"lapsed"}'}

    def removed(old: Object) -> list[str]:
        new = waiting(held_by=old["metadata"].get("labels", {}).get("kaiwo.ai/held", ""), active=True, podSets=[])
        new["metadata"]["annotations"] = {**new["metadata"].get("annotations", {}), **lapsed}
        return [one["path"] for one in review(new, old) if one["op"] == "remove"]

    assert removed(waiting("kaiwo-held")) == ["/metadata/annotations/kaiwo.ai~1preemption"]
    assert removed(waiting(held_by="preemption", active=False)) == [], "it is held still"
