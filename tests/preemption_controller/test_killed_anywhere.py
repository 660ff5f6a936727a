"""The controller is killed before and after each kind of write to a real API server, once each: the safe one is taken
once, by Kueue, and every priority comes back. The same for a leader that is stopped, and for `kopt off`."""

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import free_port, wait_for
from mortal import Met, Mortal, lives, until_killed

from kopt.cluster.admission.address import Address
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.preemption.main import ProcessSettings, Replica
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.controllers.preemption.workload_hold import Holding, HoldSettings
from kopt.core.decision import Mode

from .teams import HIGH, LOW, SYSTEM, Controller, KaiPods, Pods, Team, switch_off

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CALLS = {"ask", "decide", "cover", "tell", "let go", "take back"}
PLAIN_CALLS = {"decide on a pod", "promise", "tell a pod", "evict"}
KAI_CALLS = {"ask", "decide on a pod", "tell a pod", "evict", "ungate"}


def call_of(method: str, path: str, body: Any) -> str:
    """What a write does to a Workload, or to a pod; empty for everything else."""
    if "/pods/" in path:
        return _call_on_pod(method, path, body)
    if method != "PATCH" or "/workloads/" not in path:
        return ""
    notes, spec = body["metadata"].get("annotations", {}), body.get("spec", {})
    if "kaiwo.ai/evicting" in notes:
        return "tell" if notes["kaiwo.ai/evicting"] else "untell"
    if "active" in spec:
        return "let go" if spec["active"] else "hold"
    if "kaiwo.ai/preemption" in notes:
        return "decide"
    return "cover" if notes.get("kaiwo.ai/held-undo") else "take back"


def _call_on_pod(method: str, path: str, body: Any) -> str:
    if method == "POST" and path.endswith("/eviction"):
        return "" if "dryRun" in body["deleteOptions"] else "evict"
    if method != "PATCH":
        return ""
    if "schedulingGates" in body.get("spec", {}):
        return "ungate"
    notes = {key: value for key, value in body["metadata"].get("annotations", {}).items() if value}
    named = {
        "kaiwo.ai/save-requested": "ask",
        "kaiwo.ai/evicting": "tell a pod",
        "kaiwo.ai/preemption": "decide on a pod",
    }
    return "promise" if path.endswith("/status") else next((word for name, word in named.items() if name in notes), "")


def killed(kubeconfig: Path, met: Met, port: int, **further: bool) -> AbstractContextManager[None]:
    """One controller after the other, each killed at another write."""
    return lives(life(kubeconfig, met, port, **further))


def life(kubeconfig: Path, met: Met, port: int, **further: bool) -> Callable[[asyncio.Event, int], Awaitable[None]]:
    """A controller until it is killed; it gets the number of its life."""

    async def live(over: asyncio.Event, number: int) -> None:
        kube = Mortal(kubeconfig, met, call_of)
        hold = HoldSettings(Address(SYSTEM, url=f"https://127.0.0.1:{port}"), ("127.0.0.1",), port=port)
        settings = ProcessSettings(
            lease=LeaseSettings(1.5, 1.0, 0.2),
            namespace=SYSTEM,
            identity=f"life-{number}",
            port=0,
            hold=hold,
            controller=ControllerSettings(Mode.ENFORCE, budget_s=120.0),
            **further,
        )
        replica = Replica(kube, settings)
        await until_killed(kube, replica.run(), over)
        holding = replica._holding
        assert isinstance(holding, Holding)
        await holding.stop()

    return live


def holds_and_dies(team: Team, controller: Callable[..., Controller], port: int) -> None:
    """Three jobs are in a write, an urgent one is held, and who held it is dead."""
    first = controller("--mode=enforce", review=port)
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
    first.server.kill()


@pytest.mark.long
def test_the_safe_one_is_taken_once_wherever_it_dies(team: Team, controller: Callable[..., Controller]) -> None:
    port, met = free_port(), set[tuple[str, str]]()
    # It holds the Workload; the ones that die after it never have to.
    holds_and_dies(team, controller, port)

    seen: set[str] = set()

    def note(name: str, **settings: Any) -> None:
        seen.update(team.requests(name))
        team.note(name, saves_on_request="true", **settings)

    with killed(team.plane.kubeconfig, met, port):
        asked = wait_for(
            lambda: note("oldest", lost=800, ago_s=190) or team.requests("oldest"),
            what="it is asked to save",
            every_s=1,
        )
        wait_for(lambda: note("oldest", lost=10, ago_s=0) or team.admitted("urgent"), 120, "it has its GPUs", every_s=2)
        wait_for(lambda: not team.left_over(), what="every priority is back")
    assert set(itertools.product(("before", "after"), CALLS)) <= met
    assert seen == asked, "it was asked twice"
    assert len(seen) == 1
    assert team.evicted() == {"oldest"}
    (preempted,) = [one for one in team.workload("oldest")["status"]["conditions"] if one["type"] == "Preempted"]
    assert preempted["reason"] == "InClusterQueue"


@pytest.mark.long
def test_a_plain_gang_goes_once_and_whole_wherever_it_dies(pods: Pods) -> None:
    port, met = free_port(), set[tuple[str, str]]()
    pods.run("gang", 4, pods=2)
    pods.run("writing", 4)
    pods.note("writing", "CKPT_WRITING", safe=False)
    before, kept = pods.uids("gang"), pods.uids("writing")

    with killed(pods.plane.kubeconfig, met, port, plain_pods=True):
        pods.submit("urgent", 4, "plain-high", pods=2)
        wait_for(lambda: pods.note("gang", lost=10) or len(pods.pods("urgent")) == 2, 120, "it has its GPUs", every_s=2)
    assert set(itertools.product(("before", "after"), PLAIN_CALLS)) <= met
    assert not before & pods.uids("gang"), "all of it went"
    assert pods.uids("writing") == kept
    evicted = [
        one
        for one in pods.plane.audit_entries("/eviction")
        if one["objectRef"].get("namespace") == pods.space
        and one["objectRef"].get("subresource") == "eviction"
        and one["responseStatus"]["code"] == 201
        and "dryRun" not in str(one.get("requestObject"))
    ]
    assert {one["objectRef"]["name"].rpartition("-")[0] for one in evicted} == {"gang"}


@pytest.mark.long
def test_a_gang_of_kai_goes_once_and_whole_wherever_it_dies(
    kai_pods: KaiPods, controller: Callable[..., Controller]
) -> None:
    """It is asked first; the room is KAI's to give, and it gives it to the one that was held for it."""
    port, met = free_port(), set[tuple[str, str]]()
    # It gates the pods; the ones that die after it never have to.
    first = controller("--mode=enforce", "--kai", review=port)
    kai_pods.run("gang", 4, pods=2)
    kai_pods.run("writing", 4)
    for name in ("gang", "writing"):
        kai_pods.note(name, "CKPT_WRITING", safe=False)
    before, kept = kai_pods.uids("gang"), kai_pods.uids("writing")
    kai_pods.submit("urgent", 4, "build", pods=2)
    wait_for(lambda: "PreemptionWaits" in kai_pods.reasons(), what="it is held")
    first.server.kill()
    seen: set[str] = set()

    def note(**settings: Any) -> None:
        seen.update(kai_pods.requests("gang"))
        kai_pods.note("gang", saves_on_request="true", **settings)

    with killed(kai_pods.plane.kubeconfig, met, port, kai=True):
        wait_for(lambda: note(lost=800, ago_s=190) or kai_pods.requests("gang"), what="it is asked", every_s=1)
        wait_for(lambda: note(lost=10, ago_s=0) or len(kai_pods.pods("urgent")) == 2, 120, "it has its GPUs", every_s=2)
    assert set(itertools.product(("before", "after"), KAI_CALLS)) <= met
    assert len(seen) == 1, "it was asked twice"
    assert not before & kai_pods.uids("gang"), "all of it went"
    assert kai_pods.uids("writing") == kept
    assert kai_pods.evicted_pods() == ["gang", "gang"]
    assert kai_pods.held("urgent") == 0


@pytest.mark.long
def test_another_takes_over_from_a_leader_that_is_stopped(team: Team, controller: Callable[..., Controller]) -> None:
    first = controller("--mode=enforce")
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
    first.server.signal(signal.SIGSTOP)
    second = controller("--mode=enforce", leads=False)
    second.server.wait_until(lambda: second.metric("kopt_preemption_leading") == 1.0)
    team.note("middle", lost=10)
    wait_for(lambda: team.note("middle", lost=10) or team.admitted("urgent"), what="it has its GPUs", every_s=2)
    first.server.signal(signal.SIGCONT)
    wait_for(lambda: not team.left_over(), what="every priority is back")
    assert team.evicted() == {"middle"}


@pytest.mark.long
def test_kopt_off_lets_go_what_is_held(team: Team, controller: Callable[..., Controller]) -> None:
    one = controller("--mode=enforce")
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
    one.server.kill()
    switch_off(team.plane)
    wait_for(lambda: team.admitted("urgent"), what="Kueue goes by its own rule")
    assert team.evicted() == {"newest"}
    assert team.left_over() == []


@pytest.mark.long
def test_kopt_off_gives_back_priorities_that_a_dead_controller_had_raised(
    team: Team, controller: Callable[..., Controller]
) -> None:
    port = free_port()
    holds_and_dies(team, controller, port)
    team.note("middle", lost=10)
    met = set(itertools.product(("before", "after"), CALLS)) - {("before", "tell")}
    dies = life(team.plane.kubeconfig, met, port)(asyncio.Event(), 0)
    # What the jobs said of their checkpoints grows old; where it had, nobody would be told and nothing would die.
    asyncio.run(asyncio.wait_for(dies, 120))
    raised = {name for name in team.jobs if team.workload(name)["spec"]["priority"] == HIGH + 1}
    assert raised == {"oldest", "newest"}
    assert team.evicted() == set()
    switch_off(team.plane)
    assert team.left_over() == []
    wait_for(lambda: team.admitted("urgent"), what="Kueue goes by its own rule")
    assert team.evicted() == {"newest"}
    assert {name: team.workload(name)["spec"]["priority"] for name in team.jobs} == {
        "oldest": LOW,
        "middle": LOW,
        "newest": LOW,
        "urgent": HIGH,
    }


def test_after_kopt_off_plain_pods_are_kube_schedulers_although_somebody_died(pods: Pods) -> None:
    """Nobody is gated; a promise and a notice are left, which hold nothing."""
    for name in ("oldest", "middle", "newest"):
        pods.run(name, 4)
        pods.note(name, "CKPT_WRITING", safe=False)
    pods.note("middle", lost=10)
    before = {name: pods.uids(name) for name in pods.jobs}
    pods.submit("urgent", 4, "plain-high")
    met = set(itertools.product(("before", "after"), PLAIN_CALLS)) - {("before", "evict")}
    asyncio.run(life(pods.plane.kubeconfig, met, free_port(), plain_pods=True)(asyncio.Event(), 0))
    assert len(pods.told("middle")) == 1
    switch_off(pods.plane)
    assert {name: pods.uids(name) for name in before} == before
    assert not any(one["spec"].get("schedulingGates") for name in pods.jobs for one in pods.all_pods(name))
    pods.api.delete("batch/v1", "Job", "newest", pods.space, propagationPolicy="Background")
    wait_for(lambda: pods.pods("urgent"), what="kube-scheduler gives it what came free")
    assert pods.uids("middle") == before["middle"]
