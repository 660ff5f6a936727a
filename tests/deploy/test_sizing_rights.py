"""The sizing controller with its own account's token: it holds, profiles and gives back, is refused nothing, and may
not create anything but profiling Jobs in namespaces that have opted in."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api, Refused
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT
from sizing_controller.conftest import GPU, job, recording

from .rights import Object, assert_refused_nothing, assert_uses_its_rights, audited, leading, roles_of

NAMESPACE, ACCOUNT, SPACE = "kopt-system", "kopt-sizing", "profiled"
BATCH = ("batch/v1", "Job")
SELDOM = {
    ("watch", "kai.scheduler", "configs"): "only in a cluster with KAI",
    ("get", "", "pods/log"): "only for the failed pod of a Job whose request was changed",
    ("patch", "kaiwo.ai", "sizingprofiles"): "only when a job type is profiled anew",
    ("delete", "kaiwo.ai", "sizingprofiles"): "only when another image stands behind a reference",
    ("get", "kueue.x-k8s.io", "localqueues"): "only for Jobs in Kueue's queues",
    ("get", "kueue.x-k8s.io", "clusterqueues"): "only for Jobs in Kueue's queues",
    ("list", "kueue.x-k8s.io", "workloads"): "only for Jobs in Kueue's queues that ran out of memory",
    ("patch", "kueue.x-k8s.io", "workloads"): "only for Jobs in Kueue's queues that ran out of memory",
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
}


@pytest.fixture(scope="module")
def worked(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Object]:
    """The audit log of a Job's way through the controller, as the chart starts it."""
    values = {"mode": "enforce", "sizing": {"dryRunMinutes": 1}, "webhook": {"enabled": False}}
    install(values)
    started = datetime.now(UTC)
    with leading(control_plane, charts, values, ACCOUNT, ["--interval=0.02"]):
        control_plane.api.namespace(SPACE, {"kaiwo.ai/managed": "true"})
        log = recording(tmp_path_factory.mktemp("recorded") / "log.csv", 7000)
        labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        resources = {GPU: "1", "nvidia.com/mig-1g.10gb": "7"}
        with Kubelet(control_plane, resources=resources, labels=labels, entrypoints={"kopt-agents": KOPT}) as node:
            control_plane.api.create(job("train", SPACE, "sleep 3", log=log, selector=node.selector))
            control_plane.api.wait(*BATCH, "train", lambda one: one["status"].get("succeeded"), SPACE, timeout_s=120)
            wait_for(lambda: len(control_plane.api.list(*BATCH, SPACE)) == 1, what="the profiling Job is gone")
    return audited(control_plane, ACCOUNT, started)


def test_it_is_refused_nothing(worked: list[Object]) -> None:
    assert_refused_nothing(worked)


def test_every_right_is_used_or_has_a_reason(worked: list[Object], charts: Any) -> None:
    roles = roles_of(charts, {"logs": {"everywhere": True}}, ACCOUNT, "kopt-logs")
    assert_uses_its_rights(roles, worked, SELDOM)


@pytest.mark.parametrize(
    ("changes", "space"),
    [
        ({"labels": {}}, SPACE),
        ({}, "default"),
        ({"host": True}, SPACE),
    ],
)
def test_its_account_cannot_create_anything_else(
    worked: list[Object], control_plane: ControlPlane, changes: Object, space: str
) -> None:
    body = job("escape", space, "id")
    body["metadata"]["labels"] = changes.get("labels", {"kaiwo.ai/profiling": "x"})
    if changes.get("host"):
        body["spec"]["template"]["spec"]["hostPID"] = True
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    with pytest.raises(Refused, match="kopt-sizing-fence"):
        stolen.create(body, dryRun="All")
    allowed = job("fine", SPACE, "id", activeDeadlineSeconds=60)
    allowed["metadata"]["labels"] = {"kaiwo.ai/profiling": "x"}
    owner = control_plane.api.get(*BATCH, "train", SPACE)["metadata"]
    allowed["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": owner["name"], "uid": owner["uid"]}
    ]
    allowed["spec"]["template"]["spec"] |= {
        "automountServiceAccountToken": False,
        "priorityClassName": "kopt-profiling",
    }
    assert stolen.create(allowed, dryRun="All")


def test_its_account_cannot_delete_a_users_job(worked: list[Object], control_plane: ControlPlane) -> None:
    with pytest.raises(Refused, match="only profiling Jobs"):
        Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE))).delete(*BATCH, "train", SPACE)
