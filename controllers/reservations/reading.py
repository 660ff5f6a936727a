"""The same state in one look, for `kopt reservations plan`: nothing is watched or written."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    HOLDS_COMPONENT,
    JOBS,
    KAIWO_RESERVATIONS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NAMESPACES,
    NODES,
    PODS,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.objects.namespace import read_namespace
from kopt.cluster.workloads.kueue.queues import read_cluster_queue, read_flavor
from kopt.cluster.workloads.kueue.reading import local_queue_target
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.views import (
    ObservedWorkload,
    Reserved,
    read_hold_job,
    read_node,
    read_pod,
    read_reserved,
    read_workload,
)
from kopt.core.decision import Mode
from kopt.policies.admission.mode import mode_in

_KINDS = (KUEUE_WORKLOADS, PODS, NODES, KUEUE_LOCAL_QUEUES, KUEUE_CLUSTER_QUEUES, KUEUE_FLAVORS, NAMESPACES)
T = TypeVar("T")


async def read_reservations_of(kube: Kube, namespace: str = "") -> list[Reserved]:
    """Those of a namespace, or all. Raises ApiError, NotFound where the kind is not installed."""
    return [read_reserved(item) for item in (await kube.list(KAIWO_RESERVATIONS, namespace)).items]


async def read_cluster(kube: Kube, now_s: float, further: Sequence[Reserved] = ()) -> Observed:
    """Everything as it would be if ``further`` were there, and all of it in mode enforce where it is ours to act.
    Raises ApiError."""
    existing = await read_reservations_of(kube)
    names = {each.name for each in further}
    served = [await kube.served(kind) for kind in _KINDS]
    lists = await asyncio.gather(*(_list(kube, kind) for kind in served))
    workloads, pods, nodes, local, queues, flavors, namespaces = lists
    jobs = (await kube.list(JOBS, label_selector=f"{COMPONENT_LABEL}={HOLDS_COMPONENT}")).items
    spaces = {key_of(item)[1]: read_namespace(item) for item in namespaces}

    def own_mode(namespace: str, own: str) -> Mode:
        return mode_in(spaces.get(namespace), own, Mode.ENFORCE)

    def mode(each: ObservedWorkload) -> Mode:
        return own_mode(each.key[0], each.workload.mode)

    return Observed(
        now_s,
        [*(each for each in existing if each.name not in names), *further],
        _kept(workloads, read_workload),
        _kept(pods, read_pod),
        _kept(nodes, read_node),
        _kept(jobs, read_hold_job),
        {key_of(item): local_queue_target(item) for item in local},
        {key_of(item)[1]: read_cluster_queue(item) for item in queues},
        {key_of(item)[1]: read_flavor(item) for item in flavors},
        spaces,
        {},
        mode,
        lambda each: own_mode(each.key[0], each.mode),
    )


async def _list(kube: Kube, kind: Resource) -> list[Object]:
    return list((await kube.list(kind)).items)


def _kept(documents: Sequence[Object], read: Callable[[Object], T | None]) -> list[T]:
    return [item for document in documents if (item := read(document)) is not None]
