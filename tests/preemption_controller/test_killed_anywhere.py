"""The controller is killed before and after each kind of write to a real API server, once each: the safe one is taken
once, by Kueue, and every priority comes back. The same for a leader that is stopped, and for `kopt off`."""

import asyncio
import itertools
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import free_port, wait_for

from kopt.cluster.access import find_access
from kopt.cluster.api import Kube
from kopt.cluster.lease import LeaseSettings
from kopt.cluster.resources import Object
from kopt.controllers.preemption.given import ControllerSettings
from kopt.controllers.preemption.holding import Holding, HoldSettings
from kopt.controllers.preemption.process import ProcessSettings, Replica
from kopt.controllers.webhook.registration import Address
from kopt.core.decision import Mode

from .conftest import KOPT, SYSTEM, Controller, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CALLS = {"cover", "tell", "let go", "take back"}


class Mortal(Kube):
    """A client that dies before or after a kind of write that no other has died at: nothing is sent any more then."""

    def __init__(self, kubeconfig: Path, met: set[tuple[str, str]]) -> None:
        super().__init__(find_access(kubeconfig, {}))
        self._met, self.dead = met, False
        self.died = asyncio.Event()

    async def request(self, method: str, path: str, **options: Any) -> Object:
        call = call_of(method, path, options.get("body"))
        self._perhaps_die("before", call)
        found = await super().request(method, path, **options)
        self._perhaps_die("after", call)
        return found

    def _perhaps_die(self, when: str, call: str) -> None:
        if not self.dead and call and (when, call) not in self._met:
            self._met.add((when, call))
            self.dead = True
            self.died.set()
        if self.dead:
            raise asyncio.CancelledError


def call_of(method: str, path: str, body: Any) -> str:
    """What a write does to a Workload; empty for everything else."""
    if method != "PATCH" or "/workloads/" not in path:
        return ""
    notes, spec = body["metadata"].get("annotations", {}), body.get("spec", {})
    if "kaiwo.ai/evicting" in notes:
        return "tell" if notes["kaiwo.ai/evicting"] else "untell"
    if "active" in spec:
        return "let go" if spec["active"] else "hold"
    return "cover" if notes.get("kaiwo.ai/held-undo") else "take back"


async def live(kubeconfig: Path, met: set[tuple[str, str]], port: int, over: asyncio.Event, number: int) -> None:
    """One life of a controller: until it is killed, or everything is over."""
    kube = Mortal(kubeconfig, met)
    hold = HoldSettings(Address(SYSTEM, url=f"https://127.0.0.1:{port}"), ("127.0.0.1",), port=port)
    settings = ProcessSettings(
        lease=LeaseSettings(1.5, 1.0, 0.2), namespace=SYSTEM, identity=f"life-{number}", port=0, hold=hold,
        controller=ControllerSettings(Mode.ENFORCE, budget_s=120.0),
    )  # fmt: skip
    replica = Replica(kube, settings)
    tasks = [asyncio.create_task(replica.run()), asyncio.create_task(kube.died.wait()),
             asyncio.create_task(over.wait())]  # fmt: skip
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    kube.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    holding = replica._holding
    assert isinstance(holding, Holding)
    await holding.stop()
    await kube.close()


def test_the_safe_one_is_taken_once_wherever_it_dies(team: Team, controller: Callable[..., Controller]) -> None:
    port, met, over = free_port(), set[tuple[str, str]](), threading.Event()
    # It holds the Workload; the ones that die after it never have to.
    first = controller("--mode=enforce", review=port)
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
    first.server.kill()

    async def lead() -> None:
        done = asyncio.Event()
        watching = asyncio.create_task(asyncio.to_thread(over.wait))
        watching.add_done_callback(lambda _: done.set())
        for number in itertools.count():
            if done.is_set():
                return
            await live(team.plane.kubeconfig, met, port, done, number)

    thread = threading.Thread(target=lambda: asyncio.run(lead()))
    thread.start()
    try:
        team.note("oldest", lost=10)
        wait_for(lambda: team.note("oldest", lost=10) or team.admitted("urgent"), 120, "it has its GPUs", every_s=2)
        wait_for(lambda: not team.left_over(), what="every priority is back")
    finally:
        over.set()
        thread.join()
    assert set(itertools.product(("before", "after"), CALLS)) <= met
    assert team.evicted() == {"oldest"}
    (preempted,) = [one for one in team.workload("oldest")["status"]["conditions"] if one["type"] == "Preempted"]
    assert preempted["reason"] == "InClusterQueue"


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


def test_kopt_off_lets_go_what_is_held(team: Team, controller: Callable[..., Controller]) -> None:
    one = controller("--mode=enforce")
    for name in ("oldest", "middle", "newest"):
        team.run(name, 4)
        team.note(name, "CKPT_WRITING", safe=False)
    team.submit("urgent", 4, "high")
    wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
    one.server.kill()
    done = subprocess.run([*KOPT, "off", "--kubeconfig", str(team.plane.kubeconfig)], text=True,
                          capture_output=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    wait_for(lambda: team.admitted("urgent"), what="Kueue goes by its own rule")
    assert team.evicted() == {"newest"}
    assert team.left_over() == []
