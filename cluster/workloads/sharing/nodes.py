"""How nodes share their GPUs now, and which pods could: read off nodes, pods and the device plugin's configurations.

Labels are those of NVIDIA's feature discovery (``internal/lm``, v0.17). The daemon of MPS runs where the plugin's
configuration has MPS (``nvidia.com/mps.capable``), in pods of a DaemonSet called ``…-mps-control-daemon``; the plugin
offers nothing until it is ready (``internal/plugin/mps.go``, ``waitForDaemon``).
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kopt.cluster.client.api import Forbidden, Kube, NotFound
from kopt.cluster.client.resources import CONFIG_MAPS, DAEMON_SETS, NODES, PODS, UNFINISHED_PODS, Object, Resource
from kopt.cluster.objects.conditions import condition, is_true
from kopt.cluster.objects.fields import items, mapping, text
from kopt.cluster.workloads.requests.external import RESOURCE_SLICES
from kopt.cluster.workloads.workload_class import class_of_pod
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.gpu_share import ShareError, parse_share
from kopt.formats.gpu_shares import WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import MPS_THREADS, REPLICAS_LABEL, STRATEGY_LABEL
from kopt.formats.sharing_terms import CONFIGURATION_LABEL, GPU_DRIVER, ReplicaSetting
from kopt.formats.yaml_text import YamlError, load_yaml

SHARED_GPU_RESOURCE = "nvidia.com/gpu.shared"
MPS_DAEMON = "mps-control-daemon"
_AMD = "amd.com/gpu"
_GPU_RESOURCES = (WHOLE_GPU_RESOURCE, SHARED_GPU_RESOURCE, _AMD)
_MODES = {str(mode): mode for mode in (SharingMode.MPS, SharingMode.TIME_SLICING)}


@dataclass(frozen=True)
class GpuPod:
    """A pod on a node. ``gpus``: devices, or replicas of some, that it requests. ``guarantee_percent`` and ``mib``: by
    its own annotations, 0 for nothing. ``threads_percent``: by its environment, None for nothing."""

    namespace: str
    name: str
    workload_class: WorkloadClass
    gpus: int
    guarantee_percent: int = 0
    mib: int = 0
    threads_percent: int | None = None


@dataclass(frozen=True)
class SharingNode:
    """A node with GPUs. ``gpus``: physical ones. ``in_force``: how it shares them. ``configuration``: the value of its
    label, empty without. ``mps_ready``: whether its daemon is; None where it has none. ``has_mps``: whether the cluster
    would start one; None where that may not be read."""

    name: str
    executor: SharingExecutor
    gpus: int
    gpu_mib: int
    capability: tuple[int, int] | None
    has_partitions: bool
    in_force: ReplicaSetting
    configuration: str
    mps_ready: bool | None
    has_mps: bool | None = None
    pods: tuple[GpuPod, ...] = ()


@dataclass(frozen=True)
class SharingCluster:
    """At one moment. ``configurations``: by name, as in the ConfigMap; None where there is none."""

    nodes: tuple[SharingNode, ...]
    configurations: Mapping[str, object] | None


async def read_sharing_cluster(kube: Kube, config_map: tuple[str, str]) -> SharingCluster:
    """``config_map``: namespace and name of the device plugin's configurations. Raises ApiError."""
    nodes, pods, slices, configurations, daemon_sets = await asyncio.gather(
        kube.list(NODES),
        kube.list(PODS, field_selector=UNFINISHED_PODS),
        _listed(kube, RESOURCE_SLICES),
        _configurations(kube, config_map),
        _listed(kube, DAEMON_SETS),
    )
    return sharing_cluster(nodes.items, pods.items, slices or [], configurations, daemon_sets)


def sharing_cluster(
    nodes: Iterable[Object],
    pods: Iterable[Object],
    slices: Iterable[Object],
    config_map: Object | None,
    daemon_sets: Iterable[Object] | None = None,
) -> SharingCluster:
    """Of objects as the API server has them; None where they may not be read."""
    by_node: dict[str, list[GpuPod]] = {}
    daemons: dict[str, bool] = {}
    for pod in pods:
        node = text(pod, "spec", "nodeName")
        if MPS_DAEMON in text(pod, "metadata", "name"):
            daemons[node] = is_true(condition(pod, "Ready"))
        elif node and (with_gpus := gpu_pod(pod)) is not None:
            by_node.setdefault(node, []).append(with_gpus)
    driven = {text(item, "spec", "nodeName") for item in slices if text(item, "spec", "driver") == GPU_DRIVER}
    has_mps = None if daemon_sets is None else any(MPS_DAEMON in text(item, "metadata", "name") for item in daemon_sets)
    read = (_node(node, driven, daemons, by_node) for node in nodes)
    listed = sorted((replace(node, has_mps=has_mps) for node in read if node is not None), key=lambda node: node.name)
    return SharingCluster(tuple(listed), None if config_map is None else dict(_documents(config_map)))


def _node(
    node: Object, driven: set[str], daemons: Mapping[str, bool], pods: Mapping[str, list[GpuPod]]
) -> SharingNode | None:
    name, labels = text(node, "metadata", "name"), mapping(node, "metadata", "labels")
    allocatable = mapping(node, "status", "allocatable")
    offered = {resource: gpu_amount(allocatable, resource) for resource in _GPU_RESOURCES}
    partitions = any(str(key).startswith("nvidia.com/mig-") and _number(each) for key, each in allocatable.items())
    partitions |= "-MIG-" in text(labels, "nvidia.com/gpu.product")
    if offered[_AMD]:
        executor = SharingExecutor.NONE
    elif name in driven:
        executor = SharingExecutor.DRA
    elif any(offered.values()) or partitions:
        executor = SharingExecutor.DEVICE_PLUGIN
    else:
        return None
    setting = setting_in_force(labels)
    count = _number(labels.get("nvidia.com/gpu.count")) or sum(offered.values()) // setting.replicas
    mib = _number(labels.get("nvidia.com/gpu.memory"))
    configuration = text(labels, CONFIGURATION_LABEL)
    common = (name, executor, count, mib, _capability(labels), partitions, setting, configuration, daemons.get(name))
    return SharingNode(*common, pods=tuple(sorted(pods.get(name, ()), key=lambda pod: (pod.namespace, pod.name))))


def setting_in_force(labels: Mapping[str, object]) -> ReplicaSetting:
    """By what feature discovery has read from the configuration that is in force."""
    mode, replicas = _MODES.get(text(labels, STRATEGY_LABEL)), _number(labels.get(REPLICAS_LABEL))
    return ReplicaSetting(SharingMode.EXCLUSIVE) if mode is None or replicas < 2 else ReplicaSetting(mode, replicas)


def gpu_amount(amounts: Mapping[str, object], *resources: str) -> int:
    """Of these resources together."""
    return sum(_number(amounts.get(resource)) for resource in resources)


def _capability(labels: Mapping[str, object]) -> tuple[int, int] | None:
    major, minor = labels.get("nvidia.com/gpu.compute.major"), labels.get("nvidia.com/gpu.compute.minor")
    return (_number(major), _number(minor)) if _number(major) else None


def gpu_pod(pod: Object) -> GpuPod | None:
    """None for pods without GPUs, by resource or claim."""
    containers = [container for _, container in items(pod, "spec", "containers")]
    gpus = sum(
        _number(mapping(each, "resources", "limits").get(name)) for each in containers for name in _GPU_RESOURCES
    )
    gpus = gpus or sum(1 for _ in items(pod, "spec", "resourceClaims"))
    if not gpus:
        return None
    try:
        share = parse_share(mapping(pod, "metadata", "annotations"))
    except ShareError:
        share = None
    if share is not None:
        # One claim may be of several GPUs.
        gpus = max(gpus, share.count)
    percent, mib = (0, 0) if share is None else (-(-share.milli * 100 // WHOLE_GPU), share.mib)
    threads = next(_threads(containers), None)
    namespace, name = text(pod, "metadata", "namespace"), text(pod, "metadata", "name")
    return GpuPod(namespace, name, class_of_pod(pod).workload_class, gpus, percent, mib, threads)


def _threads(containers: Iterable[Object]) -> Iterator[int]:
    for container in containers:
        for _, variable in items(container, "env"):
            percent = _number(text(variable, "value")) if text(variable, "name") == MPS_THREADS else 0
            if 0 < percent <= 100:
                yield percent


def _documents(config_map: Object) -> Iterator[tuple[str, object]]:
    for name, written in mapping(config_map, "data").items():
        try:
            yield str(name), load_yaml(str(written))
        except YamlError:
            yield str(name), None


async def _configurations(kube: Kube, key: tuple[str, str]) -> Object | None:
    try:
        return await kube.get(CONFIG_MAPS, key[1], key[0])
    except NotFound:
        return None


async def _listed(kube: Kube, resource: Resource) -> list[Object] | None:
    """None where the kind is not served, or may not be read."""
    try:
        return (await kube.list(resource)).items
    except (NotFound, Forbidden):
        return None


def _number(amount: object) -> int:
    written = "" if isinstance(amount, bool) else str(amount)
    return int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0
