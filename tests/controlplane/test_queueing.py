"""Kueue under the tests is the real one: it suspends, admits by quota, and lets the next job in."""

from controlplane.api import Object
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import RUNS_FOR, Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

QUEUE = "kueue.x-k8s.io/queue-name"


def queued_job(name: str, namespace: str, gpus: int, selector: dict[str, str], runs_for: str = "") -> Object:
    container = {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"containers": [container], "nodeSelector": selector, "restartPolicy": "Never"}
    annotations = {RUNS_FOR: runs_for} if runs_for else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE: "gpus"}},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


def test_kueue_admits_by_quota_and_lets_the_next_job_in(control_plane: ControlPlane, kwok: Kwok, kueue: Kueue) -> None:
    api = control_plane.api
    space = api.space("quota")
    with kwok.nodes(2, gpus=8) as nodes, kueue.queue(space, {"nvidia.com/gpu": 8}):
        first = api.create(queued_job("first", space, 6, nodes.selector, runs_for="1500ms"))
        wait_for(lambda: admitted(workload_of(control_plane, first)))
        second = api.create(queued_job("second", space, 6, nodes.selector, runs_for="100ms"))
        assert second["spec"]["suspend"] is True
        waits = wait_for(lambda: workload_of(control_plane, second)["status"].get("conditions"))
        assert "insufficient unused quota for nvidia.com/gpu" in waits[0]["message"]
        # Half of the simulated GPUs are free: only the quota holds the second job back.
        assert not api.list("v1", "Pod", space, labels="batch.kubernetes.io/job-name=second")
        api.wait("batch/v1", "Job", "second", lambda job: job["status"].get("succeeded") == 1, space)


def test_pods_without_a_queue_are_left_alone(control_plane: ControlPlane, kwok: Kwok, kueue: Kueue) -> None:
    api = control_plane.api
    space = api.space("unqueued")
    job = queued_job("free", space, 1, {})
    del job["metadata"]["labels"]
    with kwok.nodes(1) as nodes:
        job["spec"]["template"]["spec"]["nodeSelector"] = nodes.selector
        api.create(job)
        wait_for(lambda: api.list("v1", "Pod", space, fields="status.phase=Running"))
    assert not api.list("kueue.x-k8s.io/v1beta2", "Workload", space)
