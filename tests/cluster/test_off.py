"""``kopt off`` on a real cluster: everything of ours, nothing of others', as often as one likes."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import run_kopt, wait_for
from replicas import KOPT

from kopt.cluster.client.api import Kube, connect
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    KUEUE_WORKLOADS,
    MUTATING_WEBHOOKS,
    PART_OF,
    PART_OF_LABEL,
    PODS,
    VALIDATING_WEBHOOKS,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import HELD_LABEL

pytestmark = pytest.mark.cluster
GPU_QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
QUEUE = {"kueue.x-k8s.io/queue-name": "research"}


@pytest.fixture
async def kube(hurt_plane: ControlPlane) -> AsyncIterator[Kube]:
    """Not the plane that other tests share: they may have webhooks of ours in it."""
    async with connect(hurt_plane.kubeconfig) as client:
        yield client


def template(labels: dict[str, str], **spec: Any) -> Object:
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]} | spec}


async def deployment(kube: Kube, namespace: str, name: str, component: str) -> None:
    labels = {COMPONENT_LABEL: component} | ({PART_OF_LABEL: PART_OF} if component != "foreign" else {})
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template(labels)}
    await kube.create(DEPLOYMENTS, {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec})


async def daemon_set(kube: Kube, namespace: str, name: str, labels: dict[str, str]) -> None:
    spec = {"selector": {"matchLabels": labels}, "template": template(labels)}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    await kube.create(DAEMON_SETS, {"metadata": meta, "spec": spec})


async def job(kube: Kube, namespace: str, name: str, labels: dict[str, str]) -> None:
    spec = {"suspend": True, "template": template({}, restartPolicy="Never")}
    await kube.create(JOBS, {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec})


async def webhooks(kube: Kube, name: str, labels: dict[str, str]) -> None:
    hook = {
        "name": "hook.kaiwo.ai",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [],
    }
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await kube.create(resource, {"metadata": {"name": name, "labels": labels}, "webhooks": [hook]})


def off(hurt_plane: ControlPlane, *arguments: str) -> tuple[int, dict[str, Any]]:
    environment = os.environ | {"KUBECONFIG": str(hurt_plane.kubeconfig)}
    done = run_kopt("off", "-o", "json", "--wait", "20s", *arguments, env=environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


async def spec_of(kube: Kube, resource: Resource, name: str, namespace: str) -> Object:
    found: Object = (await kube.get(resource, name, namespace))["spec"]
    return found


@pytest.fixture
async def installed(kube: Kube, namespace: str) -> str:
    """What an installation looks like that holds two jobs and a pod, beside things of others."""
    await webhooks(kube, f"ours-{namespace}", {PART_OF_LABEL: PART_OF})
    await webhooks(kube, f"others-{namespace}", {})
    await deployment(kube, namespace, "kopt-webhook", "webhook")
    await deployment(kube, namespace, "kopt-scheduler", "scheduler")
    await deployment(kube, namespace, "others", "foreign")
    await daemon_set(kube, namespace, "kopt-agent", {COMPONENT_LABEL: "agent", PART_OF_LABEL: PART_OF})
    await daemon_set(kube, namespace, "others-agent", {COMPONENT_LABEL: "agent"})
    await job(kube, namespace, "held", {HELD_LABEL: "suspended"})
    await job(kube, namespace, "held-in-queue", {HELD_LABEL: "suspended"} | QUEUE)
    await job(kube, namespace, "suspended-by-its-owner", {})
    pod = template({HELD_LABEL: "gated"}, schedulingGates=[{"name": "kaiwo.ai/data"}, {"name": "other.io/gate"}])
    pod["metadata"] |= {"name": "gated", "namespace": namespace}
    await kube.create(PODS, pod)
    return namespace


def of_kind(answer: dict[str, Any], kind: str) -> set[str]:
    return {step["name"] for step in answer["steps"] if step["kind"] == kind}


async def test_off_takes_what_is_ours_out_and_releases_what_we_hold(
    hurt_plane: ControlPlane, kube: Kube, installed: str
) -> None:
    status, planned = await asyncio.to_thread(off, hurt_plane, "--dry-run", "--namespace", installed)
    assert status == 0
    assert planned["off"] is False
    assert (await spec_of(kube, DEPLOYMENTS, "kopt-webhook", installed))["replicas"] == 2
    assert (await spec_of(kube, JOBS, "held", installed))["suspend"] is True

    status, answer = await asyncio.to_thread(off, hurt_plane, "--namespace", installed)
    assert (status, answer["off"]) == (0, True)
    assert [{**step, "done": True} for step in planned["steps"]] == answer["steps"]
    assert of_kind(answer, "Deployment") == {"kopt-webhook"}
    assert of_kind(answer, "DaemonSet") == {"kopt-agent"}
    agents = (await kube.list(DAEMON_SETS, installed)).items
    assert {one["metadata"]["name"] for one in agents} == {"others-agent"}
    assert f"ours-{installed}" in of_kind(answer, "MutatingWebhookConfiguration")
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        names = {one["metadata"]["name"] for one in (await kube.list(resource)).items}
        assert f"ours-{installed}" not in names
        assert f"others-{installed}" in names
        await kube.delete(resource, f"others-{installed}")
    replicas = {
        name: (await spec_of(kube, DEPLOYMENTS, name, installed))["replicas"]
        for name in ("kopt-webhook", "kopt-scheduler", "others")
    }
    assert replicas == {"kopt-webhook": 0, "kopt-scheduler": 2, "others": 2}
    suspended = {
        name: (await spec_of(kube, JOBS, name, installed))["suspend"]
        for name in ("held", "held-in-queue", "suspended-by-its-owner")
    }
    assert suspended == {"held": False, "held-in-queue": True, "suspended-by-its-owner": True}
    gates = (await spec_of(kube, PODS, "gated", installed))["schedulingGates"]
    assert gates == [{"name": "other.io/gate"}]

    status, again = await asyncio.to_thread(off, hurt_plane, "--namespace", installed)
    assert (status, again["steps"], again["off"]) == (0, [], True)


def test_who_may_not_is_told_what_was_not_done(hurt_plane: ControlPlane) -> None:
    kubeconfig = hurt_plane.kubeconfig_for("default", hurt_plane.api.namespace("nobody"))
    status, answer = off(hurt_plane, "--kubeconfig", str(kubeconfig))
    assert status == 1
    assert answer["off"] is False
    assert all("cannot list resource" in step["error"] for step in answer["steps"])
    assert of_kind(answer, "Deployment")


def test_without_a_cluster_it_says_so(tmp_path: Any) -> None:
    command = [*KOPT, "off"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert "cannot be switched off" in done.stderr


@pytest.mark.slow
async def test_a_workload_that_we_made_inactive_runs_again(hurt_plane: ControlPlane, kube: Kube) -> None:
    api = hurt_plane.api
    space = api.space("held")
    kueue = await asyncio.to_thread(Kueue, hurt_plane)
    try:
        with kueue.queue(space, {"nvidia.com/gpu": 8}):
            owner = await asyncio.to_thread(api.create, queued_job("trainer", space))
            workload = await asyncio.to_thread(wait_for, lambda: _admitted(hurt_plane, owner))
            name = workload["metadata"]["name"]
            hold = {"metadata": {"labels": {HELD_LABEL: "inactive"}}, "spec": {"active": False}}
            await kube.patch(KUEUE_WORKLOADS, name, hold, space)
            await asyncio.to_thread(api.wait, "batch/v1", "Job", "trainer", lambda job: job["spec"]["suspend"], space)
            status, answer = await asyncio.to_thread(off, hurt_plane)
            assert (status, of_kind(answer, "Workload")) == (0, {name})
            await asyncio.to_thread(
                api.wait, "batch/v1", "Job", "trainer", lambda job: not job["spec"]["suspend"], space
            )
            assert HELD_LABEL not in (await kube.get(KUEUE_WORKLOADS, name, space))["metadata"].get("labels", {})
    finally:
        kueue.stop()


def queued_job(name: str, namespace: str) -> Object:
    container = {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": GPU_QUEUE},
        "spec": {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}},
    }


def _admitted(plane: ControlPlane, owner: Object) -> Object | None:
    workload = workload_of(plane, owner)
    return workload if admitted(workload) else None
