"""The extender killed, stopped, deposed, or never there: pods are bound all the same, and nobody writes out of turn."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.faults import proxied
from controlplane.api import Api, Refused
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.controllers.extender.binding.request import fence
from kopt.controllers.extender.configuration import scheduler_configuration
from kopt.controllers.extender.leadership import LEASE
from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_no_double_booking import (
    INDICES,
    assert_no_gpu_is_given_twice,
    bind,
    bound_pods,
    known,
    sized,
)

Start = Callable[..., RunningExtender]


def test_killed_in_a_burst_and_started_again_it_loses_no_pod_and_gives_no_gpu_twice(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-killed")
    with kwok.nodes(20, gpus=8) as nodes:
        extender = start_extender(control_plane, space)
        extender.start_scheduler("ext-killed")

        def create(first: int, last: int) -> None:
            for i in range(first, last):
                api.create(gpu_pod(f"p{i}", space, scheduler="ext-killed", selector=nodes.selector))

        create(0, 20)
        burst = threading.Thread(target=create, args=(20, 140))
        burst.start()
        wait_for(lambda: len(bound_pods(api, space)) >= 40)
        extender.server.kill()
        burst.join()
        wait_for(lambda: len(bound_pods(api, space)) == 140)
        by_itself = [pod for pod in bound_pods(api, space) if INDICES not in pod["metadata"].get("annotations", {})]
        assert by_itself, "the scheduler has bound nothing without the extender: the test proves nothing"
        extender.server.start()
        extender.wait_ready()
        create(140, 160)
        wait_for(lambda: len(bound_pods(api, space)) == 160)
        pods = bound_pods(api, space)
        assert_no_gpu_is_given_twice(pods)
        later = [pod for pod in pods if int(pod["metadata"]["name"][1:]) >= 140]
        assert all(INDICES in pod["metadata"].get("annotations", {}) for pod in later)


def test_with_nothing_at_its_address_pods_are_bound_as_the_scheduler_would(
    control_plane: ControlPlane, kwok: Kwok
) -> None:
    api = control_plane.api
    space = api.space("ext-dead")
    scheduler = control_plane.start_scheduler(scheduler_configuration("http://127.0.0.1:1", "ext-dead"))
    try:
        with kwok.nodes(2, gpus=8) as nodes:
            for i in range(4):
                api.create(gpu_pod(f"p{i}", space, scheduler="ext-dead", selector=nodes.selector))
            wait_for(lambda: len(bound_pods(api, space)) == 4)
    finally:
        scheduler.kill()


@pytest.mark.long
def test_a_standby_answers_nothing_and_takes_over_with_the_right_books(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-standby")
    with kwok.nodes(1, gpus=8) as nodes:
        first = start_extender(control_plane, space)
        second = start_extender(control_plane, space, wait=False)
        wait_for(lambda: second.http.get("/healthz").is_success)
        pods = [api.create(sized(f"p{i}", space, 2)) for i in range(5)]
        known(first, pods, nodes)
        assert not second.leads
        assert second.http.post("/bind", json={}).status_code == 503
        assert not any(bind(first, pod, nodes[0])["Error"] for pod in pods[:3])
        first.server.kill()
        second.wait_ready()
        assert not bind(second, pods[3], nodes[0])["Error"]
        assert "has no room left" in bind(second, pods[4], nodes[0])["Error"]
        assert_no_gpu_is_given_twice(bound_pods(api, space))


def test_a_leader_that_was_stopped_past_its_lease_does_not_bind_when_it_wakes(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api = control_plane.api
    space = api.space("ext-stopped")
    with kwok.nodes(1, gpus=8) as nodes:
        old = start_extender(control_plane, space)
        new = start_extender(control_plane, space, wait=False)
        pods = [api.create(sized(f"p{i}", space, 8)) for i in range(2)]
        known(old, pods, nodes)
        old.server.signal(signal.SIGSTOP)
        # The call waits in its socket: it is the first thing that the process sees when it wakes.
        answers: list[Any] = []
        meta = pods[0]["metadata"]
        call = {"PodName": "p0", "PodNamespace": space, "PodUID": meta["uid"], "Node": nodes[0]}
        asking = threading.Thread(target=lambda: answers.append(old.http.post("/bind", json=call, timeout=60)))
        asking.start()
        new.wait_ready()
        assert not bind(new, pods[1], nodes[0])["Error"]
        old.server.signal(signal.SIGCONT)
        asking.join()
        assert answers[0].status_code == 503 or "does not hold the Lease" in answers[0].json()["Error"]
        assert not api.get("v1", "Pod", "p0", space)["spec"].get("nodeName")
        assert not old.leads


async def test_a_binding_under_way_when_its_leader_was_deposed_is_refused_by_the_api_server(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start, tmp_path: Path
) -> None:
    """No check in the process can call back what is already on the wire; the admission policy refuses it."""
    api = control_plane.api
    space = api.space("ext-late")
    # An earlier try took such a policy away, see below.
    await asyncio.to_thread(control_plane.restart_api_server)
    policies = fence(space, LEASE, name=f"{space}-fence")
    try:
        with kwok.nodes(1, gpus=8) as nodes:
            async with proxied(control_plane.kubeconfig, tmp_path) as (proxy, through):
                old = await asyncio.to_thread(start_extender, control_plane, space, kubeconfig=through)
                new = await asyncio.to_thread(start_extender, control_plane, space, wait=False)
                pods = [api.create(sized(f"p{i}", space, 8)) for i in range(2)]
                await asyncio.to_thread(known, old, pods, nodes)
                api.apply(*policies)
                await asyncio.to_thread(wait_for, lambda: refuses_old_terms(api, space, pods[0], nodes[0]))
                proxy.stall()
                late = asyncio.create_task(asyncio.to_thread(bind, old, pods[0], nodes[0]))
                await asyncio.to_thread(new.wait_ready)
                assert not (await asyncio.to_thread(bind, new, pods[1], nodes[0]))["Error"]
                proxy.flow()
                assert (await late)["Error"]
                refused = await asyncio.to_thread(wait_for, lambda: refused_bindings(control_plane, space, "p0"))
                assert "another replica of the scheduler extender leads since" in refused[-1]
                assert not api.get("v1", "Pod", "p0", space)["spec"].get("nodeName")
                assert_no_gpu_is_given_twice(bound_pods(api, space))
    finally:
        for policy in policies:
            api.delete(policy["apiVersion"], policy["kind"], policy["metadata"]["name"])


@pytest.mark.long
def test_a_policy_that_was_taken_away_and_came_back_does_not_refuse_who_leads(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    """An API server may then know the Lease for ever as it was before: kubernetes/kubernetes#130887."""
    api = control_plane.api
    space = api.space("ext-again")
    policies = fence(space, LEASE, name=f"{space}-fence")

    def take_away() -> None:
        for policy in policies:
            api.delete(policy["apiVersion"], policy["kind"], policy["metadata"]["name"])

    # The API server may be in that state already, since other tests took such a policy away; only a new one is not.
    control_plane.restart_api_server()
    try:
        with kwok.nodes(1, gpus=8) as nodes:
            before = start_extender(control_plane, space)
            pods = [api.create(sized(f"p{i}", space, 2)) for i in range(2)]
            known(before, pods, nodes)
            api.apply(*policies)
            wait_for(lambda: refuses_old_terms(api, space, pods[0], nodes[0]))
            assert not bind(before, pods[0], nodes[0])["Error"]
            take_away()
            wait_for(lambda: not refuses_old_terms(api, space, pods[0], nodes[0]))
            # The API server looks once a second for parameters that no policy asks for.
            time.sleep(2)
            before.server.stop()
            api.apply(*policies)
            after = start_extender(control_plane, space)
            known(after, pods[1:], nodes)
            time.sleep(2)
            assert not bind(after, pods[1], nodes[0])["Error"]
    finally:
        take_away()
        control_plane.restart_api_server()


def refuses_old_terms(api: Api, space: str, pod: Object, node: str) -> bool:
    """The policy is in force: a Binding of a term long past is refused."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        "metadata": {
            "name": pod["metadata"]["name"],
            "namespace": space,
            "uid": "of-no-pod",
            "annotations": {"kaiwo.ai/term": f"{space}/{LEASE}/0"},
        },
    }
    try:
        api.request("POST", f"/api/v1/namespaces/{space}/pods/{pod['metadata']['name']}/binding", json=binding)
    except Refused as refused:
        return "another replica" in refused.message
    return False


def refused_bindings(plane: ControlPlane, space: str, pod: str) -> list[str]:
    """Why Bindings of the pod by the extender were forbidden, from the API server's audit log."""
    found = []
    for entry in plane.audit_entries("kopt-extender"):
        reference = entry.get("objectRef") or {}
        ours = (reference.get("namespace"), reference.get("name"), reference.get("subresource")) == (
            space,
            pod,
            "binding",
        )
        if ours and entry["userAgent"] == "kopt-extender" and entry["responseStatus"]["code"] == 403:
            found.append(entry["responseStatus"]["message"])
    return found


def test_the_documents_that_kopt_prints_are_those_of_the_tests(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from kopt.cli.main import app

    printed = CliRunner().invoke(app, ["extender", "--print", "fence", "--namespace", "here"])
    assert tuple(yaml.safe_load_all(printed.stdout)) == fence("here", LEASE)
    printed = CliRunner().invoke(app, ["extender", "--print", "scheduler", "--port", "7"])
    assert yaml.safe_load(printed.stdout) == scheduler_configuration("http://127.0.0.1:7")
