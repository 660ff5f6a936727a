"""What a node's resources are of its physical GPUs, and what a pod's requests are of them.

A MIG partition has compute slices and memory slots: of an H100, ``1g.10gb`` is 1/7 of the one and 1/8 of the other,
so that by the larger share seven of them are charged the eighth slot that nobody can use, and two ``3g.40gb`` the
seventh compute slice. AMD's partitions are equal parts.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kopt.core.cost.metering import Demand
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, mig_geometry
from kopt.core.units import MIB, WHOLE_GPU

_NVIDIA, _MIG_PREFIX = "nvidia.com/gpu", "nvidia.com/mig-"
_WHOLE = (_NVIDIA, "amd.com/gpu", "nvidia.com/gpu.shared", "volcano.sh/vgpu-number")
_PARTITION = re.compile(r"amd\.com/(spx|dpx|qpx|cpx)_nps\d")
_PARTS = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
_PROFILE = re.compile(r"(\d)g\.(\d+)gb")
_MIG_PRODUCT = re.compile(r"-mig-(\d+g\.\d+gb)", re.IGNORECASE)
_SEVEN = 7
MEMORY_RESOURCES = ("nvidia.com/gpumem", "volcano.sh/vgpu-memory")
"""MiB of each of a pod's GPUs (HAMi, Volcano)."""
MEMORY_PERCENT_RESOURCE = "nvidia.com/gpumem-percentage"
CORES_RESOURCES = ("nvidia.com/gpucores", "volcano.sh/vgpu-cores")
"""Per cent of the compute of each."""


@dataclass(frozen=True)
class Share:
    """Of a physical GPU, 0 to 1."""

    memory: Fraction
    compute: Fraction


_NONE = Fraction(0)
WHOLE = Share(Fraction(1), Fraction(1))


@dataclass(frozen=True)
class NodeDevices:
    """``gpus`` physical ones of a model, each with ``memory_bytes``; ``units``: what one of a resource is of one."""

    model: str
    memory_bytes: int
    gpus: int
    units: Mapping[str, Share]


@dataclass(frozen=True)
class Request:
    """What a pod asks for: ``units`` by resource, or a part by annotation: a fraction in milli-GPU, or bytes, of each
    of ``devices`` GPUs. ``memory_mib``, ``memory_percent`` and ``cores_percent`` limit each unit (HAMi, Volcano)."""

    units: Mapping[str, int]
    fraction_milli: int = 0
    memory_bytes: int = 0
    devices: int = 1
    memory_mib: int = 0
    memory_percent: int = 0
    cores_percent: int = 0
    indices: tuple[int, ...] = ()
    group: str = ""


def is_device(resource: str) -> bool:
    """Whether a resource counts GPUs or parts of them."""
    return resource in _WHOLE or resource.startswith(_MIG_PREFIX) or bool(_PARTITION.fullmatch(resource))


def node_devices(
    amounts: Mapping[str, int], product: str, *, memory_bytes: int = 0, counted: int = 0, replicas: int = 1
) -> NodeDevices | None:
    """Of a node that offers ``amounts``; None without GPUs. ``product``, ``counted`` and ``replicas`` are labels of
    feature discovery: the model, physical GPUs, and into how many time slices each is divided."""
    offered = {name: amount for name, amount in amounts.items() if amount > 0 and is_device(name)}
    if not offered:
        return None
    model, memory = _model(product)
    single = _MIG_PRODUCT.search(product)
    units = {}
    for name in offered:
        if single and name == _NVIDIA:
            units[name] = _mig(single[1].lower(), model)
        else:
            units[name] = _unit(name, model, replicas)
    compute = sum(amount * units[name].compute for name, amount in offered.items())
    used_memory = sum(amount * units[name].memory for name, amount in offered.items())
    # With one profile on all GPUs feature discovery counts partitions.
    gpus = counted if counted > 0 and not single else math.ceil(max(compute, used_memory))
    return NodeDevices(model or product, memory_bytes or memory, gpus, units)


def demand_of(request: Request, devices: NodeDevices) -> Demand | None:
    """What a pod has of a node's GPUs; None for nothing."""
    if units := {name: number for name, number in request.units.items() if number > 0 and name in devices.units}:
        count = sum(units.values())
        memory = sum((devices.units[name].memory * number for name, number in units.items()), _NONE) / count
        compute = sum((devices.units[name].compute * number for name, number in units.items()), _NONE) / count
        return _limited(request, devices, count, Share(memory, compute))
    if request.fraction_milli:
        part = Fraction(request.fraction_milli, WHOLE_GPU)
        return _demand(request, request.devices, Share(part, part))
    if request.memory_bytes:
        part = Fraction(request.memory_bytes, devices.memory_bytes) if devices.memory_bytes else Fraction(1)
        return _demand(request, request.devices, Share(part, Fraction(0)))
    return None


def demand_of_shares(request: Request, shares: Sequence[Share]) -> Demand:
    """Of devices with these shares of a GPU; where they differ each counts as their mean."""
    count = len(shares)
    memory = sum((share.memory for share in shares), _NONE) / count
    compute = sum((share.compute for share in shares), _NONE) / count
    return _demand(request, count, Share(memory, compute))


def partition_share(name: str, model: str) -> Share:
    """Of a partition by its profile: ``1g.10gb``, ``cpx_nps4``; a name without one is a whole GPU."""
    if partition := _PARTITION.fullmatch(f"amd.com/{name.lower()}"):
        part = Fraction(1, _PARTS[partition[1]])
        return Share(part, part)
    return _mig(name, model)


def catalogue_model(product: str) -> str:
    """Its name in the catalogue; empty for what is not in it."""
    return _model(product)[0]


def _limited(request: Request, devices: NodeDevices, count: int, share: Share) -> Demand:
    if not (request.memory_mib or request.memory_percent or request.cores_percent):
        return _demand(request, count, share)
    memory = Fraction(request.memory_percent, 100) if request.memory_percent else Fraction(1)
    if request.memory_mib and devices.memory_bytes:
        memory = Fraction(request.memory_mib * MIB, devices.memory_bytes)
    return _demand(request, count, Share(memory, Fraction(request.cores_percent, 100)))


def _demand(request: Request, count: int, share: Share) -> Demand:
    memory, compute = (min(WHOLE_GPU, math.ceil(part * WHOLE_GPU)) for part in (share.memory, share.compute))
    return Demand(count, memory, compute, request.indices, request.group)


def _unit(resource: str, model: str, replicas: int) -> Share:
    if resource.startswith(_MIG_PREFIX) or _PARTITION.fullmatch(resource):
        return partition_share(resource.removeprefix(_MIG_PREFIX).removeprefix("amd.com/"), model)
    part = Fraction(1, max(1, replicas))
    return Share(part, part)


@functools.lru_cache(maxsize=256)
def _mig(profile: str, model: str) -> Share:
    """Without the model's geometry: sevenths of its compute, and its memory as the name has it."""
    match = _PROFILE.match(profile)
    if match is None:
        return WHOLE
    try:
        geometry = mig_geometry(find_gpu(model))
        instance = geometry.profiles[geometry.index(match[0])]
        return Share(
            Fraction(instance.memory_slots, geometry.memory_slots),
            Fraction(instance.compute_slices, geometry.compute_slices),
        )
    except (UnknownGpuError, MigError):
        _, memory = _model(model)
        part = Fraction(int(match[2]) << 30, memory) if memory else Fraction(int(match[1]), _SEVEN)
        return Share(min(part, Fraction(1)), Fraction(int(match[1]), _SEVEN))


@functools.lru_cache(maxsize=256)
def _model(product: str) -> tuple[str, int]:
    """Name in the catalogue and bytes; empty and 0 for what is not in it."""
    try:
        gpu_model = find_gpu(product)
    except UnknownGpuError:
        return "", 0
    return gpu_model.name, int(gpu_model.memory_bytes)
