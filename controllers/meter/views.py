"""What is kept of pods, nodes and Workloads. Nothing that anybody may have written makes a reader raise."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kopt.cluster.client.resources import KAIWO_RESERVATIONS, Object
from kopt.cluster.objects.annotations import INDICES_ANNOTATION
from kopt.cluster.objects.custom.reservation import held_for
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.namespace import KAI_RESERVATIONS
from kopt.cluster.objects.progress import progress_of
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS
from kopt.cluster.workloads.owners import owner_of, run_of
from kopt.cluster.workloads.placement.node_capacity import shortfalls_of
from kopt.cluster.workloads.requests.gpus import FRACTION_ANNOTATIONS, devices_of, memory_of
from kopt.cluster.workloads.requests.pods import quantity
from kopt.core.cost.metering import Attributes, Idle, MeteredNode, Milliseconds, Offer
from kopt.core.cost.prices import CAPACITIES
from kopt.core.units import MIB, UnitError, parse_milli_gpu
from kopt.policies.cost.devices import (
    CORES_RESOURCES,
    MEMORY_PERCENT_RESOURCE,
    MEMORY_RESOURCES,
    NodeDevices,
    Request,
    is_device,
    node_devices,
)

PROVIDER_LABEL, CAPACITY_LABEL = "kaiwo.ai/provider", "kaiwo.ai/capacity"
"""On nodes, where the cloud's own labels do not say it."""
QUEUE_LABELS = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/local-queue-name",
    "kai.scheduler/queue",
    "volcano.sh/queue-name",
)
_FIRST_STEP = "kaiwo.ai/first-step"
"""By the log agent: where a run resumed."""
_GROUP_LABEL = "runai-gpu-group"
_SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-provisioning": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
_PROVIDERS = {"gce": "gcp"}
_CLOSING = ("NoSchedule", "NoExecute")
_OF_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
"""Taints that keep pods without GPUs away are no reservation."""
_MOST_DEVICES, _LONGEST = 1024, 253


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs that is bound. ``ended_ms`` is None also where it has ``ended`` and nothing says when."""

    uid: str
    node: str
    request: Request
    started_ms: Milliseconds
    ended: bool
    ended_ms: Milliseconds | None
    attributes: Attributes
    owner_uid: str


@dataclass(frozen=True)
class ObservedNode:
    """``devices`` is None where it offers no resource of GPUs; those of drivers are in ResourceSlices."""

    node: MeteredNode
    devices: NodeDevices | None


@dataclass(frozen=True)
class ObservedWorkload:
    """``owner_uid`` is that of the pods' owner."""

    owner_uid: str
    queue: str


def pod_reader(label_keys: tuple[str, ...]) -> Any:
    """``label_keys`` are kept of a pod's labels."""

    def read(pod: Object) -> ObservedPod | None:
        metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
        node, namespace = text(spec, "nodeName"), text(metadata, "namespace")
        request = request_of(pod)
        claims = at(spec, "resourceClaims")
        if not node or namespace in KAI_RESERVATIONS or not (_has_gpus(request) or claims):
            return None
        owner = owner_of(pod, "pods")
        labels = mapping(metadata, "labels")
        phase = text(pod, "status", "phase")
        return ObservedPod(
            text(metadata, "uid"),
            node,
            request,
            _scheduled_ms(pod),
            phase in ("Succeeded", "Failed"),
            _finished_ms(pod) if phase in ("Succeeded", "Failed") else None,
            Attributes(
                namespace,
                text(metadata, "name"),
                f"{KAIWO_RESERVATIONS.plural}/{reserved}"
                if (reserved := held_for(pod))
                else f"{owner.plural}/{owner.name}",
                next((text(labels, key) for key in QUEUE_LABELS if text(labels, key)), ""),
                selected(labels, label_keys),
                *_steps(pod),
                run_of(pod),
            ),
            next((text(item, "uid") for _, item in items(metadata, "ownerReferences") if at(item, "controller")), ""),
        )

    return read


def selected(labels: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: text(labels, key)[:_LONGEST] for key in keys if text(labels, key)}


def namespace_reader(label_keys: tuple[str, ...]) -> Any:
    return lambda document: selected(mapping(document, "metadata", "labels"), label_keys)


def read_workload(document: Object) -> ObservedWorkload | None:
    owner = next((text(item, "uid") for _, item in items(document, "metadata", "ownerReferences")), "")
    queue = text(document, "spec", "queueName")
    return ObservedWorkload(owner, queue) if owner and queue else None


def read_node(document: Object) -> ObservedNode:
    """What is broken is paid for as well: a node's capacity counts, not what can be had."""
    metadata = mapping(document, "metadata")
    labels = mapping(metadata, "labels")
    amounts = {name: _amount(value) for name, value in mapping(document, "status", "capacity").items()}
    product = next((text(labels, name) for name in GPU_PRODUCT_LABELS if text(labels, name)), "")
    devices = node_devices(
        {str(name): min(amount, _MOST_DEVICES) for name, amount in amounts.items()},
        product,
        memory_bytes=_amount(text(labels, "nvidia.com/gpu.memory")) * MIB,
        counted=min(_amount(text(labels, "nvidia.com/gpu.count")), _MOST_DEVICES),
        replicas=_amount(text(labels, "nvidia.com/gpu.replicas")) or 1,
    )
    node = MeteredNode(
        text(metadata, "uid"),
        text(metadata, "name"),
        devices.gpus if devices is not None else 0,
        Offer(
            devices.model if devices is not None else "",
            _provider(document),
            text(labels, "topology.kubernetes.io/region"),
            _capacity(labels),
        ),
        _time_ms(text(metadata, "creationTimestamp")) or 0,
        _closed(document),
        0 if devices is None else _broken(document, devices),
    )
    return ObservedNode(node, devices)


def _broken(document: Object, devices: NodeDevices) -> int:
    """GPUs that the node has and that its device plugin offers to nobody."""
    shortfalls = shortfalls_of(document, devices.units.__contains__)
    broken = sum(shortfall.broken * devices.units[name].compute for name, shortfall in shortfalls.items())
    return min(devices.gpus, int(broken))


def request_of(pod: Object) -> Request:
    """The larger of the containers' sum and of each init container, as the scheduler counts."""
    spec, annotations = mapping(pod, "spec"), mapping(pod, "metadata", "annotations")
    totals: dict[str, int] = {}
    limits: dict[str, int] = {}
    for _, container in items(spec, "containers"):
        for name, amount in _limits(container).items():
            (totals if is_device(name) else limits)[name] = (totals if is_device(name) else limits).get(
                name, 0
            ) + amount
    for _, container in items(spec, "initContainers"):
        for name, amount in _limits(container).items():
            if is_device(name):
                beside = totals.get(name, 0) if text(container, "restartPolicy") == "Always" else 0
                totals[name] = max(totals.get(name, 0), amount + beside)
    return Request(
        {name: min(amount, _MOST_DEVICES) for name, amount in totals.items() if amount},
        _fraction(annotations),
        int(memory_of(annotations)),
        min(devices_of(annotations), _MOST_DEVICES),
        next((limits[name] for name in MEMORY_RESOURCES if limits.get(name)), 0),
        limits.get(MEMORY_PERCENT_RESOURCE, 0),
        next((limits[name] for name in CORES_RESOURCES if limits.get(name)), 0),
        _indices(annotations),
        text(pod, "metadata", "labels", _GROUP_LABEL),
    )


def _has_gpus(request: Request) -> bool:
    return bool(request.units or request.fraction_milli or request.memory_bytes)


def _limits(container: Any) -> dict[str, int]:
    amounts = {**mapping(container, "resources", "requests"), **mapping(container, "resources", "limits")}
    return {str(name): _amount(value) for name, value in amounts.items() if "/" in str(name)}


def _amount(value: Any) -> int:
    try:
        return quantity(value) if isinstance(value, str | int) and value != "" else 0
    except ValueError:
        return 0


def _fraction(annotations: Mapping[str, Any]) -> int:
    for name in FRACTION_ANNOTATIONS:
        try:
            if value := text(annotations, name):
                return int(parse_milli_gpu(value[:20]))
        except UnitError:
            continue
    return 0


def _indices(annotations: Mapping[str, Any]) -> tuple[int, ...]:
    parts = text(annotations, INDICES_ANNOTATION)[:_LONGEST].split(",")
    return tuple(int(part) for part in parts if part.strip().isascii() and part.strip().isdigit())


def _scheduled_ms(pod: Object) -> Milliseconds:
    conditions = [item for _, item in items(pod, "status", "conditions")]
    bound: Mapping[str, Any] = next((item for item in conditions if text(item, "type") == "PodScheduled"), {})
    times = (text(bound, "lastTransitionTime"), text(pod, "status", "startTime"))
    valid_ms = [ms for ms in map(_time_ms, times) if ms is not None]
    return valid_ms[0] if valid_ms else _time_ms(text(pod, "metadata", "creationTimestamp")) or 0


def _finished_ms(pod: Object) -> Milliseconds | None:
    ends = [
        _time_ms(text(status, "state", "terminated", "finishedAt"))
        for _, status in items(pod, "status", "containerStatuses")
    ]
    if valid_ms := [ms for ms in ends if ms is not None]:
        return max(valid_ms)
    conditions = [item for _, item in items(pod, "status", "conditions") if text(item, "type") == "Ready"]
    return next(
        (_time_ms(text(item, "lastTransitionTime")) for item in conditions if text(item, "status") != "True"), None
    )


def _time_ms(written: str) -> Milliseconds | None:
    try:
        return int(datetime.fromisoformat(written).timestamp() * 1000) if written else None
    except (ValueError, OverflowError):
        return None


def _steps(pod: Object) -> tuple[int, int]:
    """The first and the last one; a run that does not say where it began has begun at its first."""
    progress = progress_of([pod])
    if progress is None:
        return -1, -1
    first = text(pod, "metadata", "annotations", _FIRST_STEP)
    return (int(first) if first.isascii() and first.isdigit() and len(first) < 16 else 0), progress.step


def _provider(node: Object) -> str:
    scheme = text(node, "spec", "providerID").partition("://")[0].lower()
    return text(node, "metadata", "labels", PROVIDER_LABEL) or _PROVIDERS.get(scheme, scheme)


def _capacity(labels: Mapping[str, Any]) -> str:
    if text(labels, CAPACITY_LABEL) in CAPACITIES:
        return text(labels, CAPACITY_LABEL)
    return "spot" if any(text(labels, key) == value for key, value in _SPOT.items()) else "on-demand"


def _closed(node: Object) -> Idle | None:
    ready = [item for _, item in items(node, "status", "conditions") if text(item, "type") == "Ready"]
    if at(node, "spec", "unschedulable") is True or any(text(item, "status") != "True" for item in ready):
        return Idle.UNAVAILABLE
    keys = [text(item, "key") for _, item in items(node, "spec", "taints") if text(item, "effect") in _CLOSING]
    if any(key.startswith("node.kubernetes.io/") for key in keys):
        return Idle.UNAVAILABLE
    return Idle.RESERVED if any(key not in _OF_GPUS for key in keys) else None
