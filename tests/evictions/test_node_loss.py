"""Nodes go away: silent ones, which the taint manager empties, and ones that are deleted, which the garbage collector
of pods cleans up after. Each is one line, and what runs elsewhere is back."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .conftest import GPU, Ledger, Object, Start, job
from .test_with_kueue import WORKLOAD

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
#: The garbage collector of pods looks every 20 s and waits for 40 s whether a node comes back.
COLLECTED_S = 180
Node = Callable[[dict[str, str]], Kubelet]


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[Node]:
    """``node(labels)`` is one whose pods are processes, so that nobody ends them once it has crashed."""
    with ExitStack() as there:

        def begin(labels: dict[str, str]) -> Kubelet:
            one = Kubelet(plane, resources={GPU: "4"}, labels=labels)
            there.callback(lambda: plane.api.delete("v1", "Node", one.name))
            there.callback(one.crash)
            return one

        yield begin


def lonely(name: str, space: str, selector: dict[str, str], pods: int, *, queue: bool = False) -> Object:
    """A Job of pods with four GPUs each, which leave a node that is silent after a second."""
    found = job(name, space, 4, selector, pods=pods, queue=queue)
    spec = found["spec"]["template"]["spec"]
    spec["containers"][0]["command"] = ["sleep", "3600"]
    spec["tolerations"] = [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    ]
    return found


def fall_silent(plane: ControlPlane, one: Kubelet) -> None:
    """It is cut off, and known as unreachable at once; else that takes as long as the cluster has patience."""
    one.crash()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "silent",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    plane.api.patch("v1", "Node", one.name, {"status": {"conditions": [ready]}}, "", "status")


def on(ledger: Ledger, one: Kubelet) -> str:
    """The pod on a node."""
    (pod,) = ledger.api.list("v1", "Pod", ledger.space, fields=f"spec.nodeName={one.name}")
    return str(pod["metadata"]["name"])


@pytest.mark.long
def test_a_silent_node_is_one_line_also_when_its_pods_are_collected_later(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, start: Start, node: Node
) -> None:
    first = start()
    room = {"kopt.test/room": ledger.space}
    with kwok.nodes(1, gpus=4, labels=room):
        silent = node(room)
        plane.api.create(lonely("train", ledger.space, room, 2))
        ledger.running("train", 2)
        name = on(ledger, silent)
        fall_silent(plane, silent)
        spec = ledger.phase("Waiting")["spec"]
        assert (spec["cause"], spec["by"], spec["gpus"]) == ("NodeLost", "taint manager", 4000)
        assert spec["workload"]["name"] == "train"
        with kwok.nodes(1, gpus=4, labels=room):
            ledger.phase("Resumed")
            assert "deletionTimestamp" in plane.api.get("v1", "Pod", name, ledger.space)["metadata"], "nobody ends it"
            first.kill()
            start()
            plane.api.delete("v1", "Node", silent.name)
            gone = lambda: plane.api.find("v1", "Pod", name, ledger.space) is None  # noqa: E731
            wait_for(gone, COLLECTED_S, "the pod is collected")
            # What is written of that is written before a later eviction is.
            plane.api.delete("v1", "Pod", ledger.running("train", 2)[0]["metadata"]["name"], ledger.space)
            wait_for(lambda: len(ledger.lines()) > 1, what="a line about the pod that was deleted")
            assert [one["spec"]["cause"] for one in ledger.lines()] == ["NodeLost", "Deleted"]


@pytest.mark.long
def test_a_node_that_is_deleted_takes_a_gang_and_a_pod_of_nobody(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, start: Start
) -> None:
    """As when a cloud takes its machines back."""
    start()
    room = {"kopt.test/room": ledger.space}
    with kwok.nodes(2, gpus=5, labels=room) as nodes:
        plane.api.create(job("train", ledger.space, 4, room, pods=2))
        pods = ledger.running("train", 2)
        assert {one["spec"]["nodeName"] for one in pods} == set(nodes)
        container = {"name": "main", "image": "any", "resources": {"limits": {GPU: "1"}}}
        plane.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "alone", "namespace": ledger.space},
                "spec": {"containers": [container], "nodeSelector": room},
            }
        )
        runs = lambda: plane.api.get("v1", "Pod", "alone", ledger.space)["status"].get("phase") == "Running"  # noqa: E731
        wait_for(runs, what="the pod of nobody runs")
        for one in nodes:
            plane.api.delete("v1", "Node", one)
        wait_for(lambda: ledger.phases() == {"train": "Waiting", "alone": "Gone"}, COLLECTED_S, "both are lines")
        specs = {one["spec"]["workload"]["name"]: one["spec"] for one in ledger.lines()}
        assert (specs["train"]["gpus"], specs["alone"]["gpus"]) == (8000, 1000)
        assert {(one["cause"], one["by"]) for one in specs.values()} == {("NodeLost", "pod garbage collector")}
        with kwok.nodes(2, gpus=4, labels=room):
            wait_for(lambda: ledger.phases()["train"] == "Resumed", what="it runs elsewhere")
        assert len(ledger.lines()) == 2


def test_a_job_of_kueues_is_back_after_it_lost_a_node_and_what_kueue_takes_then_is_a_line(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kueue: Kueue, start: Start, node: Node
) -> None:
    start()
    space, room = ledger.space, {"kopt.test/room": ledger.space}
    with kwok.nodes(1, gpus=4, labels=room), kueue.queue(space, {GPU: 8}):
        silent = node(room)
        plane.api.create(lonely("train", space, room, 2, queue=True))
        ledger.running("train", 2)
        fall_silent(plane, silent)
        spec = ledger.phase("Waiting")["spec"]
        assert (spec["cause"], spec["by"], spec["gpus"]) == ("NodeLost", "taint manager", 4000)
        with kwok.nodes(1, gpus=4, labels=room):
            ledger.phase("Resumed")
            (workload,) = plane.api.list(*WORKLOAD, space)
            plane.api.patch(*WORKLOAD, workload["metadata"]["name"], {"spec": {"active": False}}, space)
            wait_for(lambda: len(ledger.lines()) == 2, what="what Kueue takes is a line of its own")
            found = [(one["spec"]["cause"], one["spec"]["gpus"]) for one in ledger.lines()]
            assert found == [("NodeLost", 4000), ("Deactivated", 8000)]


@pytest.mark.long
def test_a_pod_whose_process_ends_at_once_when_it_is_deleted_is_a_line(
    plane: ControlPlane, ledger: Ledger, start: Start, node: Node
) -> None:
    """A kubelet reports that it has failed before it is gone; simulated nodes do not."""
    start()
    room = {"kopt.test/room": ledger.space}
    node(room)
    plane.api.create(lonely("train", ledger.space, room, 1))
    (pod,) = ledger.running("train")
    plane.api.delete("v1", "Pod", pod["metadata"]["name"], ledger.space)
    assert ledger.phase("Resumed")["spec"]["cause"] == "Deleted"
