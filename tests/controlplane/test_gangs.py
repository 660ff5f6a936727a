"""KAI under the tests is the real one: it groups the pods of a job, holds an incomplete gang back, and binds."""

import time

from controlplane.api import Object
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for


def gang(
    name: str, namespace: str, queue: str, pods: int, gpus: int, selector: dict[str, str], resource: str
) -> Object:
    container = {"name": "main", "image": "any", "resources": {"limits": {resource: str(gpus)}}}
    spec = {
        "schedulerName": SCHEDULER,
        "restartPolicy": "Never",
        "nodeSelector": selector,
        "containers": [container],
    }
    template = {"metadata": {"labels": {QUEUE_LABEL: queue}}, "spec": spec}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE_LABEL: queue}},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": pods, "restartPolicy": "Never", "template": template}}},
    }


def pods_of(job: Object, stored: Object) -> list[Object]:
    """The pods that a training operator would make: there is none here."""
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    meta = stored["metadata"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    labels = {**spec["template"]["metadata"]["labels"], "training.kubeflow.org/replica-type": "worker"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-worker-{index}",
                "namespace": meta["namespace"],
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": spec["template"]["spec"],
        }
        for index in range(spec["replicas"])
    ]


def test_kai_binds_a_complete_gang_and_holds_back_one_that_does_not_fit(
    control_plane: ControlPlane, kwok: Kwok, kai: Kai
) -> None:
    api = control_plane.api
    control_plane.install_crds("training-operator")
    space = api.space("gangs")
    with kwok.nodes(2, gpus=8, resource="amd.com/gpu") as nodes, kai.queue() as queue:
        big = gang("big", space, queue, pods=3, gpus=8, selector=nodes.selector, resource="amd.com/gpu")
        small = gang("small", space, queue, pods=2, gpus=8, selector=nodes.selector, resource="amd.com/gpu")
        for pod in pods_of(big, api.create(big)):
            api.create(pod)
        groups = wait_for(lambda: api.list("scheduling.run.ai/v2alpha2", "PodGroup", space))
        assert groups[0]["spec"]["queue"] == queue
        assert groups[0]["spec"]["minMember"] == 3
        time.sleep(2)
        assert not api.list("v1", "Pod", space, fields="spec.nodeName!=")
        for pod in pods_of(small, api.create(small)):
            api.create(pod)
        wait_for(lambda: len(api.list("v1", "Pod", space, fields="status.phase=Running")) == 2)
        bound = api.list("v1", "Pod", space, fields="spec.nodeName!=")
        assert {pod["spec"]["nodeName"] for pod in bound} == set(nodes)
        assert {pod["metadata"]["name"] for pod in bound} == {"small-worker-0", "small-worker-1"}
