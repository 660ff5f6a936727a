"""How many GPUs a pod asks for, read from its spec and annotations."""

import re
from collections.abc import Mapping
from typing import Any

from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.units import WHOLE_GPU, Bytes, MilliGpu, UnitError, parse_bytes, parse_milli_gpu
from kopt.core.workload.gpu_share import CHARGE_RESOURCE, MOST_GPUS

MEMORY_ANNOTATION = "kaiwo.ai/gpu-memory"
FRACTION_ANNOTATIONS = ("kaiwo.ai/gpu-fraction", "gpu-fraction")
MEMORY_ANNOTATIONS = (MEMORY_ANNOTATION, "gpu-memory")
DEVICES_ANNOTATIONS = ("kaiwo.ai/gpu-count", "gpu-fraction-num-devices")
"""Of how many GPUs a fraction or memory by annotation is: our own word and KAI's, each beside those of its own."""

GPU_DRIVERS = frozenset({"gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com"})
"""DRA drivers of GPUs."""
GPU_CLASSES = GPU_DRIVERS | {"mig.nvidia.com", "vfio.gpu.nvidia.com"}
"""Device classes that these drivers install."""
SHARE_CLAIM = "kaiwo-gpu-share"
"""Of a pod's claims the one that its annotations asked for: what that is stands in these."""
CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""What a container asks for that wants a device of a class without writing a claim."""

_WHOLE = {"amd.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu.shared", "volcano.sh/vgpu-number"}
# NVIDIA names a slice by sevenths of the compute of a GPU, AMD a partition by how the eight dies are divided.
_MIG = re.compile(r"nvidia\.com/mig-(\d)g\..+")
_MIG_WHOLE = 7
_AMD_PARTITION = re.compile(r"amd\.com/(spx|dpx|qpx|cpx)_nps\d")
_AMD_SHARE = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
_MOST_CHARGED = 10**10
_QUANTITY = re.compile(r"\d{1,7}")


def gpus_of(spec: Any, annotations: Mapping[str, Any]) -> MilliGpu:
    """Milli-GPU of one pod: the larger of its containers' sum and its largest init container, as the scheduler counts.

    Shares asked for by annotation (KAI's and our own) count as their fraction; a share given in memory counts as a
    whole GPU, because how much of one it is depends on where it runs. In Workloads of Kueue shares by claims count as
    what they are charged, which stands in the overhead. 0 for a pod without GPUs.
    """
    running = sum([_container(item) for _, item in items(spec, "containers")])
    starting = 0
    for _, item in items(spec, "initContainers"):
        if _is_sidecar(item):
            running += _container(item)
        else:
            starting = max(starting, _container(item))
    charged = _quantity(mapping(spec, "overhead").get(CHARGE_RESOURCE))
    return MilliGpu(max(running, starting) or charged or _by_annotation(annotations))


def memory_of(annotations: Mapping[str, Any]) -> Bytes:
    """Bytes of GPU memory asked for by annotation (MiB); 0 for none."""
    for name in MEMORY_ANNOTATIONS:
        value = text(annotations, name).strip()
        if _QUANTITY.fullmatch(value):
            return parse_bytes(f"{value}Mi")
    return Bytes(0)


def devices_of(annotations: Mapping[str, Any]) -> int:
    """Of how many GPUs a pod with a fraction or memory by annotation asks for that; 1 where it does not say, and the
    larger number where it asks in our words and in KAI's."""
    words = zip(FRACTION_ANNOTATIONS, MEMORY_ANNOTATIONS, DEVICES_ANNOTATIONS, strict=True)
    asked = (number for fraction, memory, number in words if fraction in annotations or memory in annotations)
    return max((_devices(annotations, number) for number in asked), default=1)


def fractions_of(annotations: Mapping[str, Any]) -> list[tuple[MilliGpu, int]]:
    """(milli-GPU, of how many GPUs) by annotation: in our words, and in KAI's; none that cannot be read."""
    result = []
    for name, number in zip(FRACTION_ANNOTATIONS, DEVICES_ANNOTATIONS, strict=True):
        if value := text(annotations, name):
            try:
                result.append((parse_milli_gpu(value[:20]), _devices(annotations, number)))
            except UnitError:
                continue
    return result


def _devices(annotations: Mapping[str, Any], number: str) -> int:
    return min(_quantity(annotations.get(number)), MOST_GPUS) or 1


def milli_of(resource: str, amount: Any) -> int:
    """Milli-GPU of ``amount`` of a resource that pods request or Kueue charges; 0 for resources that are no GPUs."""
    if resource == CHARGE_RESOURCE:
        return _quantity(amount, _MOST_CHARGED)
    quantity = _quantity(amount)
    if resource in _WHOLE or resource.removeprefix(CLASS_PREFIX) in GPU_CLASSES:
        return quantity * WHOLE_GPU
    if mig := _MIG.fullmatch(resource):
        return quantity * -(-int(mig[1]) * WHOLE_GPU // _MIG_WHOLE)
    if partition := _AMD_PARTITION.fullmatch(resource):
        return quantity * WHOLE_GPU // _AMD_SHARE[partition[1]]
    return 0


def gpus_in(resource: str, thousandths: int) -> MilliGpu:
    """Milli-GPU of a quota, or of what is used of one, in thousandths of a resource."""
    return MilliGpu(thousandths * milli_of(resource, 1) // 1000)


def devices_in(resource: str, thousandths: int) -> int:
    """The same in thousandths of devices, as which quotas of whole GPUs, of instances and of partitions are counted:
    each is one, and 1,000 ``kaiwo.ai/milli-gpu`` are. 0 for resources that are no GPUs."""
    return thousandths // per_device(resource) if milli_of(resource, 1) else 0


def per_device(resource: str) -> int:
    """How many units of a resource one device is charged."""
    return WHOLE_GPU if resource == CHARGE_RESOURCE else 1


def resources_milli(resources: Any) -> int:
    """Milli-GPU of a ``resources`` block: limits, or requests where there are no limits."""
    result = sum(milli_of(str(name), amount) for name, amount in items(resources, "limits"))
    return result or sum(milli_of(str(name), amount) for name, amount in items(resources, "requests"))


def _container(container: Any) -> int:
    return resources_milli(mapping(container, "resources"))


def _is_sidecar(container: Any) -> bool:
    return text(container, "restartPolicy") == "Always"


def _quantity(amount: Any, most: int = 10**7) -> int:
    """An extended resource's count: whole numbers only, as the API server insists."""
    if isinstance(amount, int) and not isinstance(amount, bool):
        return max(0, min(amount, most))
    return int(amount) if isinstance(amount, str) and _QUANTITY.fullmatch(amount) else 0


def _by_annotation(annotations: Mapping[str, Any]) -> int:
    if fractions := fractions_of(annotations):
        return max(milli * devices for milli, devices in fractions)
    return devices_of(annotations) * WHOLE_GPU if memory_of(annotations) else 0
