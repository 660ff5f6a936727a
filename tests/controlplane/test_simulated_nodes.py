"""Simulated GPU nodes take pods from the real scheduler, and real controllers see them run and end."""

from controlplane.api import Object
from controlplane.kwok import FAILS_AFTER, RUNS_FOR, Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for


def gpu_job(
    name: str, namespace: str, selector: dict[str, str], pods: int = 1, annotations: dict[str, str] | None = None
) -> Object:
    resources = {"nvidia.com/gpu": "1", "cpu": "1"}
    container = {"name": "main", "image": "any", "resources": {"limits": resources}}
    spec = {"containers": [container], "nodeSelector": selector, "restartPolicy": "Never"}
    template = {"metadata": {"annotations": annotations or {}}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": template},
    }


def test_a_job_of_fifty_pods_is_bound_to_gpus_and_runs_on(control_plane: ControlPlane, kwok: Kwok) -> None:
    api = control_plane.api
    space = api.space("fifty")
    with kwok.nodes(7, gpus=8) as nodes:
        api.create(gpu_job("fifty", space, nodes.selector, pods=57))
        wait_for(lambda: len(api.list("v1", "Pod", space, fields="status.phase=Running")) == 56)
        pods = api.list("v1", "Pod", space)
        per_node = [sum(pod["spec"].get("nodeName") == node for pod in pods) for node in nodes]
        assert per_node == [8] * 7
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
        reasons = wait_for(lambda: api.get("v1", "Pod", waiting[0]["metadata"]["name"], space)["status"]["conditions"])
        assert "Insufficient nvidia.com/gpu" in reasons[0]["message"]
        api.delete("batch/v1", "Job", "fifty", space, propagationPolicy="Background")
    assert not {node["metadata"]["name"] for node in api.list("v1", "Node")} & set(nodes)


def test_annotated_pods_succeed_or_fail_in_time(control_plane: ControlPlane, kwok: Kwok) -> None:
    api = control_plane.api
    space = api.space("ending")
    with kwok.nodes(1, gpus=4) as nodes:
        api.create(gpu_job("good", space, nodes.selector, annotations={RUNS_FOR: "200ms"}))
        api.create(gpu_job("bad", space, nodes.selector, annotations={FAILS_AFTER: "200ms"}))
        api.wait("batch/v1", "Job", "good", lambda job: job["status"].get("succeeded") == 1, space)
        api.wait("batch/v1", "Job", "bad", lambda job: job["status"].get("failed") == 1, space)


def test_nodes_may_offer_partitions(control_plane: ControlPlane, kwok: Kwok) -> None:
    api = control_plane.api
    partitions = {"amd.com/cpx_nps4": "64", "nvidia.com/mig-1g.10gb": "7"}
    with kwok.nodes(1, gpus=0, more=partitions, labels={"gpu": "mixed"}) as nodes:
        node = api.get("v1", "Node", nodes[0])
        assert partitions.items() <= node["status"]["allocatable"].items()
        assert node["metadata"]["labels"]["gpu"] == "mixed"
