"""A node that gives pods other GPUs than were chosen: its agent says so, and the extender's books follow.

The kubelet hands out devices of a plugin by its own order and tells of them over its PodResources API; the topology
agent asks there and writes the NodeAllocation; kube-scheduler and the extender know of it by watch alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import node_outputs as outputs
import pytest
from controlplane.kubelet import DeviceManager, Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT

from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_scheduling_by_the_policy import INDICES, bound, indices

GPU, KIND = "nvidia.com/gpu", ("kaiwo.ai/v1alpha1", "NodeAllocation")
CRDS = Path(__file__).parents[3] / "deploy" / "chart" / "crds"
IDS = [outputs.uuid(index) for index in range(8)]


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    names = ("nodetopologies", "nodeallocations")
    control_plane.apply_crds([CRDS / f"{name}.yaml" for name in names])
    yield control_plane
    for name in names:
        definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{name}.kaiwo.ai")
        control_plane.api.delete(*definition)
        wait_for(lambda definition=definition: control_plane.api.find(*definition) is None)


@contextmanager
def running_node(
    plane: ControlPlane, folder: Path, pick: Callable[[Sequence[str], int], Sequence[str]]
) -> Iterator[tuple[Kubelet, DeviceManager]]:
    """A node of eight GPUs with its agent."""
    with ExitStack() as parts:
        devices = DeviceManager({GPU: IDS}, pick)
        parts.callback(devices.stop)
        node = parts.enter_context(Kubelet(plane, devices=devices, labels={"nvidia.com/gpu.product": "V100"}))
        arguments = ["--node", node.name, "--replay", str(outputs.cube_mesh(folder)), "--interval", "3600"]
        command = [*KOPT, "agent", "topology", *arguments, "--pod-resources", str(devices.pod_resources)]
        agent = plane.start_server(f"topology-{node.name}", command, {"KUBECONFIG": str(plane.kubeconfig)})
        parts.callback(agent.stop)
        plane.api.wait(*KIND, node.name, namespace="")
        yield node, devices


def trainer(name: str, space: str, gpus: int, node: Kubelet) -> Object:
    pod = gpu_pod(name, space, gpus, scheduler=space, selector=node.selector, cpu="10m", memory="10Mi")
    pod["spec"]["containers"][0]["command"] = ["sleep", "600"]
    return pod


def counted(extender: RunningExtender) -> dict[str, float]:
    verdicts = ("followed", "differs", "parts", "unknown")
    counts = {one: extender.metric(f'kopt_extender_allocations_total{{reason="{one}"}}') for one in verdicts}
    return {name: count for name, count in counts.items() if count}


def test_books_and_annotation_are_those_of_the_node(
    plane: ControlPlane, start_extender: Callable[..., RunningExtender], tmp_path: Path
) -> None:
    api, space = plane.api, plane.api.space("ext-gave")
    with running_node(plane, tmp_path / "recorded", lambda free, count: free[-count:]) as (node, devices):
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(trainer("first", space, 2, node))
        bound(api, "first", space)
        told = api.wait(*KIND, node.name, lambda one: one["status"]["allocations"], "")
        assert told["status"]["allocations"] == [
            {"namespace": space, "pod": "first", "resource": GPU, "devices": IDS[6:], "gpus": [6, 7]}
        ]
        began_s = time.monotonic()
        wait_for(lambda: counted(extender) == {"differs": 1}, what="the extender has read it")
        pod = api.wait("v1", "Pod", "first", lambda one: indices(one) == [6, 7], space)
        # From the report to the corrected annotation, on a busy machine; the books come before it.
        assert time.monotonic() - began_s < 5
        assert devices.of("first") == IDS[6:]
        why = extender.explain(space, "first")
        assert why["gpu_indices"] == [6, 7]
        assert len(why["chosen_gpu_indices"]) == 2
        assert set(why["chosen_gpu_indices"]) != {6, 7}
        assert why["followed"] == "differs"
        assert "GPUS_DIFFER" in {one["code"] for one in why["reasons"]}
        events = wait_for(lambda: events_about(plane, space, pod, "OtherGPUs"), what="the event")
        assert "gave the pod GPUs 6, 7 in place of" in events[0]["note"]

        # What is chosen next is free on the node, and not what looked free before.
        api.create(trainer("second", space, 6, node))
        bound(api, "second", space)
        api.wait("v1", "Pod", "second", lambda one: one["status"].get("phase") == "Running", space)
        wait_for(lambda: counted(extender) == {"differs": 1, "followed": 1}, what="the second one is as chosen")
        assert indices(api.get("v1", "Pod", "second", space)) == [0, 1, 2, 3, 4, 5]
        api.create(trainer("third", space, 1, node))
        api.wait("v1", "Pod", "third", has_no_node, space)

        # Somebody else's word about it counts for nothing.
        lie = {"metadata": {"annotations": {INDICES: "2,3"}}}
        api.patch("v1", "Pod", "first", lie, space)
        api.wait("v1", "Pod", "first", lambda one: indices(one) == [6, 7], space)
        api.delete("v1", "Pod", "first", space, gracePeriodSeconds=0)
        api.wait("v1", "Pod", "third", lambda one: one["spec"].get("nodeName") == node.name, space)
        api.wait(*KIND, node.name, lambda one: pods_in(one) == {"second", "third"}, "")


def test_a_node_that_follows_is_counted_and_written_to_no_more(
    plane: ControlPlane, start_extender: Callable[..., RunningExtender], tmp_path: Path
) -> None:
    api, space = plane.api, plane.api.space("ext-followed")
    with running_node(plane, tmp_path / "recorded", lambda free, count: free[:count]) as (node, _):
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        for number in range(4):
            api.create(trainer(f"pod-{number}", space, 2, node))
            bound(api, f"pod-{number}", space)
            wait_for(lambda number=number: sum(counted(extender).values()) == number + 1, what="the report")
        verdicts = counted(extender)
        assert set(verdicts) <= {"followed", "differs"}
        pods = [api.get("v1", "Pod", f"pod-{number}", space) for number in range(4)]
        assert sorted(gpu for pod in pods for gpu in indices(pod)) == list(range(8))
        allocations = api.get(*KIND, node.name, "")["status"]["allocations"]
        given = {one["pod"]: one["gpus"] for one in allocations}
        assert given == {pod["metadata"]["name"]: indices(pod) for pod in pods}


def pods_in(told: Object) -> set[str]:
    return {str(each["pod"]) for each in told["status"]["allocations"]}


def has_no_node(pod: Object) -> bool:
    return any(
        (one["type"], one["status"]) == ("PodScheduled", "False") for one in pod["status"].get("conditions") or ()
    )


def events_about(plane: ControlPlane, space: str, pod: Object, reason: str) -> list[Object]:
    events = plane.api.list("events.k8s.io/v1", "Event", space)
    uid = pod["metadata"]["uid"]
    return [one for one in events if one["regarding"].get("uid") == uid and one["reason"] == reason]
