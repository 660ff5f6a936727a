"""What we changed in objects of others: each gets back what it had."""

from collections.abc import AsyncGenerator
from functools import partial

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import (
    DEVICE_TAINT_RULES,
    JOBS,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import HELD_LABEL, release
from kopt.cluster.holds.node_taint import MARK_LABEL, given_back, without_condition
from kopt.cluster.objects.custom.staged_data import FINALIZER, STAGED_DATA
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.mig_configurations import CONFIGURATION_LABEL
from kopt.cluster.objects.volcano import resume
from kopt.cluster.teardown.steps import Outcome, Step, do, find, write_newest
from kopt.cluster.workloads.kueue.order import ORDER_KEY, give_back, is_dispatched
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.formats.sharing_terms import CONFIGURATION_LABEL as PLUGIN_LABEL


async def release_held(
    kube: Kube, kind: Resource, served: Resource, dry_run: bool, wait_s: float
) -> AsyncGenerator[Outcome]:
    result, failed = await find(kube, served, HELD_LABEL)
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        space = metadata.get("namespace", "")
        step = Step("release", served, space, metadata["name"], metadata["labels"][HELD_LABEL])
        if kind == NODES and (use := await _use_of_node(kube, document)):
            yield Outcome(step, use)
            continue
        yield await do(step, partial(_give_back, kube, kind, served, document, wait_s), dry_run)


async def _use_of_node(kube: Kube, node: Object) -> str:
    """Why a node stays as we had it cut, or shared: mig-manager, or the device plugin, would take the GPUs from its
    pods as soon as it gets its own label back."""
    name = node["metadata"]["name"]
    if not {CONFIGURATION_LABEL, PLUGIN_LABEL} & release(NODES, node)["metadata"]["labels"].keys():
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

    await write_newest(kube, served, document, write, wait_s if kind == JOBS else 0.0)


async def unorder(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Workloads whose rank in the order stands in their priority get their own back, admitted or not."""
    served = KUEUE_WORKLOADS if await kube.serves(KUEUE_WORKLOADS) else await kube.preferred(KUEUE_WORKLOADS)
    if served is None:
        return
    workloads, failed = await find(kube, served, ORDER_KEY)
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
        yield await do(step, partial(write_newest, kube, step.resource, document, write), dry_run)


async def open_unhealthy_nodes(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Our taint and condition go. A node may be held for something else beside."""
    nodes, failed = await find(kube, NODES, MARK_LABEL)
    if failed is not None:
        yield failed
    for node in nodes:
        step = Step("release", NODES, "", node["metadata"]["name"], "health")
        yield await do(step, partial(write_newest, kube, NODES, node, partial(_open_node, kube)), dry_run)


async def _open_node(kube: Kube, node: Object) -> None:
    name = node["metadata"]["name"]
    if (changes := without_condition(node)) is not None:
        node = await kube.patch(NODES, name, changes, subresource="status")
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
    changes = given_back(node)
    await kube.patch(NODES, name, changes | {"metadata": changes["metadata"] | version})


async def untaint_devices(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Our DeviceTaintRules go, and claims get the devices again."""
    rules, failed = await find(kube, DEVICE_TAINT_RULES, MARK_LABEL)
    if failed is not None:
        yield failed
    for rule in rules:
        step = Step("delete", DEVICE_TAINT_RULES, "", rule["metadata"]["name"], "health")
        yield await do(step, partial(kube.delete, DEVICE_TAINT_RULES, step.name), dry_run)


async def unguard(kube: Kube, dry_run: bool) -> AsyncGenerator[Outcome]:
    """Copies of data are no longer deleted by us: deleting such an object must not wait for that."""
    result, failed = await find(kube, STAGED_DATA, "")
    if failed is not None:
        yield failed
    for document in result:
        metadata = document["metadata"]
        if FINALIZER in (metadata.get("finalizers") or ()):
            step = Step("release", STAGED_DATA, metadata["namespace"], metadata["name"], "its finalizer")
            others = [item for item in metadata["finalizers"] if item != FINALIZER]
            changes = {"metadata": {"finalizers": others, "resourceVersion": metadata["resourceVersion"]}}
            yield await do(step, partial(kube.patch, STAGED_DATA, step.name, changes, step.namespace), dry_run)
