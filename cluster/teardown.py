"""Everything of ours off: webhooks, compiled compliance policies and the policy that guards our annotations deleted,
controllers scaled to zero, agents, tests and Jobs that hold reserved GPUs deleted, held workloads released.

In this order, as a controller that still runs could hold again what was released. Safe to repeat: what is off already
is not touched, and a second run finds nothing. The entry of the extender in a scheduler's configuration is
``ignorable`` and may stay; a scheduler that the chart deployed goes on without the extender, as pods name it.

A DaemonSet has no number of replicas; it is deleted, and comes back with the next ``helm upgrade`` as the webhook
configurations do. What is held is found and restored as ``cluster.holds.hold`` says, priorities as
``cluster.workloads.kueue.order``, and the queues that `kopt queues apply` wrote as
``cluster.workloads.queue_trees.writes``.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kopt.cluster.client.api import ApiError, Conflict, Invalid, Kube, NotFound, Unreachable
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    DAEMON_SETS,
    DEPLOYMENTS,
    DEVICE_TAINT_RULES,
    HOLDS_COMPONENT,
    JOBS,
    KUEUE_WORKLOADS,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
    NODES,
    OURS,
    PODS,
    POLICIES_COMPONENT,
    TESTS_COMPONENT,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import HELD_KINDS, HELD_LABEL, release
from kopt.cluster.holds.node_taint import MARK_LABEL, given_back, without_condition
from kopt.cluster.objects.custom.staged_data import FINALIZER, STAGED_DATA
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.mig_configurations import CONFIGURATION_LABEL
from kopt.cluster.objects.volcano import resume
from kopt.cluster.workloads.kueue.order import ORDER_KEY, give_back, is_dispatched
from kopt.cluster.workloads.queue_trees.live import KINDS, ObjectKey, key_of_document, read_live, resource_of
from kopt.cluster.workloads.queue_trees.writes import is_created_by_us, leave, remove
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.core.scheduling.queue_tree import Engine

KEPT_COMPONENTS = ("scheduler",)
"""Deployments that stay: pods that name a scheduler would wait for it for ever."""
_GUARD = "guard"
_ATTEMPTS = 5
_POLL_EVERY_S = 0.25


@dataclass(frozen=True)
class Step:
    """One thing to do; ``action`` is delete, scale to zero, release, or wait."""

    action: str
    resource: Resource
    namespace: str
    name: str
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a step; ``error`` is empty when it was done (or would be, in a dry run)."""

    step: Step
    error: str = ""


async def switch_off(
    kube: Kube,
    *,
    held_kinds: Sequence[Resource] = HELD_KINDS,
    namespace: str = "",
    dry_run: bool = False,
    wait_s: float = 60.0,
) -> AsyncGenerator[Outcome]:
    """Each step as it is done; a step that fails does not keep the others from being done.

    ``held_kinds`` are released, in this order. ``namespace`` limits where our Deployments and DaemonSets are looked
    for. Raises Unreachable when there is no API server.
    """
    async for outcome in _delete_webhooks(kube, dry_run):
        yield outcome
    async for outcome in _delete_guard(kube, dry_run):
        yield outcome
    stopped: list[Step] = []
    async for outcome in _stop_controllers(kube, namespace, dry_run):
        stopped += [] if outcome.error else [outcome.step]
        yield outcome
    if stopped and not dry_run:
        for outcome in await _wait_until_ended(kube, stopped, wait_s):
            yield outcome
        # A replica that was starting may have registered once more before it ended.
        async for outcome in _delete_webhooks(kube, dry_run):
            yield outcome
    for component in (TESTS_COMPONENT, HOLDS_COMPONENT):
        async for outcome in _end_jobs(kube, component, dry_run):
            yield outcome
    for kind in held_kinds:
        # An API group may have left the version behind that this was written against.
        served = kind if await kube.serves(kind) else await kube.preferred(kind)
        if served is not None:
            async for outcome in _release_held(kube, kind, served, dry_run, wait_s):
                yield outcome
    async for outcome in _unorder(kube, dry_run):
        yield outcome
    async for outcome in _open_unhealthy_nodes(kube, dry_run):
        yield outcome
    async for outcome in _untaint_devices(kube, dry_run):
        yield outcome
    for engine in Engine:
        async for outcome in _give_back_queues(kube, engine, dry_run):
            yield outcome
    async for outcome in _unguard(kube, dry_run):
        yield outcome


async def _delete_webhooks(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        result, failed = await _find(kube, resource, OURS)
        if failed is not None:
            yield failed
        for document in result:
            step = Step("delete", resource, "", document["metadata"]["name"])
            yield await _do(step, partial(kube.delete, resource, step.name), dry_run)


async def _delete_guard(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Bindings first: they are what acts. Fences of our own accounts stay, as they restrict no other account."""
    selector = f"{OURS},{COMPONENT_LABEL} in ({_GUARD},{POLICIES_COMPONENT})"
    for resource in (
        VALIDATING_POLICY_BINDINGS,
        MUTATING_POLICY_BINDINGS,
        VALIDATING_POLICIES,
        MUTATING_POLICIES,
    ):
        result, failed = await _find(kube, resource, selector)
        if failed is not None:
            yield failed
        for document in result:
            step = Step("delete", resource, "", document["metadata"]["name"])
            yield await _do(step, partial(kube.delete, resource, step.name), dry_run)


async def _stop_controllers(kube: Kube, namespace: str, dry_run: bool) -> AsyncGenerator[Outcome]:
    others = f"{OURS},{COMPONENT_LABEL} notin ({','.join(KEPT_COMPONENTS)})"
    result, failed = await _find(kube, DEPLOYMENTS, others, namespace)
    if failed is not None:
        yield failed
    for document in result:
        metadata, replicas = document["metadata"], (document.get("spec") or {}).get("replicas", 1)
        if not replicas:
            continue
        step = Step("scale to zero", DEPLOYMENTS, metadata["namespace"], metadata["name"], f"from {replicas}")
        # The subresource: this right does not allow to change what the Deployment runs.
        scale = partial(kube.patch, DEPLOYMENTS, step.name, {"spec": {"replicas": 0}}, step.namespace)
        yield await _do(step, partial(scale, subresource="scale"), dry_run)
    result, failed = await _find(kube, DAEMON_SETS, others, namespace)
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        step = Step("delete", DAEMON_SETS, metadata["namespace"], metadata["name"])
        # In the foreground: it is there until its pods are gone.
        delete = partial(kube.delete, DAEMON_SETS, step.name, step.namespace, propagation="Foreground")
        yield await _do(step, delete, dry_run)


async def _end_jobs(kube: Kube, component: str, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Benchmarks that run would keep their GPUs until they end, and what holds reserved ones until these are over."""
    result, failed = await _find(kube, JOBS, f"{OURS},{COMPONENT_LABEL}={component}")
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        step = Step("delete", JOBS, metadata["namespace"], metadata["name"])
        yield await _do(step, partial(kube.delete, JOBS, step.name, step.namespace), dry_run)


async def _unguard(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Copies of data are no longer deleted by us: deleting such an object must not wait for that."""
    result, failed = await _find(kube, STAGED_DATA, "")
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        if FINALIZER in (metadata.get("finalizers") or ()):
            step = Step("release", STAGED_DATA, metadata["namespace"], metadata["name"], "its finalizer")
            others = [item for item in metadata["finalizers"] if item != FINALIZER]
            changes = {"metadata": {"finalizers": others, "resourceVersion": metadata["resourceVersion"]}}
            yield await _do(step, partial(kube.patch, STAGED_DATA, step.name, changes, step.namespace), dry_run)


async def _wait_until_ended(kube: Kube, stopped: list[Step], wait_s: float) -> list[Outcome]:
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
        await asyncio.sleep(_POLL_EVERY_S)
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


async def _release_held(
    kube: Kube, kind: Resource, served: Resource, dry_run: bool, wait_s: float
) -> AsyncGenerator[Outcome]:
    result, failed = await _find(kube, served, HELD_LABEL)
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        space = metadata.get("namespace", "")
        step = Step("release", served, space, metadata["name"], metadata["labels"][HELD_LABEL])
        if kind == NODES and (use := await _use_of_node(kube, document)):
            yield Outcome(step, use)
            continue
        yield await _do(step, partial(_give_back, kube, kind, served, document, wait_s), dry_run)


async def _use_of_node(kube: Kube, node: Object) -> str:
    """Why a node stays as we had it cut: mig-manager would cut it as soon as it gets its own label back."""
    name = node["metadata"]["name"]
    if CONFIGURATION_LABEL not in release(NODES, node)["metadata"]["labels"]:
        return ""
    try:
        pods = (await kube.list(PODS, field_selector=f"spec.nodeName={name}")).items
    except ApiError as error:
        return str(error)
    busy = [pod["metadata"]["name"] for pod in pods if _has_gpus(pod)]
    if not busy:
        return ""
    return f"its label stays, as {busy[0]} has GPUs of it (of {len(busy)} pods); run this again when they have ended"


def _has_gpus(pod: Object) -> bool:
    spec, annotations = mapping(pod, "spec"), mapping(pod, "metadata", "annotations")
    has_ended = text(pod, "status", "phase") in ("Succeeded", "Failed")
    return not has_ended and (bool(spec.get("resourceClaims")) or gpus_of(spec, annotations) > 0)


async def _give_back(kube: Kube, kind: Resource, served: Resource, document: Object, wait_s: float) -> None:
    """Waits for a Job that gets its own request back: that is possible once its last pod has ended."""

    async def write(document: Object) -> None:
        if kind == VOLCANO_JOBS:
            await resume(kube, document)
        metadata = document["metadata"]
        await kube.patch(served, metadata["name"], release(kind, document), metadata.get("namespace", ""))

    await _write_newest(kube, served, document, write, wait_s if kind == JOBS else 0.0)


async def _write_newest(
    kube: Kube, resource: Resource, document: Object, write: Callable[[Object], Awaitable[None]], wait_s: float = 0.0
) -> None:
    """``write``, and after a Conflict again with the object as it is then. What the server calls invalid is tried for
    ``wait_s``. Raises ApiError."""
    ends_s, attempts = time.monotonic() + wait_s, _ATTEMPTS
    while True:
        try:
            await write(document)
        except Conflict:
            attempts -= 1
            if not attempts:
                raise
        except Invalid:
            if time.monotonic() >= ends_s:
                raise
            await asyncio.sleep(_POLL_EVERY_S)
        else:
            return
        metadata = document["metadata"]
        document = await kube.get(resource, metadata["name"], metadata.get("namespace", ""))


async def _unorder(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Workloads whose rank in the order stands in their priority get their own back, admitted or not."""
    served = KUEUE_WORKLOADS if await kube.serves(KUEUE_WORKLOADS) else await kube.preferred(KUEUE_WORKLOADS)
    if served is None:
        return
    workloads, failed = await _find(kube, served, ORDER_KEY)
    if failed is not None:
        yield failed
    for document in workloads:
        step = Step("release", served, document["metadata"]["namespace"], document["metadata"]["name"], "its priority")
        if is_dispatched(document):
            yield Outcome(
                step, "MultiKueue would delete its job in the other cluster; run this again when it has ended"
            )
            continue
        write = partial(give_back, kube, step.resource)
        yield await _do(step, partial(_write_newest, kube, step.resource, document, write), dry_run)


async def _open_unhealthy_nodes(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Our taint and condition go. A node may be held for something else beside."""
    nodes, failed = await _find(kube, NODES, MARK_LABEL)
    if failed is not None:
        yield failed
    for node in nodes:
        step = Step("release", NODES, "", node["metadata"]["name"], "health")
        yield await _do(step, partial(_write_newest, kube, NODES, node, partial(_open_node, kube)), dry_run)


async def _open_node(kube: Kube, node: Object) -> None:
    name = node["metadata"]["name"]
    if (changes := without_condition(node)) is not None:
        node = await kube.patch(NODES, name, changes, subresource="status")
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
    changes = given_back(node)
    await kube.patch(NODES, name, changes | {"metadata": changes["metadata"] | version})


async def _untaint_devices(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Our DeviceTaintRules go, and claims get the devices again."""
    rules, failed = await _find(kube, DEVICE_TAINT_RULES, MARK_LABEL)
    if failed is not None:
        yield failed
    for rule in rules:
        step = Step("delete", DEVICE_TAINT_RULES, "", rule["metadata"]["name"], "health")
        yield await _do(step, partial(kube.delete, DEVICE_TAINT_RULES, step.name), dry_run)


async def _give_back_queues(kube: Kube, engine: Engine, dry_run: bool) -> AsyncGenerator[Outcome]:
    """What `kopt queues apply` wrote: fields of ours are left, and then what we created goes once nobody uses it."""
    try:
        live = await read_live(kube, engine)
        for document in (item for item in live.ours() if not is_created_by_us(item)):
            yield await _do(_queue_step("release", document), partial(leave, kube, document), dry_run)
        live = live if dry_run else await read_live(kube, engine)
    except NotFound:
        # An engine that is not installed has no queues.
        return
    except Unreachable:
        raise
    except ApiError as error:
        yield Outcome(Step("find", KINDS[engine][-1], "", ""), str(error))
        return
    deleted = set[ObjectKey]()
    for document in (item for item in live.ours() if is_created_by_us(item)):
        step = _queue_step("delete", document)
        if use := live.use_of(document, deleted):
            yield Outcome(
                step, f"it was created for a KaiwoQueue and stays, as {use}; run this again when that has ended"
            )
            continue
        outcome = await _do(step, partial(remove, kube, document), dry_run)
        deleted |= set() if outcome.error else {key_of_document(document)}
        yield outcome


def _queue_step(action: str, document: Object) -> Step:
    metadata = document["metadata"]
    resource = resource_of(document)
    return Step(action, resource, metadata.get("namespace", ""), metadata["name"], "of a KaiwoQueue")


async def _find(
    kube: Kube, resource: Resource, selector: str, namespace: str = ""
) -> tuple[list[Object], Outcome | None]:
    try:
        return (await kube.list(resource, namespace, label_selector=selector)).items, None
    except NotFound:
        # A kind that is not installed has no objects.
        return [], None
    except Unreachable:
        raise
    except ApiError as error:
        return [], Outcome(Step("find", resource, namespace, ""), str(error))


async def _do(step: Step, act: Callable[[], Awaitable[object]], dry_run: bool) -> Outcome:
    if dry_run:
        return Outcome(step)
    try:
        await act()
    except NotFound:
        pass
    except ApiError as error:
        return Outcome(step, str(error))
    return Outcome(step)
