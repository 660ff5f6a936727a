"""Slices, partitions and shares; observing instead of acting; waiting pods that are told when there is room."""

from collections.abc import Callable

import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from tests.extender.conftest import RunningExtender, gpu_pod
from tests.extender.test_no_double_booking import assert_no_gpu_is_given_twice, bound_pods
from tests.extender.test_scheduling_by_the_policy import INDICES, bound, indices

Start = Callable[..., RunningExtender]


@pytest.mark.parametrize(
    ("resource", "count"), [("nvidia.com/mig-1g.10gb", 7), ("amd.com/cpx_nps4", 64), ("amd.com/gpu", 8)]
)
def test_every_gpu_resource_is_a_pool_of_its_own(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start, resource: str, count: int
) -> None:
    api = control_plane.api
    space = api.space("ext-pool")
    with kwok.nodes(2, gpus=1, more={resource: str(count)}) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler(space)
        api.create(gpu_pod("whole", space, scheduler=space, selector=nodes.selector))
        pods = []
        for number in range(3):
            api.create(gpu_pod(f"p{number}", space, 2, scheduler=space, resource=resource, selector=nodes.selector))
            pods.append(bound(api, f"p{number}", space))
        assert len({pod["spec"]["nodeName"] for pod in pods}) == 1
        assert sorted(gpu for pod in pods for gpu in indices(pod)) == list(range(6))
        assert indices(bound(api, "whole", space)) == [0]
        assert extender.explain(space, "p0")["resource"] == resource


def test_shares_of_a_gpu_are_packed_and_whole_gpus_kept_for_others(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    """They request no resource, so the scheduler alone would put them anywhere."""
    api = control_plane.api
    space = api.space("ext-shares")
    with kwok.nodes(2, gpus=2) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler(space)
        for number in range(6):
            share = {"kaiwo.ai/gpu-fraction": "0.3"}
            api.create(gpu_pod(f"p{number}", space, 0, scheduler=space, annotations=share, selector=nodes.selector))
            bound(api, f"p{number}", space)
        assert_no_gpu_is_given_twice(bound_pods(api, space))
        used = {(pod["spec"]["nodeName"], *indices(pod)) for pod in bound_pods(api, space)}
        assert len(used) == 2
        for number in range(2):
            api.create(gpu_pod(f"whole-{number}", space, 1, scheduler=space, selector=nodes.selector))
            pod = bound(api, f"whole-{number}", space)
            assert (pod["spec"]["nodeName"], *indices(pod)) not in used
        api.create(gpu_pod("whole-2", space, 1, scheduler=space, selector=nodes.selector))
        # By what it requests there is room; by what the shares hold there is none.
        condition = wait_for(
            lambda: [
                one["message"]
                for one in api.get("v1", "Pod", "whole-2", space).get("status", {}).get("conditions", ())
                if one.get("reason") == "Unschedulable"
            ]
        )
        assert "GPU placement: too little GPU left" in condition[0]


def test_in_observe_mode_it_says_what_it_would_do_and_does_nothing(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-observe")
    with kwok.nodes(2, gpus=8) as nodes:
        extender = start_extender(control_plane, space, mode="observe")
        extender.start_scheduler(space)
        acted = gpu_pod(
            "acted", space, scheduler=space, selector=nodes.selector, annotations={"kaiwo.ai/mode": "enforce"}
        )
        for pod in (gpu_pod("seen", space, scheduler=space, selector=nodes.selector), acted):
            api.create(pod)
        assert INDICES not in bound(api, "seen", space)["metadata"].get("annotations", {})
        assert extender.explain(space, "seen")["mode"] == "observe"
        assert extender.explain(space, "seen")["reasons"][0]["code"] == "BEST_NODE"
        # The nearest annotation wins.
        assert INDICES in bound(api, "acted", space)["metadata"]["annotations"]


def test_a_rollout_of_none_places_no_pod(control_plane: ControlPlane, kwok: Kwok, start_extender: Start) -> None:
    api = control_plane.api
    space = api.space("ext-rollout")
    with kwok.nodes(1, gpus=8) as nodes:
        extender = start_extender(control_plane, space, "--rollout=0")
        extender.start_scheduler(space)
        api.create(gpu_pod("p", space, scheduler=space, selector=nodes.selector))
        assert INDICES not in bound(api, "p", space)["metadata"].get("annotations", {})


@pytest.mark.long
def test_a_refused_pod_goes_as_soon_as_a_reservation_expires(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    """Nothing in the cluster changes then; a scheduler left alone looks again after five minutes."""
    api = control_plane.api
    space = api.space("ext-nudge")
    with kwok.nodes(1, gpus=8) as nodes:
        extender = start_extender(control_plane, space, "--reserve=4")
        extender.start_scheduler(space)
        ghost = gpu_pod("ghost", space, 8)
        ghost["metadata"]["uid"] = "ghost"
        offered = extender.http.post("/filter", json={"Pod": ghost, "Nodes": None, "NodeNames": [nodes[0]]}).json()
        assert offered["NodeNames"] == [nodes[0]]
        api.create(gpu_pod("real", space, 8, scheduler=space, selector=nodes.selector))
        why = wait_for(lambda: extender.http.get("/explain", params={"pod": f"{space}/real"}).json().get("outcome"))
        assert why == "refused"
        api.wait("v1", "Pod", "real", lambda pod: bool(pod["spec"].get("nodeName")), space)
        assert extender.metric("kopt_extender_nudged_total") >= 1


@pytest.mark.long
def test_events_on_the_pod_say_why(control_plane: ControlPlane, kwok: Kwok, start_extender: Start) -> None:
    api = control_plane.api
    space = api.space("ext-events")
    with kwok.nodes(1, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler(space)
        for name in ("p", "q"):
            api.create(gpu_pod(name, space, 5, scheduler=space, selector=nodes.selector))
        bound(api, "p", space)

        def told(reason: str) -> list[str]:
            events = api.list("events.k8s.io/v1", "Event", space)
            return [
                event["note"] for event in events if event["reason"] == reason and event["regarding"]["name"] == "p"
            ]

        (note,) = wait_for(lambda: told("NodeChosen"))
        assert f"Node {nodes[0]}, GPU 0, 1, 2, 3, 4: the only node with room" in note
