"""The pairwise benchmark controller with its own account's token: it measures, is refused nothing, and may create Jobs
in the namespace of tests only."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api, Refused
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from pairwise.conftest import BENCHMARK, GPU, SPACE, benchmark

from .rights import Object, assert_refused_nothing, assert_uses_its_rights, audited, leading, roles_of

NAMESPACE, ACCOUNT = "kopt-system", "kopt-pairs"
VALUES = {"pairs": {"enabled": True}, "webhook": {"enabled": False}, "sizing": {"enabled": False}}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
}


@pytest.fixture(scope="module")
def worked(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    """The audit log of a tournament through the controller, as the chart starts it."""
    install(VALUES)
    started, api = datetime.now(UTC), control_plane.api
    shares = tmp_path_factory.mktemp("pairs") / "shares"
    shares.write_text("")
    nodes: list[Kubelet] = []
    try:
        with leading(control_plane, charts, VALUES, ACCOUNT):
            api.wait("v1", "ServiceAccount", "default", namespace=SPACE)
            nodes += [Kubelet(control_plane, f"rights-{n}", {GPU: "4"}, {"pool": "rights"}) for n in range(3)]
            api.create(benchmark("rights", shares))
            api.wait(*BENCHMARK, "rights", lambda one: one.get("status", {}).get("measured") == 3, timeout_s=120)
            nodes.pop().stop()
            wait_for(lambda: len(api.list("kaiwo.ai/v1alpha1", "NodeBandwidth")) == 2, what="it is forgotten")
    finally:
        api.delete(*BENCHMARK, "rights")
        for node in nodes:
            node.stop()
    return audited(control_plane, ACCOUNT, started)


def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert_refused_nothing(worked)


def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    roles = roles_of(charts, VALUES, ACCOUNT)
    assert len(roles) == 3
    assert_uses_its_rights(roles, worked, SELDOM)


def test_its_account_can_create_jobs_nowhere_else(worked: list[Object], control_plane: ControlPlane) -> None:
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    pod = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
    for space, allowed in ((SPACE, True), (NAMESPACE, False), ("default", False)):
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "escape", "namespace": space},
            "spec": {"template": {"spec": pod}},
        }
        if allowed:
            assert stolen.create(body, dryRun="All")
        else:
            with pytest.raises(Refused, match="jobs"):
                stolen.create(body, dryRun="All")
