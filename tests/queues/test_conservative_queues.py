"""Under the real Kueue a conservative queue has its quota back after the grace, leaves young borrowers alone, has them
save before it evicts them, and evicts nobody twice within ten minutes."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart import CHART, Helm
from controlplane.kueue import Kueue, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from deploy.rights import start_controller

from .teams import QUEUE, Object, Team

RESTS = ("NothingWaits", "OwnQuotaInUse", "BacksOff")
VALUES: Object = {
    "queues": {"enabled": True, "mode": "enforce", "prune": True},
    **{name: {"enabled": False} for name in ("webhook", "sizing", "extender")},
}


@pytest.fixture(scope="module")
def charts(helm: Path, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """With the rights of the controller's account installed. Other tests of this control plane have applied some of the
    definitions, which Helm would not take over."""
    charts = Helm(helm, tmp_path_factory.mktemp("helm"))
    control_plane.apply_crds(sorted((CHART / "crds").glob("*.yaml")))
    charts.install(control_plane, VALUES, "--skip-crds")
    yield charts
    charts.uninstall(control_plane)


@pytest.fixture
def team(control_plane: ControlPlane, kueue: Kueue, charts: Helm) -> Iterator[Team]:
    team = Team(control_plane)
    server, _ = start_controller(control_plane, charts, VALUES, "kopt-queues")
    try:
        yield team
    finally:
        team.clear()
        team.wait_gone()
        server.stop()


def test_borrowers_have_their_grace_and_their_minimum_run_time_and_go_then(team: Team) -> None:
    team.declare(team.owner, reclaimStrategy="conservative", gracePeriod="2s")
    team.declare(team.borrower, minRuntime="1h")
    wait_for(lambda: team.condition("Applied") == "AsDeclared", what="the queues are there")
    assert not team.api.get(*QUEUE, team.owner, "")["status"]["notExpressible"]
    borrows = [team.job(f"borrows-{number}", team.borrower, 2) for number in range(2)]
    wait_for(lambda: all(team.runs(job) for job in borrows), what="the borrower has all four GPUs")
    own = team.job("own", team.owner, 2)
    wait_for(lambda: team.condition("Reclaiming") == "InMinRuntime", what="the grace is over")
    assert team.reclaims() == "Never"
    assert all(team.runs(job) for job in borrows)
    team.declare(team.borrower, minRuntime="1s")
    wait_for(lambda: team.runs(own), what="the owner has its quota back")
    wait_for(lambda: sum(team.runs(job) for job in borrows) == 1, what="one borrower has gone")
    wait_for(lambda: team.condition("Reclaiming") == "NothingWaits", what="nothing is taken back any more")
    assert team.reclaims() == "Never"
    assert team.api.get(*QUEUE, team.owner, "")["status"]["lastReclaimTime"]


@pytest.mark.long
def test_a_borrower_saves_before_it_goes_and_one_without_checkpoint_stays(team: Team) -> None:
    """Kueue itself would evict the younger one, of whose checkpoints nothing is known."""
    team.declare(team.owner, reclaimStrategy="conservative", gracePeriod="1s")
    team.declare(team.borrower)
    wait_for(lambda: team.condition("Applied") == "AsDeclared", what="the queues are there")
    saves = team.job("saves", team.borrower, 2)
    wait_for(lambda: team.runs(saves), what="the older borrower runs")
    unknown = team.job("unknown", team.borrower, 2)
    wait_for(lambda: team.runs(unknown), what="the borrower has all four GPUs")
    team.reports(saves, time.time() - 30, **{"saves-on-request": "true"})
    assert team.pod(unknown)
    own = team.job("own", team.owner, 2)
    requested_s = wait_for(lambda: team.requested_s(saves), what="it is asked to save")
    wait_for(lambda: team.condition("Reclaiming") == "SavesFirst", what="it is waited for")
    assert team.runs(saves)
    assert requested_s is not None
    team.reports(saves, requested_s + 1)
    wait_for(lambda: team.runs(own), what="the owner has its quota back")
    wait_for(lambda: not team.runs(saves), what="it has gone")
    wait_for(lambda: workload_of(team.plane, saves)["spec"].get("active", True), what="it is back in its queue")
    assert "kaiwo.ai/held" not in workload_of(team.plane, saves)["metadata"].get("labels", {})
    assert (team.evictions(saves), team.evictions(unknown), team.runs(unknown)) == (1, 0, True)


@pytest.mark.long
def test_borrowers_are_not_evicted_and_admitted_in_turns(team: Team) -> None:
    """As in kueue#3779 a queue that has more than its quota asks for more; as in kueue#14468 the quota that was taken
    back is free again at once, and a second owner wants its own: whoever was evicted is back, and stays."""
    second = f"{team.space}-second"
    for owner in (team.owner, second):
        team.declare(owner, reclaimStrategy="conservative", gracePeriod="2s")
    team.declare(team.borrower, reclaimStrategy="conservative", gracePeriod="2s")
    wait_for(lambda: team.condition("Applied") == "AsDeclared", what="the queues are there")
    borrows = [team.job(f"borrows-{number}", team.borrower, 3) for number in range(2)]
    wait_for(lambda: all(team.runs(job) for job in borrows), what="the borrower has all six GPUs")
    more = team.job("more", team.borrower, 2)
    own = team.job("own", team.owner, 2)
    wait_for(lambda: team.runs(own), what="the owner has its quota back")
    victim = wait_for(lambda: next((job for job in borrows if team.evictions(job)), {}), what="who was evicted")
    wait_for(
        lambda: "kaiwo.ai/held" not in workload_of(team.plane, victim)["metadata"]["labels"], what="it is given back"
    )
    team.end(own)
    wait_for(lambda: team.runs(victim), what="it is back on what is idle")
    again = team.job("again", team.owner, 2)
    wait_for(lambda: team.condition("Reclaiming") == "BacksOff", what="the owner waits again")
    team.end(again)
    late = team.job("late", second, 2)
    wait_for(lambda: team.runs(late), what="the second owner has its quota back, from the other borrower")
    assert team.runs(victim)
    wait_for(lambda: sum(map(team.runs, borrows)) == 1, what="that has gone")
    team.end(late)
    team.job("later", second, 2)
    team.job("latest", second, 2)
    for owner in (team.owner, second):
        # What fits runs, and for what does not nobody is evicted again.
        wait_for(lambda owner=owner: team.condition("Reclaiming", owner) in RESTS, what=owner)
    assert [team.evictions(job) for job in (*borrows, more)] == [1, 1, 0]


@pytest.mark.long
def test_what_no_quota_holds_evicts_nobody_and_what_one_holds_does_once(team: Team) -> None:
    """As in kueue#7101 one queue has all eight GPUs in workloads of two, and another, whose quota is four, asks for
    six, five, four and three. There the three set off evictions without end, and the four got nothing."""
    team.declare(team.owner, quota=4, reclaimStrategy="conservative", gracePeriod="2s")
    team.declare(team.borrower, quota=4, reclaimStrategy="conservative", gracePeriod="2s")
    wait_for(lambda: team.condition("Applied") == "AsDeclared", what="the queues are there")
    borrows = [team.job(f"borrows-{number}", team.borrower, 2) for number in range(4)]
    wait_for(lambda: all(team.runs(job) for job in borrows), what="the borrower has all eight GPUs")
    large = [team.job(f"asks-{gpus}", team.owner, gpus) for gpus in (6, 5)]
    wait_for(lambda: all(workload_of(team.plane, job) for job in large), what="Kueue knows them")
    time.sleep(4.0)
    assert all(team.runs(job) for job in borrows), "what is larger than the quota takes nothing back"
    four = team.job("asks-4", team.owner, 4)
    wait_for(lambda: team.runs(four), what="what the quota holds has it back")
    three = team.job("asks-3", team.owner, 3)
    wait_for(lambda: workload_of(team.plane, three), what="Kueue knows it")
    wait_for(lambda: sum(map(team.runs, borrows)) == 2, what="two have gone for it")
    end_s = time.monotonic() + 15.0
    while time.monotonic() < end_s:
        assert sorted(team.evictions(job) for job in borrows) == [0, 0, 1, 1]
        assert [team.evictions(job) for job in (four, three, *large)] == [0, 0, 0, 0]
        time.sleep(0.5)
    assert team.runs(four)
    assert not team.runs(three)


@pytest.mark.long
def test_balanced_queues_share_what_is_above_quotas_where_kueue_shares_fairly(team: Team, kueue: Kueue) -> None:
    """Eight GPUs, of which four are quotas: each of two queues ideally has four, and more jobs than that. Without fair
    sharing in Kueue's Configuration the owner has its quota alone, and its status says why."""
    parent = {"metadata": {"name": f"{team.space}-all"}, "spec": {"resources": {"gpu": {"quota": 8}}}}
    team.api.apply({"apiVersion": QUEUE[0], "kind": QUEUE[1], **parent})
    for name in (team.owner, team.borrower):
        team.declare(name, reclaimStrategy="balanced")
    wait_for(lambda: team.condition("Applied") == "AsDeclared", what="the queues are there")
    borrows = [team.job(f"borrows-{number}", team.borrower, 2) for number in range(4)]
    wait_for(lambda: all(team.runs(job) for job in borrows), what="the borrower has all eight GPUs")
    own = [team.job(f"own-{number}", team.owner, 2) for number in range(3)]
    wait_for(lambda: sum(map(team.runs, own)) == 1, what="the owner has its quota")
    wait_for(lambda: team.condition("Reclaiming") == "NoFairSharing", what="no share is taken")
    wait_for(lambda: sum(map(team.runs, borrows)) == 3, what="one has gone for it")
    with kueue.shares_fairly("LessThanOrEqualToFinalShare"):
        _balanced(team, borrows, own)


def _balanced(team: Team, borrows: list[Object], own: list[Object]) -> None:
    wait_for(lambda: sum(map(team.runs, own)) == 2, 180, "the owner has its share, of which half is above its quota")
    wait_for(lambda: sum(map(team.runs, borrows)) == 2, what="two have gone for it")
    end_s = time.monotonic() + 15.0
    while time.monotonic() < end_s:
        assert sorted(team.evictions(job) for job in (*borrows, *own)) == [0, 0, 0, 0, 0, 1, 1]
        assert sum(map(team.runs, own)) <= 2
        time.sleep(0.5)
    assert team.reclaims() == "Never"
