"""Claims for several whole GPUs: the set that the webhook selects is the one that kube-scheduler allocates."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from admission.conftest import CRDS, Webhooks
from admission.submitting import labelled
from controlplane.processes import wait_for

from kopt.cluster.objects.device_slices import API_VERSION, DevicePool, whole_gpus

from .test_devices_on_api_server import CHOICE, DRIVER, Object, Team

pytestmark = [pytest.mark.cluster, pytest.mark.long]
CLASS = "gpu.nvidia.com"
NODES = [f"set-node-{at}" for at in range(3)]
PAIRS = [(0, 4), (1, 5), (2, 6), (3, 7)]


def uuid(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


def topology(node: str) -> Object:
    """Each GPU is linked with one, and that is not its neighbour in the slice."""
    gpus = [{"index": at, "name": "NVIDIA L40S", "uuid": uuid(node, at), "numa": 0} for at in range(8)]
    links = [{"a": a, "b": b, "type": "NVLINK", "count": 4} for a, b in PAIRS]
    spec = {"tool": "nvidia-smi", "vendor": "nvidia", "gpus": gpus, "links": links}
    return {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "NodeTopology", "metadata": {"name": node}, "spec": spec}


class Trainers(Team):
    """One template for each number of GPUs."""

    def __init__(self, webhooks: Webhooks, space: str) -> None:
        self.api, self.space = webhooks.api, space
        for count in (1, 2, 4, 8):
            exactly = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": count}
            metadata = {"name": str(count), "namespace": space}
            spec = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}}
            kind = {"apiVersion": API_VERSION, "kind": "ResourceClaimTemplate"}
            self.api.create({**kind, "metadata": metadata, "spec": spec})


def allocated(claim: Object) -> tuple[str, set[str]]:
    results = claim["status"]["allocation"]["devices"]["results"]
    (node,) = {result["pool"] for result in results}
    return node, {uuid(node, int(result["device"].removeprefix("gpu-"))) for result in results}


def selected(claim: Object) -> tuple[str, set[str]] | None:
    written = claim["metadata"].get("annotations", {}).get(CHOICE)
    choice = json.loads(written) if written else None
    return None if choice is None else (choice["node"], set(choice["gpus"]))


def has_room(running: list[tuple[str, str, int]], count: int) -> bool:
    """Whether any node has so many GPUs left."""
    used = Counter(dict.fromkeys(NODES, 0))
    for _, node, number in running:
        used[node] += number
    return min(used.values()) + count <= 8


@pytest.fixture(scope="module")
def trainers(webhooks: Webhooks) -> Iterator[Trainers]:
    api = webhooks.api
    webhooks.plane.apply_crds([CRDS / "nodetopologies.yaml"])
    for node in NODES:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"name": node}}})
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}}
        api.patch("v1", "Node", node, status, subresource="status")
        api.wait("v1", "Node", node, lambda node: not node["spec"].get("taints"))
        devices = whole_gpus(8, "NVIDIA L40S", 48, uuid=[uuid(node, at) for at in range(8)])
        for document in DevicePool(DRIVER, node, devices).slices():
            api.create(document)
        api.create(topology(node))
    of_driver = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    selectors = {"selectors": [{"cel": {"expression": of_driver}}]}
    api.create({"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": selectors})
    webhooks.policy(mode="enforce", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    one = Trainers(webhooks, space)

    def linked() -> bool:
        """The webhook has heard of the kind that was just defined."""
        name = one.submit("2", nodeSelector={"name": NODES[2]})
        choice = selected(one.runs(name))
        one.ends(name)
        return choice is not None and choice[1] == {uuid(NODES[2], 0), uuid(NODES[2], 4)}

    wait_for(linked, what="the webhook knows how GPUs are linked", timeout_s=60)
    yield one
    api.delete_all("v1", "Pod", space, gracePeriodSeconds=0)
    wait_for(lambda: not api.list(API_VERSION, "ResourceClaim", space), what="all devices are free")
    api.delete(API_VERSION, "DeviceClass", CLASS)
    for node in NODES:
        api.delete("v1", "Node", node)
        api.delete("kaiwo.ai/v1alpha1", "NodeTopology", node)
    for document in api.list(API_VERSION, "ResourceSlice"):
        api.delete(API_VERSION, "ResourceSlice", document["metadata"]["name"])


def test_sets_are_allocated_as_selected_and_lie_on_linked_gpus(trainers: Trainers) -> None:
    """24 GPUs, in pods of one to eight, of which the oldest end; slice order would take neighbours."""
    running: list[tuple[str, str, int]] = []
    same, differ, pairs = 0, [], 0
    for count in (2, 4, 2, 1, 8, 2, 4, 2, 2, 1, 4, 2, 2, 4, 2, 8, 2, 2, 4, 2):
        # What the webhook was too late for is placed anywhere, so that not every node is as full as it could be.
        while sum(number for *_, number in running) + count > 16 or not has_room(running, count):
            trainers.ends(running.pop(0)[0])
        pod = trainers.submit(str(count))
        claim = trainers.runs(pod)
        running.append((pod, allocated(claim)[0], count))
        choice = selected(claim)
        if choice is None:
            continue
        same += choice == allocated(claim)
        differ += [] if choice == allocated(claim) else [(choice, allocated(claim))]
        if count == 2:
            numbers = tuple(sorted(int(gpu[-1]) for gpu in allocated(claim)[1]))
            pairs += numbers in PAIRS
    for pod, *_ in running:
        trainers.ends(pod)
    assert same + len(differ) >= 18
    assert not differ
    assert pairs >= 9, "of eleven pods with two GPUs"


def test_what_others_took_meanwhile_is_replaced_by_what_was_written(trainers: Trainers) -> None:
    """A pod that no webhook sees is given all GPUs of a node, while another was selected a set there."""
    node = NODES[0]
    first = trainers.submit("4", nodeSelector={"name": node})
    choice = selected(trainers.runs(first))
    assert choice is not None
    assert choice[0] == node
    second = trainers.runs(trainers.submit("4", nodeSelector={"name": node}))
    assert selected(second) == allocated(second)
    assert not allocated(second)[1] & choice[1]
    late = trainers.submit("2", nodeSelector={"name": node})
    claim = wait_for(
        lambda: next(
            (
                each
                for each in trainers.api.list(API_VERSION, "ResourceClaim", trainers.space)
                if each["metadata"]["ownerReferences"][0]["name"] == late
            ),
            None,
        ),
        what="its claim is there",
    )
    assert selected(claim) is None, "no node that it may use has two GPUs left"
    assert "exactly" in claim["spec"]["devices"]["requests"][0]
    trainers.ends(first)
    assert allocated(trainers.runs(late))[0] == node
