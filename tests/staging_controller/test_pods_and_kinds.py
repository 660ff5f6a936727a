"""Kinds other than Jobs: pods wait for their data behind a gate, what can be suspended waits outside its queue."""

import copy
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from cluster.holdable import SPECS
from controlplane.processes import Server, wait_for
from replicas import KOPT

from kopt.cluster.holds.hold import HOLDABLE

from .conftest import GPU, Controller, Object, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
POD, DEPLOYMENT, STATEFUL_SET = ("v1", "Pod"), ("apps/v1", "Deployment"), ("apps/v1", "StatefulSet")
GATE = {"name": "kaiwo.ai/staging"}
QUEUE = "kueue.x-k8s.io/queue-name"


def template(team: Team, data: str, **labels: str) -> Object:
    """A pod that asks for data itself, and reads it."""
    container = {
        "name": "serve",
        "image": "team/serve:1",
        "command": ["sh", "-c", "cat /data/tokens/a && sleep 600"],
        "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "nodeSelector": team.node.selector,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    return {
        "metadata": {"labels": {"app": "serve", **labels}, "annotations": {"kaiwo.ai/staged-data": data}},
        "spec": spec,
    }


def pod(team: Team, name: str, data: str, **labels: str) -> Object:
    one = template(team, data, **labels)
    one["metadata"] |= {"name": name, "namespace": team.space}
    return team.api.create({"apiVersion": "v1", "kind": "Pod"} | one)


def pods(team: Team) -> list[Object]:
    return team.api.list(*POD, team.space, "app=serve")


def held(team: Team) -> list[bool]:
    """Of each pod whether it is held; the mark and the gate come and go together."""
    found = pods(team)
    marks = [one["metadata"]["labels"].get("kaiwo.ai/held") == "staging" for one in found]
    assert marks == [GATE in one["spec"].get("schedulingGates", []) for one in found]
    return marks


def run(team: Team) -> int:
    ready = [one["status"].get("containerStatuses", [{}])[0].get("ready") for one in pods(team)]
    return sum(map(bool, ready))


def told(one: Object) -> str:
    return str(one["metadata"]["annotations"].get("kaiwo.ai/staging", ""))


def test_a_pod_of_its_own_waits_behind_a_gate(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    pod(team, "serve", "tokens")
    assert held(team) == [True]
    wait_for(lambda: "there is no StagedData tokens" in told(pods(team)[0]), what="it is told why it waits")
    team.s3.put(f"{team.space}/a", b"content")
    team.stage("tokens", f"s3://data/{team.space}")
    wait_for(lambda: run(team) == 1, what="it runs, and reads its data")
    assert held(team) == [False]
    assert '"state":"ready"' in told(pods(team)[0])
    assert "held-undo" not in str(pods(team)[0]["metadata"]["annotations"])
    assert [(one["kind"], one["name"]) for one in team.status("tokens")["users"]] == [("Pod", "serve")]
    team.api.delete(*POD, "serve", team.space)
    wait_for(lambda: not team.status("tokens").get("users"), what="it is no user any more")


@pytest.mark.parametrize("kind", [DEPLOYMENT, STATEFUL_SET])
@pytest.mark.long
def test_pods_of_a_service_wait_one_by_one(
    team: Team, controller: Callable[..., Controller], webhook: Server, kind: tuple[str, str]
) -> None:
    controller()
    team.wait_reviewed()
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "serve"}}, "template": template(team, "tokens")}
    spec |= {"podManagementPolicy": "Parallel"} if kind == STATEFUL_SET else {}
    metadata = {"name": "serve", "namespace": team.space, "annotations": {"kaiwo.ai/opt-out": "true"}}
    made = team.api.create({"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, "spec": spec})
    try:
        wait_for(lambda: held(team) == [True, True], what="both are held")
        team.s3.put(f"{team.space}/a", b"content")
        team.stage("tokens", f"s3://data/{team.space}")
        wait_for(lambda: run(team) == 2, what="both run")
        team.api.patch(*kind, "serve", {"spec": {"replicas": 3}}, team.space)
        wait_for(lambda: run(team) == 3, what="a third finds its data there")
        assert held(team) == [False, False, False]
        assert team.status("tokens")["attempts"] == 1
    finally:
        team.api.delete(*kind, made["metadata"]["name"], team.space, propagationPolicy="Background")


@pytest.mark.long
def test_a_pod_in_a_queue_of_kueues_is_left_to_it_and_told(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    stored = pod(team, "serve", "tokens", **{QUEUE: "gpus"})
    assert GATE not in stored["spec"]["schedulingGates"]
    wait_for(lambda: "NotHeld" in team.events("serve"), what="it is told that it is not held")
    assert "Use a Job" in team.events("serve")["NotHeld"]
    assert held(team) == [False]
    team.s3.put(f"{team.space}/a", b"content")
    team.stage("tokens", f"s3://data/{team.space}")
    wait_for(lambda: run(team) == 1, what="Kueue lets it run, and it has its data in the end")
    team.api.delete(*POD, "serve", team.space)


@pytest.mark.long
def test_kopt_off_takes_the_gate_from_pods(team: Team, controller: Callable[..., Controller], webhook: Server) -> None:
    one = controller()
    team.wait_reviewed()
    pod(team, "serve", "others")
    assert held(team) == [True]
    one.server.kill()
    done = subprocess.run(
        [*KOPT, "off", "--kubeconfig", str(team.plane.kubeconfig)],
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert held(team) == [False]
    wait_for(lambda: pods(team)[0]["spec"].get("nodeName"), what="it has a node")
    team.api.delete(*POD, "serve", team.space)


APART = {"Job", "MPIJob", "TrainJob"}
"""Jobs have their own tests; MPIJobs are of another version here, and Kueue takes no TrainJob without its runtime."""
KINDS = {one.kind: one for one, how in HOLDABLE.items() if how.queued and one.kind not in APART}


def with_gpus(spec: Any) -> Any:
    """Every container asks for a GPU."""
    if isinstance(spec, list):
        return [with_gpus(one) for one in spec]
    if not isinstance(spec, dict):
        return spec
    found = {key: with_gpus(one) for key, one in spec.items()}
    if "image" in found:
        found["resources"] = {"limits": {GPU: "1"}, "requests": {"cpu": "10m"}}
    return found


class Asking:
    """An object of a kind that asks for data."""

    def __init__(self, team: Team, kind: str) -> None:
        resource, spec = KINDS[kind], with_gpus(copy.deepcopy(SPECS[kind]))
        # Kueue takes no other.
        spec |= {"shutdownAfterJobFinishes": True} if kind == "RayJob" else {}
        self.team, self.kind, self.path = team, kind, HOLDABLE[resource].path
        self.version = f"{resource.group}/{resource.version}"
        metadata = {
            "name": kind.lower(),
            "namespace": team.space,
            "labels": {QUEUE: "gpus"},
            "annotations": {"kaiwo.ai/staged-data": "tokens"},
        }
        team.api.create({"apiVersion": self.version, "kind": kind, "metadata": metadata, "spec": spec})

    def stored(self) -> Object:
        return self.team.api.get(self.version, self.kind, self.kind.lower(), self.team.space)

    def state(self) -> tuple[str, str]:
        """Who holds it, and its queue."""
        labels = self.stored()["metadata"].get("labels", {})
        return labels.get("kaiwo.ai/held", ""), labels.get(QUEUE, "")

    def suspended(self) -> bool:
        found = self.stored()
        for step in self.path:
            found = found[step]
        return bool(found.get("suspend"))


@pytest.mark.long
def test_whatever_can_be_suspended_waits_outside_its_queue(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    team.plane.install_crds("jobset", "kuberay", "training-operator", "trainer")
    controller()
    team.wait_reviewed()
    asking = [Asking(team, kind) for kind in KINDS]
    for one in asking:
        assert one.state() == ("staging", "kaiwo-held"), one.kind
        wait_for(lambda one=one: "there is no StagedData" in told(one.stored()), what=f"{one.kind} is told")
        assert one.suspended(), one.kind
    team.s3.put(f"{team.space}/a", b"content")
    team.stage("tokens", f"s3://data/{team.space}")
    for one in asking:
        wait_for(lambda one=one: one.state() == ("", "gpus"), what=f"{one.kind} is let go")
        assert '"state":"ready"' in told(one.stored())
        wait_for(lambda one=one: not one.suspended(), what=f"its queue lets {one.kind} run")
    assert {one["kind"] for one in team.status("tokens")["users"]} == set(KINDS)
    assert team.status("tokens")["attempts"] == 1
