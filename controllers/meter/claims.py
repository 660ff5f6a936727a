"""GPUs of drivers (dynamic resource allocation): what each node has of them, and which pods have which part.

A ResourceSlice lists the devices of a driver on a node, partitions that could be cut included; a ResourceClaim says
which of them were allocated, and for which pods. A claim that several pods share is divided among them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.requests.gpus import GPU_DRIVERS
from kopt.cluster.workloads.requests.pods import quantity
from kopt.core.cost.metering import Demand
from kopt.policies.cost.devices import (
    WHOLE,
    NodeDevices,
    Request,
    Share,
    catalogue_model,
    demand_of_shares,
    partition_share,
)

RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device."""


@dataclass(frozen=True)
class SliceDevice:
    """``share`` of a physical GPU; ``whole``: it is one, and counts as one of its node."""

    name: str
    share: Share
    whole: bool
    model: str
    memory_bytes: int


@dataclass(frozen=True)
class ObservedSlice:
    driver: str
    pool: str
    generation: int
    node: str
    devices: tuple[SliceDevice, ...]


@dataclass(frozen=True)
class ObservedClaim:
    """``devices``: what is allocated, and how much memory of each; 0 where it is all."""

    pods: tuple[str, ...]
    devices: tuple[tuple[DeviceKey, int], ...]


def read_slice(document: Object) -> ObservedSlice | None:
    """None for a slice of other devices."""
    spec = mapping(document, "spec")
    driver = text(spec, "driver")
    if driver not in GPU_DRIVERS:
        return None
    pool, generation = text(spec, "pool", "name"), at(spec, "pool", "generation")
    devices = tuple(_device(item) for _, item in items(spec, "devices"))
    return ObservedSlice(
        driver, pool, generation if isinstance(generation, int) else 0, text(spec, "nodeName") or pool, devices
    )


def read_claim(document: Object) -> ObservedClaim | None:
    """None for a claim of which no pod has GPUs."""
    reserved = [item for _, item in items(document, "status", "reservedFor")]
    pods = tuple(text(item, "uid") for item in reserved if text(item, "resource") == "pods")
    devices = tuple(
        (
            (text(item, "driver"), text(item, "pool"), text(item, "device")),
            _amount(at(item, "consumedCapacity", "memory")),
        )
        for _, item in items(document, "status", "allocation", "devices", "results")
        if text(item, "driver") in GPU_DRIVERS
    )
    return ObservedClaim(pods, devices) if pods and devices else None


class ClaimedDevices:
    """Of all slices and claims at one time."""

    def __init__(self, slices: Collection[ObservedSlice], claims: Iterable[ObservedClaim]) -> None:
        newest: dict[tuple[str, str], int] = {}
        for item in slices:
            newest[item.driver, item.pool] = max(newest.get((item.driver, item.pool), 0), item.generation)
        self._devices: dict[DeviceKey, SliceDevice] = {}
        self._of_node: dict[str, list[SliceDevice]] = {}
        for item in slices:
            if item.generation == newest[item.driver, item.pool]:
                self._devices |= {(item.driver, item.pool, device.name): device for device in item.devices}
                self._of_node.setdefault(item.node, []).extend(device for device in item.devices if device.whole)
        self._shares: dict[str, list[Share]] = {}
        for claim in claims:
            for uid in claim.pods:
                self._shares.setdefault(uid, []).extend(
                    self._share(key, memory, len(claim.pods)) for key, memory in claim.devices
                )

    def of_node(self, node: str) -> NodeDevices | None:
        """None for a node without such GPUs."""
        gpus = self._of_node.get(node)
        return NodeDevices(gpus[0].model, gpus[0].memory_bytes, len(gpus), {}) if gpus else None

    def of_pod(self, uid: str) -> Demand | None:
        """None for a pod that has none of them."""
        shares = self._shares.get(uid)
        return demand_of_shares(Request({}), shares) if shares else None

    def _share(self, key: DeviceKey, memory_bytes: int, pods: int) -> Share:
        device = self._devices.get(key)
        share = WHOLE if device is None else device.share
        if device is not None and memory_bytes and device.memory_bytes:
            part = min(Fraction(memory_bytes, device.memory_bytes), Fraction(1))
            share = Share(share.memory * part, share.compute * part)
        return Share(share.memory / pods, share.compute / pods)


def _device(item: Any) -> SliceDevice:
    # Attributes stood one level deeper before v1.
    basic = item if at(item, "basic") is None else mapping(item, "basic")
    kind, product, profile = (_attribute(basic, name) for name in ("type", "productName", "profile"))
    whole = kind == "gpu" or (at(basic, "consumesCounters") is None and not profile)
    model = catalogue_model(product) or product
    share = WHOLE if whole else partition_share(profile or text(item, "name"), model)
    return SliceDevice(text(item, "name"), share, whole, model, _amount(at(basic, "capacity", "memory", "value")))


def _attribute(device: Mapping[str, Any], name: str) -> str:
    return text(device, "attributes", name, "string")


def _amount(value: Any) -> int:
    try:
        return quantity(value) if isinstance(value, str | int) and value != "" else 0
    except ValueError:
        return 0
