"""Reads everything about one job: once, with the rights of the caller.

Kinds that are not installed are left out; kinds that may not be read are named in the answer.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    EVENTS,
    KAI_POD_GROUPS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_WORKLOADS,
    PODS,
    VOLCANO_POD_GROUPS,
    Object,
    Resource,
)
from kopt.cluster.holds.hold import queue_of
from kopt.cluster.objects.fields import items, text
from kopt.controllers.overview.documents import staged_names
from kopt.controllers.overview.job import JobSnapshot, Thing
from kopt.controllers.overview.reading import Lines, Reader, Reading, Wanted

_GROUP_ANNOTATIONS = ("pod-group-name", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
_MOST_PODS_EVENTS = 3


async def gather(kube: Kube, wanted: Wanted, now_s: float | None = None) -> JobSnapshot:
    """Everything about one job. Raises Unknown for a name without an object, and ApiError."""
    reader = Reader(kube)
    return await collected(reader, await reader.find(wanted), now_s)


async def collected(reader: Reading, target: Thing, now_s: float | None = None) -> JobSnapshot:
    """Everything about the job that an object belongs to."""
    namespace = target.key[0]
    above = await reader.root(target)
    root = above[-1] if above else target
    (between, pods), result, evictions = await asyncio.gather(
        reader.below(root), reader.lines(namespace), reader.evictions(namespace)
    )
    between += [thing for thing in above[:-1] if thing.uid not in {other.uid for other in between}]
    things = [root, target, *between, *(Thing(PODS, pod) for pod in pods)]
    workloads = _own_workloads(result, things)
    if not pods and target.resource == KUEUE_WORKLOADS:
        pods = await _pods_of_group(reader, target)
    groups = await _groups(reader, things, namespace)
    queue = next((name for item in (*workloads, *(thing.document for thing in things)) if (name := _queue(item))), "")
    local = next(
        (
            local_queue
            for local_queue in result.local_queues
            if (text(local_queue, "metadata", "namespace"), text(local_queue, "metadata", "name")) == (namespace, queue)
        ),
        None,
    )
    name = text(local, "spec", "clusterQueue")
    names = list(dict.fromkeys(name for thing in things for name in staged_names(thing.document)))
    cluster_queue, staged, events = await asyncio.gather(
        _get(reader, KUEUE_CLUSTER_QUEUES, name),
        reader.staged(names, namespace),
        _events(
            reader,
            [
                *things[: 2 + len(between) + _MOST_PODS_EVENTS],
                *(Thing(KUEUE_WORKLOADS, workload) for workload in workloads),
            ],
        ),
    )
    read_at_s = time.time() if now_s is None else now_s
    return JobSnapshot(
        read_at_s,
        target,
        root,
        tuple(between),
        tuple(pods),
        tuple(workloads),
        tuple(groups),
        queue,
        local,
        cluster_queue,
        tuple(result.queued(pods, now_s=read_at_s)),
        evictions,
        tuple(names),
        staged,
        result.pools,
        tuple(events),
        result.has_kueue,
        tuple(reader.unread),
    )


def _own_workloads(lines: Lines, things: Sequence[Thing]) -> list[Object]:
    named = {
        (thing.key[0], text(thing.annotations, _WORKLOAD_ANNOTATION)) for thing in things if thing.resource == PODS
    }
    return lines.workloads_of({thing.uid for thing in things}, named)


async def _pods_of_group(reader: Reading, workload: Thing) -> list[Object]:
    """Of a Workload that several pods share."""
    uids = {text(ref, "uid") for _, ref in items(workload.document, "metadata", "ownerReferences")}
    pods = await reader.listed(PODS, workload.key[0])
    return [pod for pod in pods if text(pod, "metadata", "uid") in uids]


async def _groups(reader: Reading, things: Sequence[Thing], namespace: str) -> list[Thing]:
    named = {text(thing.annotations, annotation) for thing in things for annotation in _GROUP_ANNOTATIONS} - {""}
    uids = {thing.uid for thing in things}
    groups = []
    for kind in (KAI_POD_GROUPS, VOLCANO_POD_GROUPS):
        groups += [
            Thing(kind, item)
            for item in await reader.listed(kind, namespace)
            if text(item, "metadata", "name") in named
            or any(text(ref, "uid") in uids for _, ref in items(item, "metadata", "ownerReferences"))
        ]
    return groups


async def _get(reader: Reading, resource: Resource, name: str) -> Object | None:
    return await reader.read(resource, name) if name else None


async def _events(reader: Reading, things: Iterable[Thing]) -> list[Object]:
    """Events of our components about it, the newest first."""
    namespaces = {thing.uid: thing.key[0] for thing in things if thing.uid}
    lists = await asyncio.gather(
        *(reader.listed(EVENTS, namespace, fields=f"regarding.uid={uid}") for uid, namespace in namespaces.items())
    )
    ours = [item for result in lists for item in result if text(item, "reportingController").startswith("kaiwo.ai/")]
    return sorted(ours, key=event_at, reverse=True)


def event_at(event: Object) -> str:
    """When it last occurred."""
    return text(event, "series", "lastObservedTime") or text(event, "eventTime")


def _queue(document: Object) -> str:
    return queue_of(document) or text(document, "spec", "queueName")
