"""Reads the GPUs and the hardware of a cluster: resources that nodes offer, devices of dynamic resource allocation."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    NODE_ALLOCATIONS,
    NODE_BANDWIDTHS,
    NODE_HEALTHS,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    Object,
)
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.namespace import KAI_RESERVATIONS
from kopt.cluster.workloads.hardware import current_slices, inventory_of
from kopt.cluster.workloads.node_selection import why_closed
from kopt.cluster.workloads.placement.node_capacity import Shortfall, shortfalls_of
from kopt.cluster.workloads.placement.node_complaints import complaint_in_any_mode
from kopt.cluster.workloads.requests.external import CLAIMS, RESOURCE_SLICES
from kopt.cluster.workloads.requests.pods import is_gpu, quantity_or_zero
from kopt.controllers.overview.devices.fleet import fleet_of
from kopt.controllers.overview.reading import Reader
from kopt.core.hardware.inventory import Hardware
from kopt.core.scheduling.devices import GpuDevice, GpuHolder
from kopt.core.units import WHOLE_GPU, Bytes
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.pool import Pool

GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
_CLOSING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class GpuList:
    """GPUs by node and name; ``unread`` are kinds that may not be read, so that some may be missing or look free."""

    gpus: tuple[GpuDevice, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class HardwareList:
    """By node; ``unread`` are kinds that may not be read, so that some may be missing."""

    hardware: tuple[Hardware, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuDocuments:
    """What GPUs are read from, of all namespaces."""

    nodes: Iterable[Object]
    pods: Iterable[Object]
    topologies: Iterable[Object]
    bandwidths: Iterable[Object]
    slices: Iterable[Object]
    claims: Iterable[Object]
    healths: Iterable[Object] = ()
    allocations: Iterable[Object] = ()


@dataclass(frozen=True)
class _Claim:
    """``holder``: namespace and name. ``consumed``: capacity by name, empty where the whole device is allocated."""

    holder: tuple[str, str]
    consumed: Mapping[str, object]


async def read_gpus(kube: Kube) -> GpuList:
    """With the caller's rights. Objects that cannot be understood are left out. Raises ApiError."""
    reader = Reader(kube)
    lists = await asyncio.gather(
        reader.listed(NODES),
        reader.listed(PODS, fields=UNFINISHED_PODS),
        reader.listed(NODE_TOPOLOGIES),
        reader.listed(NODE_BANDWIDTHS),
        reader.listed(RESOURCE_SLICES),
        reader.listed(CLAIMS),
        reader.listed(NODE_HEALTHS),
        reader.listed(NODE_ALLOCATIONS),
    )
    return gpus_of_documents(GpuDocuments(*lists), tuple(reader.unread))


async def read_hardware(kube: Kube) -> HardwareList:
    """With the caller's rights. Raises ApiError."""
    reader = Reader(kube)
    nodes, slices = await asyncio.gather(reader.listed(NODES), reader.listed(RESOURCE_SLICES))
    listed = [item for node in inventory_of(nodes, slices) for item in node.hardware]
    return HardwareList(tuple(listed), tuple(reader.unread))


def gpus_of_documents(documents: GpuDocuments, unread: tuple[str, ...] = ()) -> GpuList:
    """Nothing in the documents makes this raise."""
    closed = {text(node, "metadata", "name"): why for node in documents.nodes if (why := why_closed(node))}
    fleet = fleet_of(
        [_installed(node) for node in documents.nodes],
        [pod for pod in documents.pods if text(pod, "metadata", "namespace") not in KAI_RESERVATIONS],
        documents.topologies,
        documents.bandwidths,
        documents.healths,
        complaint_in_any_mode,
        documents.allocations,
        packs=True,
    )
    shortfalls = {
        (text(node, "metadata", "name"), resource): shortfall
        for node in documents.nodes
        for resource, shortfall in shortfalls_of(node).items()
    }
    gpus = [*_closed_where_short(_counted(fleet, closed), shortfalls, fleet), *_devices(documents, closed)]
    return GpuList(tuple(sorted(gpus, key=_order)), unread)


def _installed(node: Object) -> Object:
    """As if it offered every GPU that it has: a broken one that a pod has is held, and one that is free is listed."""
    capacity = mapping(node, "status", "capacity")
    gpus = {name: amount for name, amount in capacity.items() if is_gpu(str(name)) and quantity_or_zero(amount)}
    if not gpus:
        return node
    status = mapping(node, "status")
    return {**node, "status": {**status, "allocatable": {**mapping(status, "allocatable"), **gpus}}}


def _closed_where_short(
    gpus: Iterable[GpuDevice], shortfalls: Mapping[tuple[str, str], Shortfall], fleet: Fleet
) -> Iterator[GpuDevice]:
    """Which GPUs of a node are broken nothing says: of the free ones those that something is wrong with, and then the
    last, are as good as any."""
    remaining = {key: shortfall.broken for key, shortfall in shortfalls.items()}
    of_short: list[GpuDevice] = []
    for gpu in gpus:
        if (gpu.node, gpu.resource) in shortfalls:
            of_short.append(gpu)
        else:
            yield gpu
    for gpu in sorted(of_short, key=lambda gpu: (not _is_poor(gpu, fleet), -int(gpu.name))):
        key = gpu.node, gpu.resource
        if remaining[key] and gpu.free_milli_gpu >= WHOLE_GPU:
            remaining[key] -= 1
            yield replace(gpu, takes_pods=False, shortfall=_sentence(gpu, shortfalls[key]))
        else:
            yield gpu


def _is_poor(gpu: GpuDevice, fleet: Fleet) -> bool:
    """Whether something is wrong with it, and not with all of its node."""
    return bool(fleet.complaints.poor(gpu.node, fleet.nodes[gpu.node][gpu.resource].gpus) >> int(gpu.name) & 1)


def _sentence(gpu: GpuDevice, shortfall: Shortfall) -> str:
    offers = f"its device plugin offers {shortfall.offered} of {shortfall.installed} {gpu.resource}"
    return f"{offers}; that it is this one is assumed" if shortfall.offered else offers


def _order(gpu: GpuDevice) -> tuple[str, str, int, str]:
    return gpu.node, gpu.resource, int(gpu.name) if gpu.name.isdigit() else 0, gpu.name


def _counted(fleet: Fleet, closed: Mapping[str, str]) -> Iterator[GpuDevice]:
    """Of nodes that offer a number of GPUs: which pod holds which is what annotations say, else assumed."""
    for resource, pool in fleet.pools.items():
        holders = _holders(fleet, resource)
        for node, row in pool.state.index.items():
            offer = fleet.nodes[node][resource]
            for slot in range(offer.gpus):
                problems = [closed.get(node, ""), *fleet.complaints.of_slot(node, slot)]
                yield GpuDevice(
                    node,
                    str(slot),
                    resource,
                    offer.model,
                    offer.gpu_memory_bytes,
                    _free(pool, row, slot),
                    tuple(holders[node, slot]),
                    node not in closed,
                    "; ".join(filter(None, problems)),
                )


def _free(pool: Pool, row: int, slot: int) -> int:
    return max(0, int(pool.state.gpu_free_milli[row, slot]))


def _holders(fleet: Fleet, resource: str) -> Mapping[tuple[str, int], list[GpuHolder]]:
    result: dict[tuple[str, int], list[GpuHolder]] = defaultdict(list)
    for holding in sorted(fleet.holdings.values(), key=lambda holding: holding.pod):
        request, slots = holding.part(resource)
        for slot in slots:
            holder = GpuHolder(*holding.pod, int(request.gpus.share), assumed=slot not in (holding.named or ()))
            result[holding.node, slot].append(holder)
    return result


def _devices(documents: GpuDocuments, closed: Mapping[str, str]) -> Iterator[GpuDevice]:
    """Devices of drivers for GPUs. Partitions are listed where somebody has them: a slice lists every one that could
    be cut."""
    slices = current_slices(item for item in documents.slices if text(item, "spec", "driver") in GPU_DRIVERS)
    holders = _claimed(documents.claims)
    for item in slices:
        driver, pool = text(item, "spec", "driver"), text(item, "spec", "pool", "name")
        node = text(item, "spec", "nodeName") or pool
        for _, device in items(item, "spec", "devices"):
            claims = holders.get((driver, pool, text(device, "name")), ())
            if claims or at(device, "consumesCounters") is None or _attribute(device, "type") == "gpu":
                held = tuple(GpuHolder(*claim.holder, _share(device, claim.consumed)) for claim in claims)
                yield _device(device, driver, node, held, closed.get(node, ""))


def _device(device: Object, driver: str, node: str, held: tuple[GpuHolder, ...], closed: str) -> GpuDevice:
    taints = [item for _, item in items(device, "taints") if text(item, "effect") in _CLOSING]
    problems = [closed, *(f"taint {text(taint, 'key')}={text(taint, 'value')}" for taint in taints)]
    return GpuDevice(
        node,
        text(device, "name"),
        driver,
        _attribute(device, "productName") or _attribute(device, "profile"),
        Bytes(quantity_or_zero(at(device, "capacity", "memory", "value"))),
        max(0, WHOLE_GPU - sum(holder.milli_gpu for holder in held)),
        held,
        not closed and not taints,
        "; ".join(filter(None, problems)),
    )


def _claimed(claims: Iterable[Object]) -> Mapping[tuple[str, str, str], list[_Claim]]:
    """Who holds each device: the pods that a claim is reserved for, else the claim itself."""
    result: dict[tuple[str, str, str], list[_Claim]] = defaultdict(list)
    for claim in claims:
        namespace = text(claim, "metadata", "namespace")
        pods = [text(item, "name") for _, item in items(claim, "status", "reservedFor")]
        holder = namespace, ", ".join(pods) or f"claim {text(claim, 'metadata', 'name')}"
        for _, allotted in items(claim, "status", "allocation", "devices", "results"):
            key = text(allotted, "driver"), text(allotted, "pool"), text(allotted, "device")
            result[key].append(_Claim(holder, mapping(allotted, "consumedCapacity")))
    return result


def _share(device: Object, consumed: Mapping[str, object]) -> int:
    """The largest part of a capacity that a claim consumes, in milli-GPU; whole where it says none."""
    capacity = mapping(device, "capacity")
    parts = [
        quantity_or_zero(amount) * WHOLE_GPU / whole
        for name, amount in consumed.items()
        if (whole := quantity_or_zero(mapping(capacity, name).get("value")))
    ]
    return min(WHOLE_GPU, math.ceil(max(parts))) if parts else WHOLE_GPU


def _attribute(device: Object, name: str) -> str:
    return text(mapping(device, "attributes", name), "string")
