"""The pre-emption controller as a process, before a real control plane with a real Kueue and simulated nodes."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from controlplane.kai import Kai
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import replicas

from .teams import CONFIGURATION, GPU, HIGH, LOW, SYSTEM, WEBHOOKS, WORKLOAD, Controller, KaiPods, Pods, Team


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane, kueue: Kueue) -> ControlPlane:
    """The shared control plane with Kueue and two classes of priority."""
    control_plane.api.namespace(SYSTEM)
    for name, value in (("low", LOW), ("high", HIGH)):
        control_plane.api.apply(
            {"apiVersion": WORKLOAD[0], "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        )
    return control_plane


@pytest.fixture
def team(plane: ControlPlane, kueue: Kueue, kwok: Kwok) -> Iterator[Team]:
    """12 GPUs on a node, where pods of any size find room together, and a queue that pre-empts lower priorities."""
    space = plane.api.space("preemption", {"kaiwo.ai/managed": "true"})
    with (
        kwok.nodes(1, gpus=12) as nodes,
        kueue.queue(space, {GPU: 12, "cpu": 100}, preemption={"withinClusterQueue": "LowerPriority"}),
    ):
        one = Team(plane, space, dict(nodes.selector))
        yield one
        for name in one.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


@pytest.fixture
def pods(plane: ControlPlane, kwok: Kwok) -> Iterator[Pods]:
    """12 GPUs on three nodes."""
    for name, value, policy in (("plain-low", 10, "PreemptLowerPriority"), ("plain-high", 1000, "Never")):
        plane.api.priority_class(name, value, policy)
    space = plane.api.space("plain", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(3, gpus=4) as nodes:
        one = Pods(plane, space, dict(nodes.selector))
        yield one
        for name in one.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


@pytest.fixture
def kai_pods(plane: ControlPlane, kwok: Kwok, kai: Kai) -> Iterator[KaiPods]:
    """12 GPUs on three nodes, all of them a queue's."""
    space = plane.api.space("kai-pods", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(3, gpus=4) as nodes, kai.queue(gpus=12) as queue:
        one = KaiPods(plane, space, dict(nodes.selector))
        one.queue = queue
        yield one
        for name in one.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


@pytest.fixture
def controller(plane: ControlPlane) -> Iterator[Callable[..., Controller]]:
    """``controller("--mode=enforce")`` starts a replica that leads; all are killed in the end."""
    with replicas(partial(Controller, plane)) as start:
        yield start
    plane.api.delete(*WEBHOOKS, CONFIGURATION)
