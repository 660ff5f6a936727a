"""The same state in one look, for `kopt partitions`: nothing is watched or written."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from kopt.cluster.client.api import Kube
from kopt.cluster.client.errors import NotFound
from kopt.cluster.client.resources import (
    CONFIG_MAPS,
    MIG_STRATEGIES,
    NODE_PLANS,
    NODES,
    PARTITIONING_PLANS,
    PODS,
    Key,
    Object,
    Resource,
)
from kopt.cluster.workloads.requests.devices import read_slice
from kopt.cluster.workloads.requests.external import CLAIMS, DEVICE_CLASSES, RESOURCE_SLICES
from kopt.controllers.partitions.demand import read_partition_claim
from kopt.controllers.partitions.reports import Observed
from kopt.controllers.partitions.views import (
    ObservedConfigurations,
    ObservedPod,
    ObservedProfiles,
    read_config_map,
    read_node,
    read_observed_strategy,
    read_partitioning_plan,
    read_pod,
    read_profile_map,
    read_reported_modes,
)

_KINDS = (NODES, PODS, CLAIMS, DEVICE_CLASSES, RESOURCE_SLICES, PARTITIONING_PLANS, NODE_PLANS)
T = TypeVar("T")


async def busy_pods(kube: Kube, node: str) -> list[ObservedPod]:
    """Pods with GPUs on a node, as the API server has them now. Raises ApiError."""
    pods = await kube.list(PODS, field_selector=f"spec.nodeName={node}")
    return _kept(pods.items, read_pod)


async def read_cluster(
    kube: Kube, now_s: float, where: Key, profiles_at: Key, further: Sequence[Object] = ()
) -> Observed:
    """As it is, with the MIGStrategies ``further`` added, or instead of those with their names. ``where``,
    ``profiles_at``: the ConfigMaps of mig-manager and of AMD's device config manager. Raises ApiError, NotFound where
    the kind is not installed."""
    strategies = {item["metadata"]["name"]: item for item in (await kube.list(MIG_STRATEGIES)).items}
    strategies |= {item["metadata"]["name"]: item for item in further}
    nodes, pods, claims, classes, slices, plans, signed = await asyncio.gather(*(_list(kube, kind) for kind in _KINDS))
    try:
        configurations = read_config_map(await kube.get(CONFIG_MAPS, where[1], where[0]))
    except NotFound:
        configurations = ObservedConfigurations(error=f"there is no ConfigMap {'/'.join(where)}")
    try:
        profiles = read_profile_map(await kube.get(CONFIG_MAPS, profiles_at[1], profiles_at[0]))
    except NotFound:
        profiles = ObservedProfiles(error=f"there is no ConfigMap {'/'.join(profiles_at)}")
    return Observed(
        now_s,
        _kept(list(strategies.values()), read_observed_strategy),
        _kept(nodes, read_node),
        _kept(pods, read_pod),
        _kept(claims, read_partition_claim),
        {item["metadata"]["name"]: item for item in classes},
        _kept(slices, read_slice),
        _kept(plans, read_partitioning_plan),
        configurations,
        profiles,
        _kept(signed, read_reported_modes),
    )


async def _list(kube: Kube, kind: Resource) -> list[Object]:
    try:
        return list((await kube.list(kind)).items)
    except NotFound:
        return []


def _kept(documents: Sequence[Object], read: Callable[[Object], T | None]) -> list[T]:
    return [item for document in documents if (item := read(document)) is not None]
