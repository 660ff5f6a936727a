"""The controller of reservations with its own account's token: it holds idle GPUs, stops a job that saved, lets the
owner start, uses all of its rights and is refused nothing;
`kopt off` with its own account gives everything back."""

import os
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from agent_notes import checkpoint_notes
from chart import NAMESPACE, WITHOUT_DEFAULTS
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT
from reservations.conftest import GPU, KUEUE, Team

from .rights import (
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    roles_of,
    start_controller,
)

ACCOUNT = "kopt-reservations"
VALUES = {
    "reservations": {"enabled": True, "mode": "enforce"},
    **WITHOUT_DEFAULTS,
}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("create", "", "secrets"): "only by the first of our processes",
    ("patch", "", "pods"): "only for pods that answer requests to save",
}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT, ACCOUNT, "PriorityClass")


@pytest.mark.cluster
@pytest.mark.long
def test_it_is_refused_nothing_and_uses_its_rights(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], here: tuple[Kueue, Kwok]
) -> None:
    install(VALUES)
    started, api, (kueue, kwok) = datetime.now(UTC), control_plane.api, here
    space = api.space("reservations-rights", {"kaiwo.ai/managed": "true"})
    with (
        kwok.nodes(2, gpus=4) as nodes,
        kueue.queue(space, {GPU: 8}, node_labels=nodes.selector) as owner,
    ):
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "nightly", "namespace": space}}
        api.create(local | {"spec": {"clusterQueue": owner}})
        team = Team(control_plane, space, dict(nodes.selector))
        server, metrics = start_controller(control_plane, charts, VALUES, ACCOUNT)
        server.wait_until(lambda: "kopt_reservations_leading 1.0" in httpx.get(metrics, trust_env=False).text)
        team.submit("saves", 4)
        wait_for(lambda: team.runs("saves"), what="it runs")
        team.note("saves", checkpoint_notes("TRAIN", True, 40, -5.0))
        start_s = time.time() + 5.0
        team.reserve(nodes=2, start=start_s, until=start_s + 600.0, lead="1s")
        wait_for(lambda: team.held() == 8, what="all of it is held")
        assert team.holder("saves") == "reservations"
        (job, *_) = team.hold_jobs()
        assert job["spec"]["template"]["spec"]["priorityClassName"] == ACCOUNT
        team.submit("own", 4, queue="nightly")
        wait_for(lambda: team.runs("own"), what="its owner runs on it")
        server.stop()
        assert team.hold_jobs()
        env = os.environ | {"KUBECONFIG": str(control_plane.kubeconfig_for("kopt-off", NAMESPACE))}
        off = subprocess.run([*KOPT, "off", "-n", NAMESPACE, "--wait", "1s"], env=env, capture_output=True, check=False)
        wait_for(lambda: not team.hold_jobs(), what=f"what holds GPUs is gone: {off.stdout.decode()}")
        assert not team.holder("saves")
        team.clear()
        api.delete(KUEUE, "LocalQueue", "nightly", space)
    seen = audited(control_plane, ACCOUNT, started)
    assert_refused_nothing(seen)
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), seen, SELDOM)
