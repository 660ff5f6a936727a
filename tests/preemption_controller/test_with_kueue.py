"""Real Kueue takes those whom we chose, when we chose; and by its own rule where we do not."""

import json
from collections.abc import Callable

import pytest
from controlplane.processes import wait_for

from .teams import HIGH, LOW, WORKLOAD, Controller, Team


def name_of(team: Team, job: str) -> str:
    return f"{team.space}/{team.workload(job)['metadata']['name']}"


def run_three(team: Team) -> None:
    """The oldest first; Kueue by itself would take the newest."""
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)


def test_the_safe_one_is_taken_although_it_is_the_oldest(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce")
    run_three(team)
    team.note("oldest", lost=50)
    team.note("middle", "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"), what="the urgent job has its GPUs")
    assert team.runs() == {"middle", "newest", "urgent"}
    assert team.evicted() == {"oldest"}
    wait_for(lambda: not team.left_over(), what="every priority is back")
    assert {one["spec"]["priority"] for one in map(team.workload, team.jobs)} == {LOW, HIGH}
    decision = team.decision("urgent")
    assert (decision["verdict"], decision["victims"]) == ("preempt", [name_of(team, "oldest")])
    assert (decision["models"], decision["lostGpuSeconds"] > 0) == (["logs/7"], True)
    wait_for(lambda: "Preempting" in team.events("oldest") and "PreemptionChosen" in team.events("urgent"))
    notice = json.loads(team.workload("oldest")["metadata"]["annotations"]["kaiwo.ai/evicting"])
    assert (notice["by"], notice["cause"], notice["for"]) == ("kopt-preemption", "Preempted", name_of(team, "urgent"))
    assert (notice["model"], notice["workAtRisk"]) == ("logs/7", "25-100")


@pytest.mark.long
def test_it_waits_for_a_checkpoint(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--budget=80s")
    run_three(team)
    for name in ("oldest", "middle", "newest"):
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it says that it waits")
    assert team.evicted() == set()
    assert team.workload("urgent")["spec"]["active"] is False
    team.note("middle", "CKPT_DONE", lost=5)
    wait_for(lambda: team.admitted("urgent"), what="the urgent job has its GPUs")
    assert team.evicted() == {"middle"}
    wait_for(lambda: not team.left_over(), what="every priority is back")


@pytest.mark.long
def test_past_the_budget_kueue_goes_by_its_own_rule(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--budget=2s", "--cover=2s")
    run_three(team)
    for name in ("oldest", "middle", "newest"):
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"), what="the urgent job has its GPUs")
    assert team.evicted() == {"newest"}
    wait_for(lambda: not team.left_over(), what="every priority is back")


@pytest.mark.long
def test_a_gang_dies_as_one(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce")
    team.run("gang", 2, pods=2)
    team.run("lone", 4)
    team.run("newest", 4)
    team.note("gang", lost=10)
    team.note("lone", lost=5000)
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"), what="the urgent job has its GPUs")
    assert team.evicted() == {"gang"}
    wait_for(lambda: not team.pods("gang"), what="none of its pods is left")
    assert team.runs() == {"lone", "newest", "urgent"}


@pytest.mark.long
def test_a_session_in_which_somebody_works_is_not_selected_though_it_would_lose_least(
    team: Team, controller: Callable[..., Controller]
) -> None:
    controller("--mode=enforce")
    team.run("training", 4)
    team.run("session", 4, stdin=True, tty=True)
    team.run("newest", 4)
    for name, lost in (("session", 1), ("training", 50), ("newest", 5000)):
        team.note(name, lost=lost)
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"), what="the urgent job has its GPUs")
    assert team.evicted() == {"training"}
    assert team.decision("urgent")["victims"] == [name_of(team, "training")]


@pytest.mark.long
def test_what_fits_is_not_held(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce")
    team.run("lone", 4)
    made = team.submit("urgent", 4, "high")
    assert "kaiwo.ai/held" not in made["metadata"].get("labels", {})
    wait_for(lambda: team.runs() == {"lone", "urgent"})


@pytest.mark.long
def test_only_said_where_it_observes(team: Team, controller: Callable[..., Controller]) -> None:
    controller("--mode=annotate")
    run_three(team)
    team.note("oldest", lost=50)
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"))
    assert team.evicted() == {"newest"}
    assert team.left_over() == []
    said = wait_for(lambda: team.events("urgent").get("PreemptionAdvised"), what="it says whom it would have taken")
    advice = wait_for(lambda: team.decision("urgent"))
    assert (advice["verdict"], advice["victims"]) == ("advice", [name_of(team, "oldest")])
    assert name_of(team, "oldest") in said


@pytest.mark.long
def test_without_us_the_newest_is_taken(team: Team) -> None:
    run_three(team)
    team.note("oldest", lost=50)
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"))
    assert team.evicted() == {"newest"}


@pytest.mark.long
def test_where_multikueue_compares_specs_none_is_changed(team: Team, controller: Callable[..., Controller]) -> None:
    """It would delete the job whose Workload differs from that in the other cluster."""
    controller("--mode=enforce")
    run_three(team)
    team.note("oldest", lost=50)
    name = team.workload("middle")["metadata"]["name"]
    team.api.patch(*WORKLOAD, name, {"metadata": {"labels": {"kueue.x-k8s.io/multikueue-origin": "hub"}}}, team.space)
    before = {name: team.workload(name)["metadata"]["generation"] for name in ("oldest", "middle")}
    team.submit("urgent", 4, "high")
    wait_for(lambda: team.admitted("urgent"), what="Kueue goes by its own rule")
    assert team.evicted() == {"newest"}
    assert {name: team.workload(name)["metadata"]["generation"] for name in before} == before
    assert "kaiwo.ai/preemption" not in team.workload("urgent")["metadata"].get("annotations", {}), "it was not held"
