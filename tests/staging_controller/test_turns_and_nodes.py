"""Sizing's dry run comes after the data with no moment in between; copies on nodes take their jobs with them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.kubelet import Kubelet
from controlplane.processes import Server, free_port, wait_for
from replicas import KOPT

from .conftest import BATCH, DATA, GPU, SYSTEM, Controller, Object, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def sizing(team: Team) -> Iterator[Server]:
    port = free_port()
    command = [
        *KOPT,
        "controller",
        "sizing",
        "--kubeconfig",
        str(team.plane.kubeconfig),
        f"--port={port}",
        "--agent-image=kopt-agents:test",
        "--interval=0.02",
        "--duration=20s",
        "--budget=120s",
    ]
    server = team.plane.start_server("staging-sizing", command)
    metrics = f"http://127.0.0.1:{port}/metrics"
    server.wait_until(lambda: "\nkopt_sizing_leading 1.0" in httpx.get(metrics, trust_env=False).text)
    yield server
    server.kill()
    # As long as its Lease lasts the webhook would have Jobs wait for it.
    team.api.delete("coordination.k8s.io/v1", "Lease", "kopt-sizing", SYSTEM)


@pytest.mark.long
def test_sizing_takes_over_from_staging_in_the_same_write(
    team: Team, controller: Callable[..., Controller], webhook: Server, sizing: Server
) -> None:
    controller()

    def waiting() -> str:
        found = team.submit("probe", "tokens", params={"dryRun": "All"})
        return str(found["metadata"].get("annotations", {}).get("kaiwo.ai/held-undo", ""))

    wait_for(lambda: "profiling" in waiting(), what="both want to hold it")
    team.s3.put(f"{team.space}/a", b"content")
    stored = team.submit("train", "tokens", script="cat /data/tokens/a >> /data/ran; sleep 30")
    assert stored["metadata"]["labels"]["kaiwo.ai/held"] == "staging"
    assert json.loads(stored["metadata"]["annotations"]["kaiwo.ai/held-undo"])["then"] == ["profiling"]
    team.stage("tokens", f"s3://data/{team.space}")
    wait_for(lambda: team.runs("train"), 150, "it runs")
    assert team.holders(stored) == ["staging", "profiling", ""]
    for one in team.history(stored):
        labels = one["metadata"]["labels"]
        parked = labels["kueue.x-k8s.io/queue-name"] == "kaiwo-held"
        assert parked == ("kaiwo.ai/held" in labels), "there is no moment in which its queue could start it"
    profiled = [one["metadata"]["name"] for one in team.api.list(*BATCH, team.space)]
    assert any(name.startswith("kopt-profile-") for name in profiled) or "DryRunStarted" in team.events("train")
    wait_for(lambda: (team.claim / "ran").exists() and (team.claim / "ran").read_bytes().startswith(b"content"))


@pytest.fixture
def nodes(team: Team) -> Iterator[list[Kubelet]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Kubelet(
                    team.plane,
                    f"{team.space}-{letter}",
                    {GPU: "8"},
                    {"cache": team.space},
                    entrypoints={"kopt-staging": KOPT},
                )
            )
            for letter in "ab"
        ]


def cached(team: Team, name: str, copies: int = 1) -> None:
    place = {"nodeCache": {"copies": copies, "nodeSelector": {"cache": team.space}}}
    spec = {"source": f"s3://data/{team.space}", "destination": place, "credentials": {"secretName": "s3"}}
    team.api.create(
        {"apiVersion": DATA[0], "kind": DATA[1], "metadata": {"name": name, "namespace": team.space}, "spec": spec}
    )


def on_nodes(team: Team, name: str, data: str, folder: Path, pods: int, gpus: int) -> None:
    mount = [{"name": "data", "mountPath": "/data"}]
    container: Object = {
        "name": "train",
        "image": "team/train:1",
        "command": ["sh", "-c", "cat /data/a; sleep 600"],
        "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "100m"}},
        "volumeMounts": mount,
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
    }
    metadata = {
        "name": name,
        "namespace": team.space,
        "annotations": {"kaiwo.ai/staged-data": data},
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
    }
    spec = {"template": {"spec": pod}, "suspend": True, "parallelism": pods, "completions": pods}
    team.api.create({"apiVersion": BATCH[0], "kind": BATCH[1], "metadata": metadata, "spec": spec})


def steered_to(team: Team, name: str) -> set[str]:
    terms: Any = team.job(name)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (wanted,) = term["matchExpressions"]
    return set(wanted["values"])


@pytest.mark.long
def test_a_copy_on_a_node_takes_the_job_there_and_is_made_again_when_the_node_is_gone(
    team: Team, controller: Callable[..., Controller], webhook: Server, nodes: list[Kubelet], tmp_path: Path
) -> None:
    controller(f"--cache-path={tmp_path}/cache")
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"content")
    cached(team, "tokens")
    status = team.wait_phase("tokens", "Ready")
    (first,) = [one["name"] for one in status["nodes"]]
    folder = tmp_path / "cache" / team.space / "tokens"
    on_nodes(team, "train", "tokens", folder, 1, 4)
    wait_for(lambda: team.runs("train"), what="it runs")
    assert steered_to(team, "train") == {first}
    (pod,) = team.api.list("v1", "Pod", team.space, "batch.kubernetes.io/job-name=train")
    assert pod["spec"]["nodeName"] == first
    next(one for one in nodes if one.name == first).stop()
    wait_for(lambda: "CopyLost" in team.events("tokens"), what="it is said that the copy is lost")

    def again() -> bool:
        found = team.status("tokens")
        return found["phase"] == "Ready" and [one["name"] for one in found["nodes"]] not in ([first], [])

    wait_for(again, what="it is staged on another node")


def pod_on_nodes(team: Team, name: str, folder: Path, affinity: Object) -> Object:
    """One that ends where its data is not there as it begins."""
    container = {
        "name": "serve",
        "image": "team/serve:1",
        "command": ["sh", "-c", "cat /data/a && sleep 600"],
        "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
        "affinity": affinity,
    }
    metadata = {"name": name, "namespace": team.space, "annotations": {"kaiwo.ai/staged-data": "tokens"}}
    return team.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.mark.long
def test_pods_that_ask_are_kept_to_nodes_with_a_copy_beside_what_they_ask_for_themselves(
    team: Team, controller: Callable[..., Controller], webhook: Server, nodes: list[Kubelet], tmp_path: Path
) -> None:
    controller(f"--cache-path={tmp_path}/cache")
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"content")
    here = {"key": "cache", "operator": "In", "values": [team.space]}
    terms = [[here], [here, {"key": "kubernetes.io/hostname", "operator": "Exists"}]]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    picky = {"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": one} for one in terms]}}}
    for name, affinity in (("plain", {}), ("picky", picky)):
        made = pod_on_nodes(team, name, tmp_path / "cache" / team.space / "tokens", affinity)
        assert made["spec"]["schedulingGates"] == [{"name": "kaiwo.ai/staging"}]
    cached(team, "tokens")
    for name, before in (("plain", [[]]), ("picky", terms)):
        found = team.api.wait("v1", "Pod", name, lambda one: one["status"]["phase"] == "Running", team.space)
        (copy,) = [one["name"] for one in team.status("tokens")["nodes"]]
        assert found["spec"]["nodeName"] == copy
        added = {"key": "kubernetes.io/hostname", "operator": "In", "values": [copy]}
        written = found["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
        assert written == [{"matchExpressions": [*one, added]} for one in before]
        team.api.delete("v1", "Pod", name, team.space)


@pytest.mark.long
def test_a_gang_waits_for_copies_on_as_many_nodes_as_it_needs(
    team: Team, controller: Callable[..., Controller], webhook: Server, nodes: list[Kubelet], tmp_path: Path
) -> None:
    controller(f"--cache-path={tmp_path}/cache")
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"content")
    cached(team, "tokens")
    on_nodes(team, "train", "tokens", tmp_path / "cache" / team.space / "tokens", 2, 4)
    on_nodes(team, "wide", "tokens", tmp_path / "cache" / team.space / "tokens", 2, 8)
    wait_for(lambda: team.told("wide").get("state") == "ready", what="its data is on two nodes")
    assert steered_to(team, "wide") == {one.name for one in nodes}
    assert len(team.status("tokens")["nodes"]) == 2
