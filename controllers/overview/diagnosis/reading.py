"""Reads the objects of a cluster that decide whether a workload can start, with the rights of the caller."""

import asyncio
from dataclasses import replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    EVENTS,
    KAI_POD_GROUPS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    UNFINISHED_PODS,
    VOLCANO_POD_GROUPS,
    VOLCANO_QUEUES,
    Object,
    Resource,
)
from kopt.cluster.objects.fields import items
from kopt.cluster.workloads.requests.external import CLAIMS, RESOURCE_SLICES
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.documents import ClusterDocuments
from kopt.controllers.overview.diagnosis.questions import Predictions
from kopt.controllers.overview.diagnosis.run_time_lookup import RunTimeLookup
from kopt.controllers.overview.job import JobSnapshot
from kopt.controllers.overview.reading import Reader, Reading
from kopt.controllers.overview.why import Now, Why
from kopt.core.scheduling.diagnosis import Diagnosis

_UNSCHEDULED = ("reason=FailedScheduling", "reason=Unschedulable")
SETTLED = (Now.FINISHED, Now.FAILED, Now.DELETED, Now.RUNNING, Now.STARTING)


async def diagnosed(
    kube: Kube, job: JobSnapshot, answer: Why, predictions: Predictions | None = None
) -> Diagnosis | None:
    """The diagnosis of a job that waits, read now; None for one that does not. Without ``predictions`` no start is
    predicted. Raises ApiError."""
    if answer.now in SETTLED:
        return None
    claims = any(True for pod in job.pods for _ in items(pod, "spec", "resourceClaims"))
    books, lookup = (
        ClusterBooks(await read_cluster(Reader(kube), job.target.key[0], claims=claims)),
        RunTimeLookup(predictions),
    )
    result = await lookup.diagnosed(job, books, answer.findings)
    starts = await lookup.calibrated([result], job.now_s)
    return replace(result, start=starts.get(result.uid, result.start)) if result is not None else None


async def read_cluster(reader: Reading, namespace: str, *, claims: bool) -> ClusterDocuments:
    """Of all namespaces: half of what runs would be worse than none of it, so only LocalQueues are those of
    ``namespace`` where no others may be read. Events are those of ``namespace``; claims and slices are read only
    where a pod names claims. What is not installed is empty, what may not be read is named in ``unread``."""

    async def listed(resource: Resource, narrow: str = "", fields: str = "") -> list[Object]:
        return await reader.listed(resource, narrow=narrow, fields=fields)

    lists = await asyncio.gather(
        listed(NODES),
        listed(PODS, fields=UNFINISHED_PODS),
        listed(KUEUE_WORKLOADS),
        listed(KUEUE_LOCAL_QUEUES, namespace),
        listed(KUEUE_CLUSTER_QUEUES),
        listed(KUEUE_COHORTS),
        listed(KUEUE_FLAVORS),
        listed(KAI_QUEUES),
        listed(KAI_POD_GROUPS),
        listed(VOLCANO_QUEUES),
        listed(VOLCANO_POD_GROUPS),
        listed(CLAIMS) if claims else _nothing(),
        listed(RESOURCE_SLICES) if claims else _nothing(),
    )
    events = await asyncio.gather(*(reader.listed(EVENTS, namespace, fields=fields) for fields in _UNSCHEDULED))
    return ClusterDocuments(
        nodes=lists[0],
        pods=lists[1],
        workloads=lists[2],
        local_queues=lists[3],
        cluster_queues=lists[4],
        cohorts=lists[5],
        flavors=lists[6],
        kai_queues=lists[7],
        kai_groups=lists[8],
        volcano_queues=lists[9],
        volcano_groups=lists[10],
        claims=lists[11],
        slices=lists[12],
        events=[event for several in events for event in several],
        unread=tuple(reader.unread),
    )


async def _nothing() -> list[Object]:
    return []
