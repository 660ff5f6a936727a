"""The controller is killed before and after each kind of write of a reclaim to a real API server, once each: one
borrower is asked once and evicted once, by the real Kueue, the owner has its quota, and nothing stays held."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from chart import CHART
from controlplane.kueue import Kueue, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from mortal import Met, Mortal, lives, until_killed

from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.queues.main import ProcessSettings, Replica
from kopt.controllers.queues.reconciler import Carrying
from kopt.core.decision import Mode

from .teams import QUEUE, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CALLS = {"declare", "report", "ask", "begin", "evict", "give back"}
SYSTEM = "kopt-system"
Writes = Counter[tuple[str, str]]


def call_of(method: str, path: str, body: Any) -> str:
    """The kind of a write; empty for leases, events, and what is only read."""
    if "/kaiwoqueues/" in path and method == "PUT":
        conditions = (body.get("status") or {}).get("conditions") or ()
        return "begin" if any(item["reason"] == "Reclaims" for item in conditions) else "report"
    if method != "PATCH":
        return ""
    if "/clusterqueues/" in path:
        return "declare"
    annotations = (body.get("metadata") or {}).get("annotations") or {}
    if "/pods/" in path:
        return "ask" if annotations.get("kaiwo.ai/save-requested") else ""
    active = (body.get("spec") or {}).get("active")
    return {True: "give back", False: "evict"}.get(active, "") if "/workloads/" in path else ""


def killed(kubeconfig: Path, met: Met, writes: Writes) -> AbstractContextManager[None]:
    """One controller after the other, each killed at another write."""

    async def live(over: asyncio.Event, number: int) -> None:
        kube = Mortal(kubeconfig, met, call_of, writes)
        settings = ProcessSettings(
            lease=LeaseSettings(1.5, 1.0, 0.2),
            namespace=SYSTEM,
            identity=f"life-{number}",
            port=0,
            carrying=Carrying(mode=Mode.ENFORCE, prune=True),
        )
        await until_killed(kube, Replica(kube, settings).run(), over)

    return lives(live)


@pytest.fixture
def team(control_plane: ControlPlane, kueue: Kueue) -> Iterator[Team]:
    control_plane.apply_crds(sorted((CHART / "crds").glob("*.yaml")))
    control_plane.api.namespace(SYSTEM)
    team = Team(control_plane)
    yield team
    team.clear()
    with killed(control_plane.kubeconfig, set(itertools.product(("before", "after"), CALLS)), Counter()):
        team.wait_gone()


@pytest.mark.long
def test_quota_is_taken_back_once_wherever_it_dies(team: Team) -> None:
    met, writes = set[tuple[str, str]](), Writes()
    asked: set[float] = set()
    with killed(team.plane.kubeconfig, met, writes):
        team.declare(team.owner, reclaimStrategy="conservative", gracePeriod="1s")
        team.declare(team.borrower)
        wait_for(lambda: team.condition("Applied") == "AsDeclared", 120, "the queues are there")
        saves = team.job("saves", team.borrower, 2)
        wait_for(lambda: team.runs(saves), what="the older borrower runs")
        unknown = team.job("unknown", team.borrower, 2)
        wait_for(lambda: team.runs(unknown), what="the borrower has all four GPUs")
        before_s = time.time() - 30
        assert team.pod(unknown)
        team.reports(saves, before_s, **{"saves-on-request": "true"})
        own = team.job("own", team.owner, 2)

        def reported() -> bool:
            """The log agent goes on; once it is asked it has saved."""
            if team.runs(own):
                return True
            requested_s = team.requested_s(saves)
            asked.update(() if requested_s is None else (requested_s,))
            if team.runs(saves):
                last_s = before_s if len(met & {("before", "ask"), ("after", "ask")}) < 2 else (requested_s or 0.0) + 1
                team.reports(saves, last_s, **{"saves-on-request": "true"})
            return False

        wait_for(reported, 180, "the owner has its quota back", every_s=1)
        wait_for(
            lambda: workload_of(team.plane, saves)["spec"].get("active", True), 60, "the borrower is back in its queue"
        )
        wait_for(lambda: team.condition("Reclaiming") == "NothingWaits", 60, "nothing is taken back any more")
    assert set(itertools.product(("before", "after"), CALLS)) <= met
    assert len(asked) == 1, "it was asked twice"
    assert (team.evictions(saves), team.evictions(unknown), team.runs(unknown)) == (1, 0, True)
    once = {kind: count for (kind, _), count in writes.items() if kind in ("ask", "evict", "give back")}
    assert once == {"ask": 1, "evict": 1, "give back": 1}
    assert "kaiwo.ai/held" not in workload_of(team.plane, saves)["metadata"].get("labels", {})
    assert team.api.get(*QUEUE, team.owner, "")["status"]["lastReclaimTime"]
