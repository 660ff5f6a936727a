"""What is kept of the objects that matter. Nothing that anybody may have written makes a reader raise."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.checkpoints.status import ReportedStatus, status_from
from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.node_layout import LayoutState, read_layout
from kopt.cluster.objects.custom.mig_strategy import MigStrategy, StrategyError, read_strategy
from kopt.cluster.objects.custom.node_plan import reported_of
from kopt.cluster.objects.dcm_profiles import PROFILE_LABEL, Profile, ProfileError, read_profiles
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.cluster.objects.mig_configurations import (
    CONFIGURATION_LABEL,
    ConfigurationError,
    Configurations,
    read_configurations,
)
from kopt.cluster.workloads.kueue.reading import requests_of
from kopt.cluster.workloads.requests.gpus import gpus_of, memory_of
from kopt.core.hardware.amd_modes import ModeError, amd_mode
from kopt.core.node_plan.state import MigGpu, PartitionedGpu
from kopt.core.times import seconds_or_none
from kopt.core.units import Bytes, MilliGpu, parse_bytes
from kopt.policies.partitions.configurations import WHOLE

HOLDER = "partitions"
"""The value of kaiwo.ai/held on nodes that we have cut."""
WHOLE_RESOURCE = "nvidia.com/gpu"
AMD_GPU = "amd.com/gpu"
"""Stands beside modes for GPUs, or partitions of one mode, that AMD's plugin offers without saying which mode."""
_INSTANCE = re.compile(r"nvidia\.com/mig-(\dg\.\d{1,4}gb)|amd\.com/((?:spx|dpx|qpx|cpx)_nps[1248])")
_CORDON = "node.kubernetes.io/unschedulable"
_ISOLATION, _RECOMMENDED = "kaiwo.ai/gpu-isolation", "kaiwo.ai/recommended-memory"
_MIB = re.compile(r"\d{1,7}")


def instances_of(amounts: Mapping[str, Any]) -> dict[str, int]:
    """Instances by profile or mode, and whole GPUs, of thousandths by resource."""
    result: dict[str, int] = {}
    for resource, milli in amounts.items():
        match = _INSTANCE.fullmatch(resource)
        whole = {WHOLE_RESOURCE: WHOLE, AMD_GPU: AMD_GPU}.get(resource, "")
        name = match[1] or match[2] if match else whole
        if name and milli >= 1000:
            result[name] = result.get(name, 0) + int(milli) // 1000
    return result


@dataclass(frozen=True)
class ObservedStrategy:
    """A MIGStrategy; ``spec`` is None where it cannot be followed, and ``error`` says why."""

    document: Object = field(compare=False, repr=False)
    name: str
    version: str
    spec: MigStrategy | None
    error: str


def read_observed_strategy(document: Object) -> ObservedStrategy:
    spec, error = None, ""
    try:
        spec = read_strategy(document)
    except StrategyError as problem:
        error = str(problem)
    metadata = document["metadata"]
    metadata.pop("managedFields", None)
    return ObservedStrategy(document, metadata["name"], text(metadata, "resourceVersion"), spec, error)


@dataclass(frozen=True)
class ObservedNode:
    """``instances``: allocatable, by profile or mode, and whole GPUs. ``writer``: who wrote the label mig.config or, on
    nodes with AMD's GPUs, gpu-config-profile, as the API server knows it; empty for nobody."""

    document: Object = field(compare=False, repr=False)
    name: str
    labels: Mapping[str, str]
    taints: Sequence[Object]
    instances: Mapping[str, int]
    is_ready: bool
    is_cordoned: bool
    writer: str
    holder: str
    layout: LayoutState | None

    @property
    def configuration(self) -> str:
        return self.labels.get(CONFIGURATION_LABEL, self.labels.get(PROFILE_LABEL, ""))


def read_node(node: Object) -> ObservedNode:
    metadata = node["metadata"]
    writer = _writer(metadata)
    ready = {text(row, "status") for _, row in items(node, "status", "conditions") if text(row, "type") == "Ready"}
    names = ("name", "uid", "resourceVersion", "labels", "annotations")
    document: Object = {"metadata": {name: metadata[name] for name in names if name in metadata}}
    written = [taint for _, taint in items(node, "spec", "taints")]
    document["spec"] = {"unschedulable": at(node, "spec", "unschedulable") is True, "taints": written}
    taints = [taint for taint in written if text(taint, "key") != _CORDON]
    return ObservedNode(
        document,
        text(metadata, "name"),
        {str(name): str(value) for name, value in mapping(metadata, "labels").items()},
        taints,
        instances_of(requests_of({"overhead": mapping(node, "status", "allocatable")})),
        "True" in ready,
        at(node, "spec", "unschedulable") is True,
        writer,
        holder_of(document),
        read_layout(undo_of(document)) if holder_of(document) == HOLDER else None,
    )


def _writer(metadata: Object) -> str:
    for _, entry in items(metadata, "managedFields"):
        fields = mapping(entry, "fieldsV1", "f:metadata", "f:labels")
        if f"f:{CONFIGURATION_LABEL}" in fields or f"f:{PROFILE_LABEL}" in fields:
            return text(entry, "manager")
    return ""


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs, or claims, that has not ended. ``requests``: instances by profile or mode, and whole GPUs; of
    one that says nothing of their size ``memory_bytes``, and ``gpus`` for its share. ``waits``: kube-scheduler has
    found no node for it. ``checkpoint``: what ending it costs. ``ends_s``: its deadline, in Unix seconds."""

    key: Key
    uid: str
    node: str
    requests: Mapping[str, int]
    memory_bytes: Bytes
    waits: bool
    spec: Object = field(repr=False)
    isolation: str = ""
    gpus: MilliGpu = MilliGpu(0)
    owner: str = ""
    checkpoint: ReportedStatus | None = None
    ends_s: float | None = None


def read_pod(pod: Object) -> ObservedPod | None:
    if text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return None
    spec, annotations = mapping(pod, "spec"), mapping(pod, "metadata", "annotations")
    claims = any(True for _ in items(spec, "resourceClaims"))
    requests = instances_of(requests_of(spec))
    gpus = gpus_of(spec, annotations)
    if not requests and not claims and not gpus:
        return None
    node = text(spec, "nodeName")
    waits = not node and any(
        (text(row, "type"), text(row, "status"), text(row, "reason")) == ("PodScheduled", "False", "Unschedulable")
        for _, row in items(pod, "status", "conditions")
    )
    kept = ("nodeSelector", "affinity", "tolerations")
    return ObservedPod(
        key_of(pod),
        text(pod, "metadata", "uid"),
        node,
        requests,
        Bytes(0) if requests.keys() - {AMD_GPU} else _memory(annotations),
        waits,
        {name: spec[name] for name in kept if name in spec} if not node else {},
        text(annotations, _ISOLATION),
        gpus,
        next((text(item, "uid") for _, item in items(pod, "metadata", "ownerReferences")), ""),
        status_from(annotations) if node else None,
        _deadline_s(pod),
    )


def _deadline_s(pod: Object) -> float | None:
    """When it ends at the latest (activeDeadlineSeconds); None where nothing says so."""
    limit_s = count(pod, "spec", "activeDeadlineSeconds", default=0)
    started_s = seconds_or_none(text(pod, "status", "startTime"))
    return started_s + limit_s if limit_s and started_s is not None else None


def _memory(annotations: Mapping[str, Any]) -> Bytes:
    """What a pod needs that is to have an instance of its own: as sizing recommends it, else as its owner says."""
    if text(annotations, _ISOLATION) not in ("mig", "partition"):
        return Bytes(0)
    recommended = text(annotations, _RECOMMENDED)
    return parse_bytes(f"{recommended}Mi") if _MIB.fullmatch(recommended) else memory_of(annotations)


@dataclass(frozen=True)
class ObservedPlan:
    """A PartitioningPlan of Kaiwo's: selectors of the nodes that it cuts. ``spares_control_plane``: unless it says
    otherwise it leaves those out."""

    name: str
    selectors: tuple[Object, ...]
    spares_control_plane: bool = True


def read_partitioning_plan(document: Object) -> ObservedPlan:
    rules = (mapping(rule, "selector") for _, rule in items(document, "spec", "rules"))
    spares = at(document, "spec", "rollout", "excludeControlPlane") is not False
    return ObservedPlan(text(document, "metadata", "name"), tuple(dict(rule) for rule in rules if rule), spares)


@dataclass(frozen=True)
class ObservedConfigurations:
    """``by_name`` is empty where the ConfigMap cannot be read, and ``error`` says why."""

    by_name: Configurations = field(default_factory=dict)
    error: str = ""


def read_config_map(document: Object) -> ObservedConfigurations:
    try:
        return ObservedConfigurations(read_configurations(document))
    except ConfigurationError as error:
        return ObservedConfigurations(error=str(error))


@dataclass(frozen=True)
class ObservedProfiles:
    """Those of AMD's device config manager; empty where its ConfigMap cannot be read, and ``error`` says why."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    error: str = ""


def read_profile_map(document: Object) -> ObservedProfiles:
    try:
        return ObservedProfiles(read_profiles(document))
    except ProfileError as error:
        return ObservedProfiles(error=str(error))


@dataclass(frozen=True)
class ReportedModes:
    """What the node executor of a node reads from its driver. ``gpus``: whole ones of AMD's; ``partitions`` by mode.
    ``has_mig``: whether it has GPUs of NVIDIA's that can be cut."""

    node: str
    gpus: int
    partitions: Mapping[str, int]
    has_mig: bool = False


def read_reported_modes(plan: Object) -> ReportedModes:
    """Of a NodePlan; without GPUs where it reports none of AMD's."""
    reported = reported_of(plan)
    has_mig = reported.state is not None and any(isinstance(gpu, MigGpu) for gpu in reported.state.gpus)
    gpus = [] if reported.state is None else [gpu for gpu in reported.state.gpus if isinstance(gpu, PartitionedGpu)]
    partitions: dict[str, int] = {}
    for gpu in gpus:
        try:
            mode = amd_mode(f"{gpu.compute}/{gpu.memory}")
        except ModeError:
            return ReportedModes(reported.node, 0, {})
        partitions[mode.name] = partitions.get(mode.name, 0) + mode.partitions
    return ReportedModes(reported.node, len(gpus), partitions, has_mig)
