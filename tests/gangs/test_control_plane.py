"""Two gangs that wait for each other under the real kube-scheduler: one is released, and the other runs."""

import json
import time

import pytest
from controlplane.kueue import Kueue
from controlplane.processes import wait_for

from .conftest import GPU, Gangs, Start

pytestmark = pytest.mark.cluster
HOLD_S = 3.0


def test_the_younger_gives_up_its_node_and_comes_back_when_the_other_has_started(
    gangs: Gangs, controller: Start
) -> None:
    """The leader is killed as soon as the release is written: the other replica gives it back, and nothing is done
    twice."""
    first = controller("--mode=enforce", f"--hold={HOLD_S}s")
    second = controller("--mode=enforce", f"--hold={HOLD_S}s", leads=False)
    bound_s = gangs.deadlock()
    wait_for(lambda: gangs.is_suspended("newer"), what="the younger is released")
    first.server.kill()
    assert time.time() - bound_s <= HOLD_S + 5
    wait_for(lambda: gangs.bound("older") == 2, what="the older runs")
    assert time.time() - bound_s <= HOLD_S + 5
    labels = gangs.job("newer")["metadata"]["labels"]
    assert labels["kaiwo.ai/held"] == "gangs"
    second.wait_leading()
    wait_for(lambda: not gangs.is_suspended("newer"), what="it is given back")
    metadata = gangs.job("newer")["metadata"]
    assert "kaiwo.ai/held" not in metadata.get("labels", {})
    assert not {"kaiwo.ai/evicting", "kaiwo.ai/held-undo"} & set(metadata["annotations"])
    assert len(gangs.events("GangReleased")) == 1
    assert not gangs.is_suspended("older")
    gangs.ends("older")
    wait_for(lambda: len(gangs.pods("newer")) == 2, what="it has pods again")
    gangs.let_all("newer")
    wait_for(lambda: gangs.bound("newer") == 2, what="it runs after the other")


def test_what_is_admitted_by_kueue_is_released_by_its_workload(gangs: Gangs, controller: Start, kueue: Kueue) -> None:
    controller("--mode=enforce", f"--hold={HOLD_S}s")
    with kueue.queue(gangs.space, {GPU: 16, "cpu": 100}):
        bound_s = gangs.deadlock(queue="gpus")
        wait_for(lambda: gangs.bound("older") == 2, what="the older runs")
        assert time.time() - bound_s <= HOLD_S + 5
        wait_for(lambda: len(gangs.pods("newer")) == 2 and gangs.bound("newer") == 0, what="Kueue admits it again")
        assert not gangs.is_suspended("older")
        for name in ("newer", "older"):
            gangs.ends(name)


def test_without_enforce_it_is_only_said(gangs: Gangs, controller: Start) -> None:
    replica = controller("--mode=annotate", "--hold=1s")
    gangs.deadlock()
    wait_for(
        lambda: "kaiwo.ai/gang-deadlock" in gangs.job("newer")["metadata"].get("annotations", {}), what="it is said"
    )
    said = json.loads(gangs.job("newer")["metadata"]["annotations"]["kaiwo.ai/gang-deadlock"])
    names = {f"{gangs.space}/{name}" for name in ("older", "newer")}
    assert set(said["deadlock"]) == names
    assert said["release"] == [f"{gangs.space}/newer"]
    assert replica.metric("kopt_gangs_deadlocked") == 2
    assert (gangs.bound("older"), gangs.bound("newer")) == (1, 1)
    wait_for(lambda: gangs.events("GangDeadlock"), what="there is an event")
    gangs.ends("older")
    wait_for(lambda: not gangs.report("newer"), what="it is said no longer")
