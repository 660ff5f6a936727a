"""Every replica is ready, one answers, and the Service leads to that one; it goes without a gap that pods notice."""

import asyncio
import time
from collections.abc import Callable

from controlplane.api import Api
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import until, wait_for

from kopt.cluster.client.api import connect
from kopt.cluster.client.resources import COMPONENT_LABEL, PART_OF, PART_OF_LABEL
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.extender.leadership import LEADER_LABEL, LEASE, Leadership, LeadershipSettings
from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_no_double_booking import assert_no_gpu_is_given_twice, bind, bound_pods, known, sized

Start = Callable[..., RunningExtender]
OURS = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: "extender"}
LEASE_S = 6.0
SELDOM = LeaseSettings(3600.0, 1800.0, 900.0)


def labelled(api: Api, space: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in api.list("v1", "Pod", space, labels=f"{LEADER_LABEL}=true")}


def behind(api: Api, space: str) -> set[str]:
    """The pods that the Service leads to."""
    slices = api.list("discovery.k8s.io/v1", "EndpointSlice", space)
    return {
        one["targetRef"]["name"] for found in slices for one in found["endpoints"] or () if one["conditions"]["ready"]
    }


def replica_pod(name: str, space: str, node: str) -> Object:
    pod = gpu_pod(name, space, 0, labels=OURS)
    pod["spec"]["nodeName"] = node
    return pod


def test_all_replicas_are_ready_and_the_service_follows_the_one_that_leads(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-service")
    with kwok.nodes(1, gpus=8) as nodes:
        for name in ("a", "b"):
            api.create(replica_pod(name, space, nodes[0]))
        api.create(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": LEASE, "namespace": space},
                "spec": {"selector": {**OURS, LEADER_LABEL: "true"}, "ports": [{"port": 80}]},
            }
        )
        first = start_extender(control_plane, space, "--pod=a")
        second = start_extender(control_plane, space, "--pod=b", wait=False)
        second.server.wait_until(lambda: second.is_ready)
        assert (first.is_ready, first.leads, second.leads) == (True, True, False)
        wait_for(lambda: behind(api, space) == {"a"})
        first.server.stop()
        second.wait_ready()
        wait_for(lambda: labelled(api, space) == {"b"})
        wait_for(lambda: behind(api, space) == {"b"})


def test_a_replica_that_is_stopped_hands_over_at_once_with_all_that_it_bound(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-handover")
    with kwok.nodes(1, gpus=8) as nodes:
        old = start_extender(control_plane, space)
        new = start_extender(control_plane, space, wait=False)
        new.server.wait_until(lambda: new.is_ready)
        pods = [api.create(sized(f"p{i}", space, 2)) for i in range(5)]
        known(old, pods, nodes)
        assert not any(bind(old, pod, nodes[0])["Error"] for pod in pods[:3])
        old.server.signal(15)
        wait_for(lambda: not old.leads)
        left_s = time.monotonic()
        wait_for(lambda: new.leads)
        assert time.monotonic() - left_s < LEASE_S, "who is told of it does not wait for the Lease's end"
        lease = api.get("coordination.k8s.io/v1", "Lease", LEASE, space)
        # It went on from what it was told, not from having waited.
        assert int(lease["metadata"]["annotations"]["kaiwo.ai/last-word"]) > 0
        assert not bind(new, pods[3], nodes[0])["Error"]
        assert "has no room left" in bind(new, pods[4], nodes[0])["Error"]
        assert_no_gpu_is_given_twice(bound_pods(api, space))


async def test_who_waits_watches_the_lease_and_goes_on_from_the_last_word(control_plane: ControlPlane) -> None:
    """By itself it would look at the Lease every quarter of an hour."""
    space = await asyncio.to_thread(control_plane.api.space, "ext-watches")
    seen = "90"
    async with connect(control_plane.kubeconfig) as kube, asyncio.TaskGroup() as group:

        def replica(name: str) -> Leadership:
            settings = LeadershipSettings(SELDOM, space, name, settle_s=60.0)
            return Leadership(kube, settings, lambda: seen)

        old, new = replica("old"), replica("new")
        assert old.leader is not None and new.leader is not None  # noqa: PT018
        running = [group.create_task(old.run())]
        await until(lambda: old.leader is not None and old.leader.leading)
        running.append(group.create_task(new.run()))
        await until(lambda: new.leader is not None and new.leader.holder == "old")
        await asyncio.sleep(0.5)
        await old.hand_over("100")
        await until(lambda: new.leader is not None and new.leader.leading)
        # It leads, and has not read what the old one bound last.
        assert not new.serves
        seen = "100"
        assert new.serves
        assert not old.serves
        for task in running:
            task.cancel()
