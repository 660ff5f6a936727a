"""What a pod asks for, read from its manifest as the scheduler counts it."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.workloads.requests.gpus import devices_of, fractions_of, memory_of, milli_of
from kopt.core.hardware.bandwidth import BandwidthMinimum
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import Ask, PodRequest, TopologyPreference
from kopt.core.units import WHOLE_GPU, Bytes, MilliGpu, parse_bytes
from kopt.core.workload.gpu_share import CHARGE_RESOURCE

WORKLOAD_LABEL = "kgwe.nvidia.io/workload"
PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a GPUWorkload asks for the pods that carry its name."""

    memory_bytes: Bytes = Bytes(0)
    topology: TopologyPreference = TopologyPreference.ANY
    required: bool = False
    minimum: BandwidthMinimum | None = None
    gpus: int = 0
    """Of all its pods together; 0 where it does not say."""
    together: bool = True
    """Whether its pods work on one thing; replicas of an inference service do not."""


NO_WISH = Wish()


def ask_of(pod: Object, wish: Wish = NO_WISH) -> Ask:
    """The request of a pod. Raises ValueError for amounts that no API server lets through."""
    spec = _mapping(pod.get("spec"))
    annotations = _mapping(_mapping(pod.get("metadata")).get("annotations"))
    totals = _totals(spec)
    units = {name: count for name, count in totals.items() if count and is_gpu(name)}
    share_bytes = Bytes(0)
    count, share = sum(units.values()), WHOLE_GPU
    if not units:
        count, share, share_bytes = _by_annotation(annotations)
    gpus = GpuRequest(count, share, wish.memory_bytes if count else Bytes(0), _models(spec) if count else ())
    request = PodRequest(
        totals.get("cpu", 0), Bytes(totals.get("memory", 0)), gpus, wish.topology, wish.required, wish.minimum
    )
    return Ask(request, units, share_bytes)


@functools.lru_cache(maxsize=1024)
def is_gpu(resource: str) -> bool:
    """Whether nodes offer a resource that counts GPUs, slices or partitions; each such name is a pool of its own. What
    Kueue charges for shares by claims is on no node (``gpus.devices_in``)."""
    return resource != CHARGE_RESOURCE and milli_of(resource, 1) > 0


@functools.lru_cache(maxsize=4096)
def quantity(text: object, milli: bool = False) -> int:
    """A Kubernetes quantity as an integer, rounded up; in thousandths for CPU. Raises ValueError for anything else."""
    if isinstance(text, int) and not isinstance(text, bool):
        return max(0, text * (1000 if milli else 1))
    written = str(text).strip()
    for suffix, factor in (("m", 1e-3), ("u", 1e-6), ("n", 1e-9)):
        if written.endswith(suffix):
            return _ceil(float(written[: -len(suffix)]) * factor * (1000 if milli else 1))
    if written.endswith("Ei") or written.endswith("E"):
        return _ceil(float(written.rstrip("Ei")) * (1 << 60 if written.endswith("i") else 10**18))
    try:
        return _ceil(float(written) * (1000 if milli else 1))
    except ValueError:
        return int(parse_bytes(written)) * (1000 if milli else 1)


def quantity_or_zero(text: object) -> int:
    """0 for anything that is no quantity."""
    try:
        return quantity(text)
    except (TypeError, ValueError):
        return 0


def _ceil(value: float) -> int:
    if not math.isfinite(value) or value < 0 or value > 2**62:
        raise ValueError(f"{value:g} is not an amount of a resource")
    return math.ceil(round(value, 6))


def _totals(spec: Mapping[str, Any]) -> dict[str, int]:
    """Amounts by resource: running containers and sidecars together, or an init container where that is more."""
    running = [_requests(item) for item in _list(spec.get("containers"))]
    totals = running[0] if len(running) == 1 else _added(running)
    beside: list[dict[str, int]] = []
    starting: list[dict[str, int]] = []
    for container in _list(spec.get("initContainers")):
        wanted = _requests(container)
        if _mapping(container).get("restartPolicy") == "Always":
            beside.append(wanted)
            starting.append(_added(beside))
        else:
            starting.append(_added([*beside, wanted]))
    if beside:
        totals = _added([totals, *beside])
    for wanted in starting:
        totals = {name: max(totals.get(name, 0), wanted.get(name, 0)) for name in totals.keys() | wanted.keys()}
    if spec.get("resources"):
        totals = totals | _requests(spec)
    if spec.get("overhead"):
        totals = _added([totals, _requests({"resources": {"requests": spec["overhead"]}})])
    return totals


def _requests(container: Any) -> dict[str, int]:
    resources = _mapping(_mapping(container).get("resources"))
    wanted = _mapping(resources.get("limits")) | _mapping(resources.get("requests"))
    return {name: quantity(amount, name == "cpu") for name, amount in wanted.items() if isinstance(amount, str | int)}


def _added(parts: list[dict[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            totals[name] = totals.get(name, 0) + amount
    return totals


def _by_annotation(annotations: Mapping[str, Any]) -> tuple[int, MilliGpu, Bytes]:
    """(count, share, bytes of the share) of a pod that asks for a part of GPUs; a count of 0 when it does not."""
    readable = [
        (devices * max(1, milli // WHOLE_GPU), MilliGpu(min(milli, WHOLE_GPU)))
        for milli, devices in fractions_of(annotations)
        if milli and (milli < WHOLE_GPU or milli % WHOLE_GPU == 0)
    ]
    if readable:
        count, share = max(readable, key=lambda each: each[0] * each[1])
        return count, share, Bytes(0)
    memory = memory_of(annotations)
    return (devices_of(annotations), WHOLE_GPU, memory) if memory else (0, WHOLE_GPU, Bytes(0))


def _models(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The product a pod selects. The scheduler enforces it; here it says which nodes such pods can use at all."""
    selector = _mapping(spec.get("nodeSelector"))
    return tuple(value for label in PRODUCT_LABELS if isinstance(value := selector.get(label), str))[:1]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
