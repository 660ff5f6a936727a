"""``helm --wait`` ends: both replicas of the extender become ready as pods with the chart's probes, and one answers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from controlplane.api import has_condition
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import KOPT

NAMESPACE = "kopt-system"
EXTENDERS = "app.kubernetes.io/component=extender"
VALUES = {
    "webhook": {"enabled": False},
    "sizing": {"enabled": False},
    # All pods share this machine: each has an address, not all of them.
    "pods": {"listen": "$(POD_IP)"},
}
Object = dict[str, Any]


@pytest.fixture(scope="module")
def waited(
    control_plane: ControlPlane, install: Callable[..., None], uninstall: Callable[[], None]
) -> Iterator[ControlPlane]:
    """Installed onto a node that runs the pods; helm has waited until they were ready."""
    uninstall()
    with Kubelet(control_plane, entrypoints={"kopt-controllers": KOPT}):
        install(VALUES, "--wait", "--timeout=100s")
        yield control_plane
        uninstall()
        wait_for(lambda: not control_plane.api.list("v1", "Pod", NAMESPACE, labels=EXTENDERS), what="the pods end")


def ready(pod: Object) -> bool:
    return has_condition(pod, "Ready")


def leaders(plane: ControlPlane) -> list[Object]:
    return plane.api.list("v1", "Pod", NAMESPACE, labels=f"{EXTENDERS},kaiwo.ai/leader=true")


def answering(plane: ControlPlane) -> set[str]:
    """The pods that the Service leads to. (Their addresses are loopback ones, which no EndpointSlice may have.)"""
    selector = plane.api.get("v1", "Service", "kopt-extender", NAMESPACE)["spec"]["selector"]
    labels = ",".join(f"{name}={value}" for name, value in selector.items())
    return {pod["metadata"]["name"] for pod in plane.api.list("v1", "Pod", NAMESPACE, labels=labels) if ready(pod)}


def test_both_replicas_are_ready_when_helm_has_waited(waited: ControlPlane) -> None:
    pods = waited.api.list("v1", "Pod", NAMESPACE, labels=EXTENDERS)
    assert [ready(pod) for pod in pods] == [True, True]
    status = waited.api.get("apps/v1", "Deployment", "kopt-extender", NAMESPACE)["status"]
    assert status["readyReplicas"] == status["availableReplicas"] == 2


def test_the_service_leads_to_the_replica_that_leads(waited: ControlPlane) -> None:
    (leader,) = wait_for(lambda: leaders(waited), what="one replica leads")
    name = leader["metadata"]["name"]
    wait_for(lambda: answering(waited) == {name}, what="the Service leads there")


def test_the_other_takes_over_when_the_leader_is_deleted(waited: ControlPlane) -> None:
    (leader,) = wait_for(lambda: leaders(waited), what="one replica leads")
    first = leader["metadata"]["name"]
    waited.api.delete("v1", "Pod", first, NAMESPACE)
    wait_for(lambda: answering(waited) - {first}, what="another answers")
    wait_for(lambda: len([one for one in leaders(waited) if one["metadata"]["name"] != first]) == 1, what="it leads")
    pods = lambda: waited.api.list("v1", "Pod", NAMESPACE, labels=EXTENDERS)  # noqa: E731
    wait_for(lambda: len(pods()) == 2 and all(map(ready, pods())), what="there are two again")


@pytest.mark.long
def test_an_upgrade_waits_for_the_new_replicas(waited: ControlPlane, install: Callable[..., None]) -> None:
    before = {pod["metadata"]["name"] for pod in waited.api.list("v1", "Pod", NAMESPACE, labels=EXTENDERS)}
    install(VALUES | {"mode": "annotate"}, "--wait", "--timeout=100s")
    pods = [pod for pod in waited.api.list("v1", "Pod", NAMESPACE, labels=EXTENDERS) if ready(pod)]
    assert len([pod for pod in pods if pod["metadata"]["name"] not in before]) == 2
