"""The agents of a replayed day read as agents do; only those of a large one leave out what has not changed."""

from collections.abc import Mapping

import httpx
import pytest
from controlplane.processes import free_port, wait_for

from kopt.agents.telemetry.process import ProcessSettings
from tests.day import agents
from tests.day.agents import Agents, Holding, Node

_EVERY_S = 0.02


class Kubelet:
    """What it has given out; ``asked`` times somebody wanted to know."""

    def __init__(self) -> None:
        self.asked, self.held = 0, {0: Holding("team", "train", 0.5)}

    def holders(self) -> Mapping[int, Holding]:
        self.asked += 1
        return dict(self.held)


@pytest.mark.parametrize("is_large", [False, True])
def test_only_agents_of_a_large_cluster_leave_out_what_has_not_changed(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(agents, "LARGE", 1)
    kubelet = Kubelet()
    running = Agents([Node("n0", 2, kubelet.holders)], free_port(), _EVERY_S)
    try:
        (_, agent) = running._nodes["n0"]
        assert agent._settings.stale_s == ProcessSettings.stale_s, "a driver that hangs shows as it does on a node"
        before = sum(agent.readings.values())
        asked = kubelet.asked
        wait_for(lambda: kubelet.asked > asked + 10, what="it is looked at again and again")
        assert (sum(agent.readings.values()) == before) == is_large
        kubelet.held[1] = Holding("team", "other", 0.0)
        url = f"http://{running.address}/n0/metrics"
        wait_for(lambda: 'pod="other"' in httpx.get(url, trust_env=False).text, what="what has changed is read at once")
    finally:
        running.stop()
    assert running.slowest.startswith("a round over changed nodes" if is_large else "all agents read")
