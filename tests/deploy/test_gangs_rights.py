"""The controller of gangs with its own account's token: it releases one of two gangs that wait for each other, one of
Kueue's too, gives both back, and is refused nothing; its ledger has a line for each."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from gangs.conftest import GPU, Gangs

from .rights import (
    Object,
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    roles_of,
    start_controller,
)

ACCOUNT, LEDGER = "kopt-gangs", "kopt-ledger"
VALUES = {
    "gangs": {"enabled": True, "mode": "enforce", "hold": "2s"},
    "evictions": {"enabled": True},
    **WITHOUT_DEFAULTS,
}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("create", "", "secrets"): "only by the first of our processes",
    ("patch", "", "pods"): "only for pods beyond a minimum",
    ("create", "", "pods/eviction"): "only for pods beyond a minimum",
    ("patch", "", "pods/status"): "only for pods beyond a minimum",
}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT)


@pytest.mark.cluster
@pytest.mark.long
def test_it_is_refused_nothing_and_uses_its_rights(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], here: tuple[Kueue, Kwok]
) -> None:
    install(VALUES)
    started, api, (kueue, kwok) = datetime.now(UTC), control_plane.api, here
    space = api.space("gangs-rights", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(2, gpus=4) as nodes, kueue.queue(space, {GPU: 16, "cpu": 100}):
        gangs = Gangs(control_plane, space, dict(nodes.selector))
        ledger, _ = start_controller(control_plane, charts, VALUES, LEDGER)
        server, metrics = start_controller(control_plane, charts, VALUES, ACCOUNT)
        server.wait_until(lambda: "kopt_gangs_leading 1.0" in httpx.get(metrics, trust_env=False).text)
        for queue, first, second in (("", "a-older", "a-newer"), ("gpus", "b-older", "b-newer")):
            gangs.deadlock(first, second, queue=queue)
            wait_for(lambda name=first: gangs.bound(name) == 2, what=f"{first} runs")
            wait_for(lambda name=second: len(gangs.pods(name)) == 2, what=f"{second} is given back")
            for name in (first, second):
                gangs.ends(name)
        lines = wait_for(lambda: evictions(control_plane, space), what="both are in the ledger") or []
        assert {line["spec"]["for"] for line in lines} == {f"{space}/a-older", f"{space}/b-older"}
        assert {line["spec"]["by"] for line in lines} == {ACCOUNT}
        server.stop()
        ledger.stop()
    seen = audited(control_plane, ACCOUNT, started)
    assert_refused_nothing(seen)
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), seen, SELDOM)


def evictions(plane: ControlPlane, space: str) -> list[Object]:
    found = plane.api.list("kaiwo.ai/v1alpha1", "Eviction", space)
    return found if len(found) >= 2 else []
