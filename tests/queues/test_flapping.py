"""Aggressive queues, for which Kueue itself takes back, in the two situations in which it evicted without end:
kueue#7101 and #3779, with fair sharing as advised and without."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from controlplane.kueue import Kueue, admitted
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .test_with_kueue import Object, Team

FINAL, INITIAL = "LessThanOrEqualToFinalShare", "LessThanInitialShare"
ROUNDS = 5
"""So often all that wait are looked at again when everything has its place."""


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


def looks(team: Team, kueue: Kueue) -> Counter[str]:
    """In how many cycles Kueue's scheduler looked at each Workload, which it logs."""
    lines = kueue.server.log.read_text(errors="replace").splitlines()
    found = (json.loads(line) for line in lines if '"schedulingCycle"' in line and f'"{team.space}"' in line)
    cycles = {(item["schedulingCycle"], item["workload"]["name"]) for item in found if "workload" in item}
    return Counter(name for _, name in cycles)


def asks(team: Team, kueue: Kueue, name: str, gpus: int) -> Object:
    """A job of production that was looked at, the next one of which is younger: Kueue orders by whole seconds."""
    job = team.job(name, team.production, gpus)
    workload = team.workload(job)["metadata"]["name"]
    wait_for(lambda: looks(team, kueue)[workload], what=f"Kueue looks at {name}")
    time.sleep(1.0)
    return job


def look_again(team: Team, kueue: Kueue, jobs: list[Object], number: int) -> None:
    """A limit of the cohort's that is never reached is changed, and all that wait are looked at once more."""
    before = looks(team, kueue)
    team.tree[team.production]["spec"]["pools"][0]["resources"]["gpu"]["limit"] = 1000 + number
    team.kopt()

    def looked_at() -> bool:
        now, workloads = looks(team, kueue), [team.workload(job) for job in jobs]
        return all(
            now[each["metadata"]["name"]] > before[each["metadata"]["name"]] or admitted(each) for each in workloads
        )

    wait_for(looked_at, what="all that wait are looked at again")


def stays(team: Team, kueue: Kueue, jobs: list[Object]) -> list[str]:
    """Those that run, after nobody was evicted more than once, and nobody at all in the end."""
    before = evictions(team, jobs)
    for number in range(ROUNDS):
        look_again(team, kueue, jobs, number)
        assert evictions(team, jobs) == before
    assert max(before) <= 1, before
    return [job["metadata"]["name"] for job in jobs if admitted(team.workload(job))]


@pytest.mark.long
def test_what_is_too_large_for_its_quota_evicts_nobody_in_turns(team: Team, kueue: Kueue) -> None:
    """kueue#7101: eight GPUs, all of one queue's in workloads of two; another with a quota of four wants 6, 5, 4, 3."""
    team.tree |= {team.research: team.queue(4), team.production: team.queue(4)}
    team.kopt()
    jobs = [team.job(f"borrows-{number}", team.research, 2) for number in range(4)]
    for job in jobs:
        team.runs(job)
    for gpus in (6, 5, 4, 3):
        jobs.append(asks(team, kueue, f"asks-{gpus}", gpus))
    team.runs(jobs[-2])
    running = stays(team, kueue, jobs)
    assert [name for name in running if name.startswith("asks")] == ["asks-4"]
    assert (sum(evictions(team, jobs)), len(running)) == (2, 3)


@pytest.mark.long
def test_a_queue_without_quota_in_a_cohort_with_quota_takes_it_back_once(team: Team, kueue: Kueue) -> None:
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
        jobs.append(asks(team, kueue, name, gpus))
    for job in jobs[-2:]:
        team.runs(job)
    running = stays(team, kueue, jobs)
    assert {"first", "second"} <= set(running)
    assert (sum(evictions(team, jobs)), len(running)) == (2, 4)
