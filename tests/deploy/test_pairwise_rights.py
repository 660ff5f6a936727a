"""The pairwise benchmark controller with its own account's token: it measures, is refused nothing, and may create Jobs
in the namespace of tests only."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.api import Api, Refused
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import free_port, wait_for
from pairwise.conftest import BENCHMARK, GPU, SPACE, benchmark

from .rights import Object, audited, granted, used

KOPT = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()"]
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
    (deployment,) = [
        one for one in charts.render(VALUES) if (one["kind"], one["metadata"]["name"]) == ("Deployment", ACCOUNT)
    ]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    port, started = free_port(), datetime.now(UTC)
    env = {
        "KUBECONFIG": str(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)),
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": "kopt-pairs-0",
    }
    local = [one for one in arguments if not one.startswith(("--host", "--port"))]
    server = control_plane.start_server("pairs", [*KOPT, *local, f"--port={port}"], env)
    metrics = f"http://127.0.0.1:{port}/metrics"
    server.wait_until(lambda: "\nkopt_pairs_leading 1.0" in httpx.get(metrics, trust_env=False).text)
    control_plane.api.wait("v1", "ServiceAccount", "default", namespace=SPACE)
    shares = tmp_path_factory.mktemp("pairs") / "shares"
    shares.write_text("")
    labels = {"pool": "rights"}
    nodes = [Kubelet(control_plane, f"rights-{n}", {GPU: "4"}, labels) for n in range(3)]
    control_plane.api.create(benchmark("rights", shares))
    try:
        done = lambda one: one.get("status", {}).get("measured") == 3  # noqa: E731
        control_plane.api.wait(*BENCHMARK, "rights", done, timeout_s=120)
        nodes.pop().stop()
        wait_for(lambda: len(control_plane.api.list("kaiwo.ai/v1alpha1", "NodeBandwidth")) == 2, what="it is forgotten")
    finally:
        server.stop()
        control_plane.api.delete(*BENCHMARK, "rights")
        for node in nodes:
            node.stop()
    return audited(control_plane, ACCOUNT, started)


def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert worked
    assert [one for one in worked if one.get("responseStatus", {}).get("code") == 403] == []


def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    roles = [
        one
        for one in charts.render(VALUES)
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] == ACCOUNT
    ]
    assert len(roles) == 3
    assert granted(roles) - used(worked) - SELDOM.keys() == set(), "given and never used"
    assert SELDOM.keys() <= granted(roles)


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
