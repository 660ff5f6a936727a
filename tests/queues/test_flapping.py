"""Aggressive queues, for which Kueue itself takes back, in the two situations in which it evicted without end:
kueue#7101 and #3779, with fair sharing as advised and without."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from controlplane.kueue import Kueue, admitted
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .test_with_kueue import Object, Team

FINAL, INITIAL = "LessThanOrEqualToFinalShare", "LessThanInitialShare"
QUIET_S = 12.0


@pytest.fixture(params=[(), (FINAL, INITIAL)], ids=["without fair sharing", "both strategies"])
def team(request: pytest.FixtureRequest, control_plane: ControlPlane, kueue: Kueue, tmp_path: Path) -> Iterator[Team]:
    team = Team(control_plane, tmp_path)
    with kueue.shares_fairly(*request.param) if request.param else nullcontext():
        yield team
        _clear(team)


def _clear(team: Team) -> None:
    team.end_all()
    wait_for(lambda: not any(step["error"] for step in team.off(None)), what="the queues are gone")


def evictions(team: Team, jobs: list[Object]) -> list[int]:
    counts = []
    for job in jobs:
        stats = team.workload(job).get("status", {}).get("schedulingStats") or {}
        counts.append(sum(item["count"] for item in stats.get("evictions") or ()))
    return counts


def stays(team: Team, jobs: list[Object]) -> list[str]:
    """Those that run, after nobody was evicted more than once, and nobody at all in the end."""
    before, end_s = evictions(team, jobs), time.monotonic() + QUIET_S
    while time.monotonic() < end_s:
        counts = evictions(team, jobs)
        assert max(counts) <= 1, counts
        time.sleep(0.5)
    assert evictions(team, jobs) == before
    return [job["metadata"]["name"] for job in jobs if admitted(team.workload(job))]


@pytest.mark.long
def test_what_is_too_large_for_its_quota_evicts_nobody_in_turns(team: Team) -> None:
    """kueue#7101: eight GPUs, all of one queue's in workloads of two; another with a quota of four wants 6, 5, 4, 3."""
    team.tree |= {team.research: team.queue(4), team.production: team.queue(4)}
    team.kopt()
    jobs = [team.job(f"borrows-{number}", team.research, 2) for number in range(4)]
    for job in jobs:
        team.runs(job)
    for gpus in (6, 5, 4, 3):
        jobs.append(team.job(f"asks-{gpus}", team.production, gpus))
        team.workload(jobs[-1])
        time.sleep(2.0)
    running = stays(team, jobs)
    assert [name for name in running if name.startswith("asks")] == ["asks-4"]
    assert (sum(evictions(team, jobs)), len(running)) == (2, 3)


@pytest.mark.long
def test_a_queue_without_quota_in_a_cohort_with_quota_takes_it_back_once(team: Team) -> None:
    """kueue#3779: the quota is a cohort's, whose queue has none; two others have none and borrow all of it."""
    department, others = f"{team.space}-department", (team.research, f"{team.space}-second")
    quota: Object = {"pools": [{"name": team.pool, "resources": {"gpu": {"quota": 6}}}], "parentQueue": team.ai}
    team.tree |= {department: {"kind": "KaiwoQueue", "spec": quota}, **{name: team.queue(0) for name in others}}
    team.tree[team.production] = team.queue(0)
    team.tree[team.production]["spec"]["parentQueue"] = department
    team.kopt()
    jobs = []
    for name, queue, gpus in (("a1", 0, 2), ("a2", 0, 2), ("b1", 1, 1), ("b2", 1, 1)):
        jobs.append(team.job(name, others[queue], gpus))
        team.runs(jobs[-1])
    for name, gpus in (("first", 1), ("second", 2)):
        jobs.append(team.job(name, team.production, gpus))
        team.workload(jobs[-1])
        time.sleep(2.0)
    running = stays(team, jobs)
    assert {"first", "second"} <= set(running)
    assert (sum(evictions(team, jobs)), len(running)) == (2, 4)
