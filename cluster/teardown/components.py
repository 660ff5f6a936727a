"""What we run: webhooks and policies deleted, controllers stopped, Jobs ended."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from kopt.cluster.client.api import ApiError, Kube, NotFound
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
    OURS,
    PODS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    Object,
)
from kopt.cluster.teardown.steps import POLL_EVERY_S, Outcome, Step, do, find

KEPT_COMPONENTS = ("scheduler",)
"""Deployments that stay: pods that name a scheduler would wait for it for ever."""
GUARD_COMPONENT = "guard"
_STOPPED = f"{OURS},{COMPONENT_LABEL} notin ({','.join(KEPT_COMPONENTS)})"


async def delete_webhooks(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        result, failed = await find(kube, resource, OURS)
        if failed is not None:
            yield failed
        for document in result:
            step = Step("delete", resource, "", document["metadata"]["name"])
            yield await do(step, partial(kube.delete, resource, step.name), dry_run)


async def delete_policies(kube: Kube, component: str, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Of the API server, of one component. Bindings first: they are what acts. Fences of our own accounts are none of
    these and stay, as they restrict no other account."""
    selector = f"{OURS},{COMPONENT_LABEL}={component}"
    for resource in (
        VALIDATING_POLICY_BINDINGS,
        MUTATING_POLICY_BINDINGS,
        VALIDATING_POLICIES,
        MUTATING_POLICIES,
    ):
        result, failed = await find(kube, resource, selector)
        if failed is not None:
            yield failed
        for document in result:
            step = Step("delete", resource, "", document["metadata"]["name"])
            yield await do(step, partial(kube.delete, resource, step.name), dry_run)


async def stop_controllers(kube: Kube, namespace: str, dry_run: bool) -> AsyncGenerator[Outcome]:
    result, failed = await find(kube, DEPLOYMENTS, _STOPPED, namespace)
    if failed is not None:
        yield failed
    for document in result:
        metadata, replicas = document["metadata"], (document.get("spec") or {}).get("replicas", 1)
        if not replicas:
            continue
        step = Step("scale to zero", DEPLOYMENTS, metadata["namespace"], metadata["name"], f"from {replicas}")
        # The subresource: this right does not allow to change what the Deployment runs.
        scale = partial(kube.patch, DEPLOYMENTS, step.name, {"spec": {"replicas": 0}}, step.namespace)
        yield await do(step, partial(scale, subresource="scale"), dry_run)


async def delete_agents(kube: Kube, namespace: str, dry_run: bool) -> AsyncGenerator[Outcome]:
    result, failed = await find(kube, DAEMON_SETS, _STOPPED, namespace)
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        step = Step("delete", DAEMON_SETS, metadata["namespace"], metadata["name"])
        # In the foreground: it is there until its pods are gone.
        delete = partial(kube.delete, DAEMON_SETS, step.name, step.namespace, propagation="Foreground")
        yield await do(step, delete, dry_run)


async def end_jobs(kube: Kube, component: str, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Benchmarks that run would keep their GPUs until they end, and what holds reserved ones until these are over."""
    result, failed = await find(kube, JOBS, f"{OURS},{COMPONENT_LABEL}={component}")
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        step = Step("delete", JOBS, metadata["namespace"], metadata["name"])
        yield await do(step, partial(kube.delete, JOBS, step.name, step.namespace), dry_run)


async def wait_until_ended(kube: Kube, stopped: list[Step], wait_s: float) -> list[Outcome]:
    """Nothing when the pods have ended; else an outcome for each step whose pods have not."""
    ends_s = time.monotonic() + wait_s
    pending = list(stopped)
    while True:
        for step in tuple(pending):
            try:
                if await _has_ended(kube, step):
                    pending.remove(step)
            except NotFound:
                pending.remove(step)
            except ApiError as error:
                return [Outcome(replace(step, action="wait", detail=""), str(error))]
        if not pending or time.monotonic() >= ends_s:
            break
        await asyncio.sleep(POLL_EVERY_S)
    text = f"its pods have not ended within {wait_s:g} s; run this again"
    return [Outcome(replace(step, action="wait", detail=""), text) for step in pending]


async def _has_ended(kube: Kube, step: Step) -> bool:
    """Whether the last pod is gone. Raises NotFound when the object itself is."""
    status = (await kube.get(step.resource, step.name, step.namespace)).get("status") or {}
    if step.resource != DEPLOYMENTS or status.get("replicas"):
        return False
    pods = await kube.list(PODS, step.namespace, label_selector=OURS)
    return not any(_belongs(pod, step.name) for pod in pods.items)


def _belongs(pod: Object, deployment: str) -> bool:
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner["kind"] == "ReplicaSet" and owner["name"].rpartition("-")[0] == deployment for owner in owners)
