"""Which pods have which device: what the kubelet says, by names that device plugins and drivers of claims give out."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.formats.gpu_metrics.device_reading import DeviceReading

_MAKERS = ("nvidia.com", "amd.com")
_CLAIMED_MIG = re.compile(r"gpu-(\d+)-mig-(?:\d+g[\w-]*?-(\d+)-(\d+)|(\d+)-(\d+)-\d+)")
"""Devices of NVIDIA's driver: with the profile's name before its id and the start, or with the size behind them
(``cmd/gpu-kubelet-plugin/mig.go`` and ``deviceinfo.go``, CanonicalName)."""
_CLAIMED_AMD = re.compile(r"gpu-\d+-(\d+)")
"""Devices of AMD's driver: card and render node."""
DeviceKey = tuple[str, str]


@dataclass(frozen=True, order=True)
class Holder:
    """A pod that has a device. ``share`` is the part that it was given, None where nothing says so."""

    namespace: str
    pod: str
    resource: str
    claim: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Holders:
    """By device (``DeviceReading.key``); ``unmapped`` counts devices of GPU resources that no reading is of."""

    by_device: Mapping[DeviceKey, tuple[Holder, ...]]
    unmapped: Mapping[str, int]

    def alone(self, device: DeviceKey) -> Holder | None:
        """The pod that has it, if no other does."""
        holders = self.by_device.get(device, ())
        pods = {(holder.namespace, holder.pod) for holder in holders}
        return holders[0] if len(pods) == 1 else None


def holders_of(
    allocations: Iterable[DeviceAllocation],
    offered: Mapping[str, tuple[str, ...]],
    devices: Iterable[DeviceReading],
    more_aliases: Mapping[str, str] | None = None,
) -> Holders:
    """``offered``: what device plugins have, by resource, which tells how many replicas a device has; ``more_aliases``:
    names of AMD's partitions by what stands in a reading's own."""
    names = _names(devices)
    aliases = more_aliases or {}
    replicas = {resource: _counted(ids) for resource, ids in offered.items()}
    held: dict[DeviceKey, dict[tuple[str, str, str, str], float | None]] = defaultdict(dict)
    unmapped: dict[str, int] = defaultdict(int)
    for allocation in allocations:
        if not allocation.resource.partition("/")[0].endswith(_MAKERS):
            continue
        for device, count in _counted(allocation.devices).items():
            name = _claimed(device) if allocation.claim else device
            key = names.get(aliases.get(name, name))
            if key is None:
                unmapped[allocation.resource] += 1
                continue
            total = replicas.get(allocation.resource, {}).get(device)
            share = None if allocation.claim or total is None else min(count / total, 1.0)
            held[key][allocation.namespace, allocation.pod, allocation.resource, allocation.claim] = share
    by_device = {
        key: tuple(
            sorted((Holder(*who, share) for who, share in own.items()), key=lambda each: (each.namespace, each.pod))
        )
        for key, own in held.items()
    }
    return Holders(by_device, dict(unmapped))


def _counted(devices: Iterable[str]) -> dict[str, int]:
    """Replicas by device: NVIDIA's plugin numbers them, ``GPU-…::3``."""
    counts: dict[str, int] = defaultdict(int)
    for device in devices:
        counts[device.partition("::")[0]] += 1
    return counts


def _claimed(device: str) -> str:
    """The driver's name of a device without its pool, in the form that readings have."""
    name = device.rpartition("/")[2]
    if match := _CLAIMED_AMD.fullmatch(name):
        return f"gpu-render-{match[1]}"
    match = _CLAIMED_MIG.fullmatch(name)
    if match is None:
        return name
    minor, profile, start = match[1], match[2] or match[4], match[3] or match[5]
    return f"gpu-{minor}-mig-{profile}-{start}"


def _names(devices: Iterable[DeviceReading]) -> dict[str, DeviceKey]:
    result: dict[str, DeviceKey] = {}
    for device in devices:
        for name in (device.uuid, device.pci, *device.aliases):
            if name:
                result.setdefault(name, device.key)
    return result
