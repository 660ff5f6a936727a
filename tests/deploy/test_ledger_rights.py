"""The recorder of the ledger with its own account's token: it writes what happens, is refused nothing, uses every
right that it has, and cannot touch a workload."""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT

from .rights import (
    Object,
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    leading,
    roles_of,
)

NAMESPACE, ACCOUNT, SPACE = "kopt-system", "kopt-ledger", "recorded"
VALUES = {
    "ledger": {"enabled": True, "most": 1},
    **WITHOUT_DEFAULTS,
}
BATCH, EVICTION = ("batch/v1", "Job"), ("kaiwo.ai/v1alpha1", "Eviction")
GPU = "nvidia.com/gpu"
SELDOM = {
    ("create", "", "secrets"): "only the first of our controllers makes the key of notices",
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("watch", "kueue.x-k8s.io", "workloads"): "only where there is Kueue",
    ("watch", "scheduling.run.ai", "podgroups"): "only where there is KAI",
    ("watch", "kaiwo.silogen.ai", "gpuworkloads"): "only where there is Kaiwo",
}


def job(name: str, node: Kubelet) -> Object:
    container = {"name": "main", "image": "any", "command": ["sleep", "600"], "resources": {"limits": {GPU: "1"}}}
    spec = {
        "containers": [container],
        "nodeSelector": node.selector,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"template": {"spec": spec}},
    }


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT, "ledger")


@pytest.fixture(scope="module")
def worked(control_plane: ControlPlane, charts: Any, install: Callable[..., None]) -> list[Object]:
    """The audit log of two evictions, one of whose lines is one too many."""
    install(VALUES)
    started, api = datetime.now(UTC), control_plane.api
    api.namespace(SPACE)
    with Kubelet(control_plane, "recorded", {GPU: "4"}) as node:
        with leading(control_plane, charts, VALUES, ACCOUNT):
            for name in ("one", "two"):
                api.create(job(name, node))
                api.wait(*BATCH, name, lambda one: one["status"].get("ready"), SPACE)
                api.patch(*BATCH, name, {"spec": {"suspend": True}}, SPACE)
                wait_for(lambda name=name: name in _phases(api), what=f"{name} is in the ledger")
                api.delete(*BATCH, name, SPACE, propagationPolicy="Background")
                wait_for(lambda name=name: _phases(api)[name] == "Gone", what=f"{name} is gone")
        # The next one tidies as it begins.
        with leading(control_plane, charts, VALUES, ACCOUNT):
            wait_for(lambda: list(_phases(api)) == ["two"], what="the older line is dropped")
    return audited(control_plane, ACCOUNT, started)


def _phases(api: Api) -> dict[str, str]:
    found = api.list(*EVICTION, SPACE)
    return {one["spec"]["workload"]["name"]: one.get("status", {}).get("phase", "") for one in found}


@pytest.mark.long
def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert_refused_nothing(worked)


@pytest.mark.long
def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    roles = roles_of(charts, VALUES, ACCOUNT)
    assert_uses_its_rights(roles, worked, SELDOM)


@pytest.mark.long
def test_its_account_cannot_touch_a_workload(worked: list[Object], control_plane: ControlPlane) -> None:
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    pod = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x", "namespace": SPACE},
        "spec": {"template": {"spec": pod}},
    }
    with pytest.raises(Refused, match="jobs"):
        stolen.create(body, dryRun="All")
    with pytest.raises(Refused, match="pods"):
        stolen.delete("v1", "Pod", "any", SPACE)
    (line,) = stolen.list(*EVICTION, SPACE)
    with pytest.raises(Refused, match="evictions"):
        stolen.patch(*EVICTION, line["metadata"]["name"], {"spec": {"cause": "Unknown"}}, SPACE)


@pytest.mark.long
def test_what_happened_cannot_be_changed_by_anybody(worked: list[Object], control_plane: ControlPlane) -> None:
    (line,) = control_plane.api.list(*EVICTION, SPACE)
    with pytest.raises(Refused, match="what happened does not change"):
        control_plane.api.patch(*EVICTION, line["metadata"]["name"], {"spec": {"cause": "Unknown"}}, SPACE)


@pytest.mark.long
def test_off_stops_it_and_keeps_the_ledger(worked: list[Object], control_plane: ControlPlane) -> None:
    env = {"KUBECONFIG": str(control_plane.kubeconfig_for("kopt-off", NAMESPACE)), "PATH": "/usr/bin:/bin"}
    subprocess.run([*KOPT, "off", "-n", NAMESPACE, "--wait", "5s"], env=env, capture_output=True, check=False)
    assert control_plane.api.get("apps/v1", "Deployment", ACCOUNT, NAMESPACE)["spec"]["replicas"] == 0
    assert list(_phases(control_plane.api)) == ["two"]
