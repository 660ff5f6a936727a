"""What each node offers shares of GPUs by, as the cluster itself shows it.

Beside the signs of ``cluster.workloads.shares.executors``: replicas of NVIDIA's device plugin by the labels of its
feature discovery (``internal/lm/resource.go``, v0.17), and devices of dynamic resource allocation by ResourceSlices of
which devices may be allocated several times.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.resources import NODES, Object, Resource
from kopt.cluster.objects.device_slices import MEMORY, MILLI_GPU
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.node_selection import runs_on
from kopt.cluster.workloads.requests.devices import device_request
from kopt.cluster.workloads.requests.external import DEVICE_CLASSES, RESOURCE_SLICES
from kopt.cluster.workloads.requests.gpus import GPU_DRIVERS
from kopt.cluster.workloads.requests.pods import quantity_or_zero
from kopt.cluster.workloads.shares.executors import KAI_CONFIGS, kai_executor, node_executor
from kopt.core.units import MIB
from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_share import ShareExecutor
from kopt.core.workload.share_offer import NodeOffers, ShareOffer
from kopt.formats.gpu_shares import WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import REPLICAS_LABEL, STRATEGY_LABEL

HAMI_DRIVER = "hami-core-gpu.project-hami.io"
SHARED_GPU_RESOURCE = "nvidia.com/gpu.shared"
_COMPUTE = (MILLI_GPU, "cores")
"""Names of capacities that count compute: of the driver that this is tested with, and HAMi's, in percent."""
_IDENTITIES = ("uuid", "index", "minor")
"""Attributes of drivers that name a GPU; those that also share a node's other devices are none."""
_PARTS = frozenset({"mig", "vfio", "partition"})
_BY_PLUGIN = {Executor.HAMI: ShareExecutor.HAMI, Executor.VOLCANO: ShareExecutor.VOLCANO}
_STRATEGIES = {"time-slicing": ShareExecutor.TIME_SLICING, "mps": ShareExecutor.MPS}


@dataclass(frozen=True)
class SharingNode:
    """``offers`` are by the node alone; ``executor`` as advice on sizes knows it. ``whole_gpus``: NVIDIA's, which KAI
    can divide."""

    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    executor: Executor | None
    offers: tuple[ShareOffer, ...]
    gpu_mib: int
    whole_gpus: int


def sharing_node(node: Object) -> SharingNode:
    """Of a node of any shape."""
    labels = {str(name): str(value) for name, value in mapping(node, "metadata", "labels").items()}
    mib, gpus = _number(labels.get("nvidia.com/gpu.memory")), _number(labels.get("nvidia.com/gpu.count"))
    executor = node_executor(node)
    offers = [ShareOffer(_BY_PLUGIN[executor], mib, gpus=gpus)] if executor in _BY_PLUGIN else []
    allocatable = mapping(node, "status", "allocatable")
    replicas = _number(labels.get(REPLICAS_LABEL))
    strategy = _STRATEGIES.get(labels.get(STRATEGY_LABEL, ""))
    if strategy is not None and replicas > 1:
        renamed = _number(allocatable.get(SHARED_GPU_RESOURCE)) > 0
        resource = SHARED_GPU_RESOURCE if renamed else WHOLE_GPU_RESOURCE
        offers.append(ShareOffer(strategy, mib, replicas, resource))
    taints = tuple(item for _, item in items(node, "spec", "taints"))
    whole = 0 if offers else _number(allocatable.get(WHOLE_GPU_RESOURCE))
    return SharingNode(labels, taints, executor, tuple(offers), mib, whole)


def shared_devices(resource_slice: Object) -> tuple[tuple[str, ShareOffer], ...] | None:
    """Node and offer of the devices of a slice that may be allocated several times; the classes are not known yet. None
    for a slice without any."""
    driver = text(resource_slice, "spec", "driver")
    if driver not in GPU_DRIVERS | {HAMI_DRIVER}:
        return None
    node = text(resource_slice, "spec", "nodeName") or text(resource_slice, "spec", "pool", "name")
    listed = [item for _, item in items(resource_slice, "spec", "devices")]
    devices = [device for device in listed if at(device, "allowMultipleAllocations") is True]
    offers = [offer for device in devices if (offer := _shared(device, driver)) is not None]
    distinct = _distinct(devices, driver)
    return tuple((node, replace(offer, distinct=distinct)) for offer in offers) or None


def _distinct(devices: Sequence[Object], driver: str) -> str:
    """The attribute that every device has a value of its own of, qualified as constraints of claims want it."""
    for name in _IDENTITIES:
        values = [str(mapping(device, "attributes", name)) for device in devices if at(device, "attributes", name)]
        if len(set(values)) == len(devices):
            return f"{driver}/{name}"
    return ""


def _shared(device: Object, driver: str) -> ShareOffer | None:
    if text(device, "attributes", "type", "string") in _PARTS:
        return None
    amounts = {str(name): quantity_or_zero(mapping(value).get("value")) for name, value in items(device, "capacity")}
    compute = next((name for name in _COMPUTE if amounts.get(name)), "")
    memory = MEMORY if amounts.get(MEMORY) else ""
    executor = ShareExecutor.DRA_HAMI if driver == HAMI_DRIVER else ShareExecutor.DRA
    mib = amounts.get(MEMORY, 0) // MIB
    return ShareOffer(executor, mib, 0, "", driver, "", memory, compute, amounts.get(compute, 0))


@dataclass(frozen=True)
class SharedGpus:
    """The cluster at one moment; the mappings may be live views of informers."""

    nodes: Mapping[tuple[str, str], SharingNode] = field(default_factory=dict)
    slices: Mapping[Any, tuple[tuple[str, ShareOffer], ...]] = field(default_factory=dict)
    classes: Mapping[Any, Object] = field(default_factory=dict)
    has_kai: bool = False

    def offered(self, pod_spec: Object | None = None) -> Iterator[NodeOffers]:
        """By node: of those that pods of the spec may use, or of all."""
        devices = self._devices()
        for (_, name), node in self.nodes.items():
            if pod_spec is None or runs_on(pod_spec, node.labels, node.taints):
                yield NodeOffers(name, tuple(self._of_node(node, devices.get(name, {}))))

    def _of_node(self, node: SharingNode, devices: Mapping[ShareExecutor, ShareOffer]) -> Iterator[ShareOffer]:
        yield from node.offers
        yield from devices.values()
        if self.has_kai and (node.whole_gpus or (node.offers and not devices)):
            yield ShareOffer(ShareExecutor.KAI, node.gpu_mib, gpus=node.whole_gpus)

    def _devices(self) -> dict[str, dict[ShareExecutor, ShareOffer]]:
        """By node; of GPUs of several sizes the smallest. Without a class nobody can ask for them."""
        classes = {name: self._class_of(name) for name in {offer.driver for _, offer in self._listed()}}
        result: dict[str, dict[ShareExecutor, ShareOffer]] = {}
        for node, offer in self._listed():
            device_class, before = classes[offer.driver], result.setdefault(node, {}).get(offer.executor)
            if device_class:
                smallest = offer if before is None or offer.gpu_mib < before.gpu_mib else before
                gpus = 1 if before is None else before.gpus + 1
                result[node][offer.executor] = replace(smallest, device_class=device_class, gpus=gpus)
        return result

    def _listed(self) -> Iterator[tuple[str, ShareOffer]]:
        for part in self.slices.values():
            yield from part

    def _class_of(self, driver: str) -> str:
        """The first class by name that selects GPUs of the driver and not parts of them."""
        return min((name for name in map(_class_name(driver), self.classes.values()) if name), default="")


def _class_name(driver: str) -> Callable[[Object], str]:
    def name(document: Object) -> str:
        request = device_request(document, {"exactly": {}})
        if request is None or request.driver != driver or set(request.attributes) - {"type"}:
            return ""
        is_part = request.attributes.get("type") in _PARTS
        return "" if is_part else text(document, "metadata", "name")

    return name


async def read_sharing(kube: Kube) -> SharedGpus:
    """As it is now; kinds that are not served have no objects. Raises ApiError."""
    nodes, slices, classes, configs = await asyncio.gather(
        *(_listed(kube, resource) for resource in (NODES, RESOURCE_SLICES, DEVICE_CLASSES, KAI_CONFIGS))
    )
    return sharing_of(nodes, slices, classes, configs)


def sharing_of(
    nodes: Iterable[Object], slices: Iterable[Object], classes: Iterable[Object], configs: Iterable[Object]
) -> SharedGpus:
    """Of objects as the API server has them."""
    return SharedGpus(
        {("", text(node, "metadata", "name")): sharing_node(node) for node in nodes},
        {at_: part for at_, item in enumerate(slices) if (part := shared_devices(item)) is not None},
        dict(enumerate(classes)),
        any(kai_executor(config) is Executor.KAI for config in configs),
    )


async def _listed(kube: Kube, resource: Resource) -> list[Object]:
    try:
        return (await kube.list(resource)).items
    except NotFound:
        return []


def _number(amount: Any) -> int:
    """Of a label or an amount of an extended resource; 0 for anything but a plain number."""
    written = "" if isinstance(amount, bool) else str(amount)
    return int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0
