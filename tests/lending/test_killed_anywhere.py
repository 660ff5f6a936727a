"""The controller is killed before and after each kind of write to a real API server, once each: what is lent is taken
back once, everybody returns once, and nothing of ours is left. The same for a leader that is stopped."""

import asyncio
import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from controlplane.processes import wait_for
from mortal import Met, Mortal, lives, until_killed

from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.lending.main import ProcessSettings, Replica
from kopt.controllers.lending.ports import ControllerSettings
from kopt.serving.client.client import AsyncPredictionClient

from .conftest import SYSTEM, WORKLOAD, Controller, Scene
from .test_with_kueue import lend_to

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CALLS = {"lend", "ask", "tell", "return", "status"}


def call_of(method: str, path: str, body: Any) -> str:
    """What a write is for; empty for everything else."""
    if method == "PUT" and "/lendingpools/" in path:
        return "status"
    if method != "PATCH":
        return ""
    if "/clusterqueues/" in path:
        return "lend"
    if "/pods/" in path:
        return "ask"
    if "/workloads/" in path:
        return "return" if body.get("spec", {}).get("active") is True else "tell"
    return ""


def many_lives(scene: Scene, met: Met, writes: Counter[tuple[str, str]]) -> AbstractContextManager[None]:
    """One controller after the other, each killed at another write."""

    async def live(over: asyncio.Event, number: int) -> None:
        kube = Mortal(scene.plane.kubeconfig, met, call_of, writes)
        settings = ProcessSettings(
            lease=LeaseSettings(1.5, 1.0, 0.2),
            namespace=SYSTEM,
            identity=f"life-{number}",
            port=0,
            controller=ControllerSettings(refresh_s=1.0),
        )
        async with AsyncPredictionClient(scene.forecasts.url, deadline_s=2.0) as client:
            await until_killed(kube, Replica(kube, settings, client.demand).run(), over)

    return lives(live)


def test_taken_back_once_and_returned_once_wherever_it_dies(scene: Scene) -> None:
    met, writes = set[tuple[str, str]](), Counter[tuple[str, str]]()
    with many_lives(scene, met, writes):
        scene.serve("chat-0", "chat-1")
        scene.expect(2, 2.4, 2.6, 2.9)
        scene.pool()
        scene.run("one", 2, askable=True)
        scene.run("two", 3)
        scene.note("one", lost=3600, saved_s=-900)
        scene.note("two")
        scene.expect(7, 7, 7, 8)
        wait_for(lambda: scene.asked("one"), 120, "the one that can be is asked to save")
        wait_for(lambda: answers(scene) or scene.held() == {"one", "two"}, 120, "both were told to go", every_s=1)
        wait_for(lambda: scene.runs() == set(), what="their pods are gone")
        assert scene.quota() == 0
        scene.expect(2, 2.4, 2.6, 2.9)
        wait_for(lambda: scene.runs() == {"one", "two"}, 120, "both go on")
        wait_for(lambda: scene.lent(5), what="and that is written")
    assert set(itertools.product(("before", "after"), CALLS)) <= met
    names = {scene.workload(name)["metadata"]["name"] for name in ("one", "two")}
    told = {one: times for one, times in writes.items() if one[0] in ("tell", "return")}
    assert told == {(call, name): 1 for call in ("tell", "return") for name in names}
    assert scene.held() == set()
    assert scene.quota() == 5


def answers(scene: Scene) -> None:
    """What logs say meanwhile: the one that was asked has saved."""
    scene.note("one", lost=10, saved_s=2)
    scene.note("two")


@pytest.mark.long
def test_another_takes_over_from_a_leader_that_is_stopped(scene: Scene, controller: Callable[..., Controller]) -> None:
    first = controller()
    lend_to(scene, "one", "two")
    first.server.signal(signal.SIGSTOP)
    second = controller(leads=False)
    second.server.wait_until(lambda: second.metric("kopt_reallocation_leading") == 1.0)
    assert (scene.quota(), scene.held()) == (5, set()), "a new leader goes on where the other was"
    scene.expect(7, 7, 7, 8)
    wait_for(lambda: scene.held() == {"one", "two"}, what="both were told to go")
    first.server.signal(signal.SIGCONT)
    scene.expect(2, 2.4, 2.6, 2.9)
    wait_for(
        lambda: not any("held-undo" in json.dumps(one["metadata"]) for one in scene.api.list(*WORKLOAD, scene.space)),
        what="both are let go",
    )
    wait_for(lambda: scene.runs() == {"one", "two"}, what="both go on")
