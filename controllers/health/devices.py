"""Which devices of claims are part of which GPU of a node, from ResourceSlices.

Nothing in a slice makes a reader raise. Drivers call GPUs by names of their own: NVIDIA's by minor number and UUID,
AMD's by card, render node and PCI address. Where the node's agent knows UUIDs and addresses they decide; else the
driver's index or number does.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.device_taint import DeviceName
from kopt.cluster.holds.node_taint import TAINT_KEY
from kopt.cluster.objects.fields import at, items, text

UNKNOWN = ""
"""In place of a GPU: devices of which nobody says what they are part of."""
CLOSING = ("NoSchedule", "NoExecute")
_OF_GPUS = "gpu."
"""What names of drivers for GPUs begin with: gpu.nvidia.com, gpu.amd.com."""
_MIG = "mig"
_WHOLE = ("", "gpu", "amdgpu")
_NUMBERED = re.compile(r"gpu-(\d{1,4})(-mig-.*)?")
_ADDRESSES = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddr")
_ADDRESS_CHARS = len("0000:3b:00.0")


@dataclass(frozen=True)
class ObservedDevice:
    """``gpu``: the index by the driver's own word, `UNKNOWN` where it has none. ``identities``: UUID and PCI address of
    the GPU that it is, or is part of. ``taints`` are others', in words."""

    name: DeviceName
    gpu: str
    identities: tuple[str, ...]
    is_whole: bool
    model: str
    taints: tuple[str, ...]


@dataclass(frozen=True)
class ObservedSlice:
    """What a driver publishes of one node."""

    node: str
    devices: tuple[ObservedDevice, ...]


DevicesByGpu = Mapping[str, tuple[ObservedDevice, ...]]


def read_slice(document: Object) -> ObservedSlice | None:
    """None for drivers of other things than GPUs, and for slices of no one node."""
    driver, node = text(document, "spec", "driver"), text(document, "spec", "nodeName")
    if not driver.startswith(_OF_GPUS) or not node:
        return None
    pool = text(document, "spec", "pool", "name")
    devices = tuple(_device(driver, pool, item) for _, item in items(document, "spec", "devices"))
    return ObservedSlice(node, devices)


def _device(driver: str, pool: str, item: Object) -> ObservedDevice:
    name, kind = text(item, "name"), _string(item, "type")
    numbered = _NUMBERED.fullmatch(name)
    # The index of an instance is its own, not that of its GPU.
    index = at(item, "attributes", "parentIndex" if kind == _MIG else "index", "int")
    number = index if isinstance(index, int) else int(numbered[1]) if numbered else None
    address = next((value for each in _ADDRESSES if (value := _string(item, each))), "")
    identities = (_string(item, "parentUUID" if kind == _MIG else "uuid"), address[-_ADDRESS_CHARS:])
    return ObservedDevice(
        DeviceName(driver, pool, name),
        UNKNOWN if number is None else str(number),
        tuple(identity.lower() for identity in identities if identity),
        kind in _WHOLE,
        _string(item, "productName"),
        tuple(
            f"device {name}: taint {text(taint, 'key')[:80]}"
            for _, taint in items(item, "taints")
            if text(taint, "effect") in CLOSING and text(taint, "key") != TAINT_KEY
        ),
    )


def _string(item: Object, name: str) -> str:
    return text(item, "attributes", name, "string")


def devices_by_gpu(devices: Iterable[ObservedDevice], gpus: Mapping[str, str]) -> DevicesByGpu:
    """``gpus``: indexes by UUID and PCI address in lower case, as the node's agent has them."""
    devices, known = list(devices), dict(gpus)
    for device in devices:
        if device.is_whole and device.gpu != UNKNOWN:
            for identity in device.identities:
                known.setdefault(identity, device.gpu)
    result: dict[str, tuple[ObservedDevice, ...]] = {}
    for device in devices:
        gpu = next((known[identity] for identity in device.identities if identity in known), device.gpu)
        result[gpu] = (*result.get(gpu, ()), device)
    return result
