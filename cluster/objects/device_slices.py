"""ResourceSlices (resource.k8s.io/v1) as drivers publish GPUs: whole ones, shares by capacity, MIG instances that share
counters, and the modes of an MI300X.

kube-scheduler allocates the first devices that fit, in the order of the slices and of the devices within each
(kubernetes/enhancements#4970), so the order of ``devices`` here is a decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kopt.cluster.client.resources import Object
from kopt.core.hardware.mig import MigGeometry, MigProfile
from kopt.core.units import WHOLE_GPU

API_VERSION = "resource.k8s.io/v1"
MOST_DEVICES = 64
"""Of a slice, where devices consume counters or have taints (ResourceSliceMaxDevicesWithAdvancedFeatures)."""
MOST_COUNTER_SETS = 8
MEMORY, MILLI_GPU, PARTITIONS = "memory", "milliGPU", "partitions"
Effect = Literal["None", "NoSchedule", "NoExecute"]


@dataclass(frozen=True)
class Taint:
    """Of one device; ``NoExecute`` also evicts the pods that have it."""

    key: str
    effect: Effect
    value: str = ""

    def document(self) -> Object:
        return {"key": self.key, "effect": self.effect, **({"value": self.value} if self.value else {})}


@dataclass(frozen=True)
class Capacity:
    """An amount of a device. With ``step`` it can be shared: each claim consumes what it requests, rounded up to whole
    steps; ``default`` where it requests none, else the whole."""

    value: str
    step: str = ""
    default: str = ""
    least: str = ""

    def document(self) -> Object:
        if not self.step:
            return {"value": self.value}
        valid = {"min": self.least or self.step, "step": self.step}
        return {"value": self.value, "requestPolicy": {"default": self.default or self.value, "validRange": valid}}


@dataclass(frozen=True)
class Device:
    """``consumes``: amounts of counters by the name of their set."""

    name: str
    attributes: Mapping[str, str | int | bool]
    capacity: Mapping[str, Capacity]
    consumes: Mapping[str, Mapping[str, int]] | None = None
    shared: bool = False
    taints: tuple[Taint, ...] = ()

    def document(self) -> Object:
        body: Object = {
            "name": self.name,
            "attributes": {name: _attribute(value) for name, value in self.attributes.items()},
            "capacity": {name: capacity.document() for name, capacity in self.capacity.items()},
        }
        if self.consumes:
            body["consumesCounters"] = [
                {"counterSet": name, "counters": _counters(amounts)} for name, amounts in self.consumes.items()
            ]
        if self.shared:
            body["allowMultipleAllocations"] = True
        if self.taints:
            body["taints"] = [taint.document() for taint in self.taints]
        return body

    def tainted(self, *taints: Taint) -> "Device":
        return replace(self, taints=taints)


@dataclass(frozen=True)
class DevicePool:
    """The devices of one driver on one node. ``counters``: what devices share, by the name of the set."""

    driver: str
    node: str
    devices: tuple[Device, ...]
    counters: Mapping[str, Mapping[str, int]] | None = None
    generation: int = 1

    def slices(self) -> list[Object]:
        """One pool in as many ResourceSlices as it needs. Counters and devices are in separate ones, as the API server
        requires; names sort in the order of the devices."""
        sets = [{"name": name, "counters": _counters(amounts)} for name, amounts in (self.counters or {}).items()]
        parts: list[Object] = [{"sharedCounters": part} for part in _parts(sets, MOST_COUNTER_SETS)]
        devices = [device.document() for device in self.devices]
        parts += [{"devices": part} for part in _parts(devices, MOST_DEVICES)]
        pool = {"name": self.node, "generation": self.generation, "resourceSliceCount": len(parts)}
        return [
            {
                "apiVersion": API_VERSION,
                "kind": "ResourceSlice",
                "metadata": {"name": f"{self.node}-{self.driver}-{at:02}"},
                "spec": {"driver": self.driver, "nodeName": self.node, "pool": pool, **part},
            }
            for at, part in enumerate(parts)
        ]


def whole_gpus(count: int, model: str, memory_gib: int, **attributes: Sequence[str | int | bool]) -> tuple[Device, ...]:
    """``attributes`` have a value for each GPU."""
    return tuple(
        Device(
            f"gpu-{gpu}",
            {
                "type": "gpu",
                "index": gpu,
                "productName": model,
                **{name: values[gpu] for name, values in attributes.items()},
            },
            {MEMORY: Capacity(f"{memory_gib}Gi")},
        )
        for gpu in range(count)
    )


def shared_gpus(count: int, model: str, memory_gib: int) -> tuple[Device, ...]:
    """GPUs of which claims consume memory in whole GiB, and milli-GPU in steps of 50."""
    capacity = {
        MEMORY: Capacity(f"{memory_gib}Gi", step="1Gi"),
        MILLI_GPU: Capacity(str(WHOLE_GPU), step="50"),
    }
    return tuple(replace(gpu, capacity=capacity, shared=True) for gpu in whole_gpus(count, model, memory_gib))


def mig_gpus(
    driver: str, node: str, count: int, geometry: MigGeometry, *, last_start_first: bool = False
) -> DevicePool:
    """Every instance that can be cut from each GPU, and the whole GPU, over counters of slices. Small profiles come
    first, each from its first memory slot on or, with ``last_start_first``, from its last."""
    devices: list[Device] = []
    counters: dict[str, Mapping[str, int]] = {}
    for gpu in range(count):
        name = f"gpu-{gpu}-slices"
        counters[name] = _slices(range(geometry.memory_slots), geometry.compute_slices)
        for profile in geometry.profiles:
            starts = reversed(profile.starts) if last_start_first else profile.starts
            devices += [_mig_device(geometry, gpu, profile, start, gpu_uuid(node, gpu)) for start in starts]
        devices.append(
            Device(
                f"gpu-{gpu}",
                {"type": "gpu", "index": gpu, "productName": geometry.model, "uuid": gpu_uuid(node, gpu)},
                {},
                {name: counters[name]},
            )
        )
    return DevicePool(driver, node, tuple(devices), counters)


def mig_device_name(gpu: int, profile: str, start: int) -> str:
    """As ``mig_gpus`` names an instance, e.g. ``gpu-0-mig-3g40gb-4``."""
    return f"gpu-{gpu}-mig-{profile.replace('.', '')}-{start}"


def _mig_device(geometry: MigGeometry, gpu: int, profile: MigProfile, start: int, parent: str) -> Device:
    slots = range(start, start + profile.memory_slots)
    return Device(
        mig_device_name(gpu, profile.name, start),
        {
            "type": "mig",
            "profile": profile.name,
            "parentIndex": gpu,
            "parentUUID": parent,
            "productName": geometry.model,
        },
        {f"memorySlice{slot}": Capacity("1") for slot in slots},
        {f"gpu-{gpu}-slices": _slices(slots, profile.compute_slices)},
    )


MI300X_MODES = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
"""Compute modes of an MI300X, and into how many partitions each cuts it."""


def mi300x_gpus(driver: str, node: str, count: int) -> DevicePool:
    """Each GPU once per mode. A counter of one lets only one mode be in use, whose partitions claims consume."""
    devices, counters = [], {}
    for gpu in range(count):
        name = f"gpu-{gpu}-mode"
        counters[name] = {"mode": 1}
        for mode, partitions in MI300X_MODES.items():
            shared = partitions > 1
            capacity = Capacity(str(partitions), step="1" if shared else "", default="1" if shared else "")
            devices.append(
                Device(
                    f"gpu-{gpu}-{mode}",
                    {"type": "partition", "mode": mode, "index": gpu, "productName": "MI300X"},
                    {PARTITIONS: capacity},
                    {name: counters[name]},
                    shared,
                )
            )
    return DevicePool(driver, node, tuple(devices), counters)


def gpu_uuid(node: str, gpu: int) -> str:
    """Of a GPU that ``mig_gpus`` made; an attribute has 64 characters at most."""
    return f"GPU-{node}-{gpu}"[-64:]


def _slices(slots: Sequence[int], compute: int) -> dict[str, int]:
    return {"compute": compute, **{f"memory-slice-{slot}": 1 for slot in slots}}


def _counters(amounts: Mapping[str, int]) -> Object:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}


def _attribute(value: str | int | bool) -> Object:
    # A bool is an int to Python.
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _parts(items: list[Object], most: int) -> list[list[Object]]:
    return [items[at : at + most] for at in range(0, len(items), most)]
