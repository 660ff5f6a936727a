"""What is kept of the objects that matter. Nothing that anybody may have written makes a reader raise."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.node_layout import LayoutMarks, layout_marks
from kopt.cluster.objects.custom.mig_strategy import MigStrategy, StrategyError, read_strategy
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.mig_configurations import (
    CONFIGURATION_LABEL,
    ConfigurationError,
    Configurations,
    read_configurations,
)
from kopt.cluster.workloads.kueue.reading import requests_of
from kopt.cluster.workloads.requests.gpus import gpus_of, memory_of
from kopt.core.units import Bytes, parse_bytes
from kopt.policies.partitions.configurations import WHOLE

HOLDER = "partitions"
"""The value of kaiwo.ai/held on nodes that we have cut."""
WHOLE_RESOURCE = "nvidia.com/gpu"
_INSTANCE = re.compile(r"nvidia\.com/mig-(\dg\.\d{1,4}gb)")
_CORDON = "node.kubernetes.io/unschedulable"
_ISOLATION, _RECOMMENDED = "kaiwo.ai/gpu-isolation", "kaiwo.ai/recommended-memory"
_MIB = re.compile(r"\d{1,7}")


def instances_of(amounts: Mapping[str, Any]) -> dict[str, int]:
    """Instances by profile, and whole GPUs, of thousandths by resource."""
    result: dict[str, int] = {}
    for resource, milli in amounts.items():
        match = _INSTANCE.fullmatch(resource)
        name = match[1] if match else WHOLE if resource == WHOLE_RESOURCE else ""
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
    """``instances``: allocatable, by profile, and whole GPUs. ``writer``: who wrote the label mig.config, as the API
    server knows it; empty for nobody."""

    document: Object = field(compare=False, repr=False)
    name: str
    labels: Mapping[str, str]
    taints: Sequence[Object]
    instances: Mapping[str, int]
    is_ready: bool
    is_cordoned: bool
    writer: str
    holder: str
    marks: LayoutMarks | None

    @property
    def configuration(self) -> str:
        return self.labels.get(CONFIGURATION_LABEL, "")


def read_node(node: Object) -> ObservedNode:
    metadata = node["metadata"]
    writer = _writer(metadata)
    ready = {text(row, "status") for _, row in items(node, "status", "conditions") if text(row, "type") == "Ready"}
    names = ("name", "uid", "resourceVersion", "labels", "annotations")
    document: Object = {"metadata": {name: metadata[name] for name in names if name in metadata}}
    document["spec"] = {"unschedulable": at(node, "spec", "unschedulable") is True}
    taints = [taint for _, taint in items(node, "spec", "taints") if text(taint, "key") != _CORDON]
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
        layout_marks(undo_of(document)) if holder_of(document) == HOLDER else None,
    )


def _writer(metadata: Object) -> str:
    for _, entry in items(metadata, "managedFields"):
        if f"f:{CONFIGURATION_LABEL}" in mapping(entry, "fieldsV1", "f:metadata", "f:labels"):
            return text(entry, "manager")
    return ""


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs, or claims, that has not ended. ``requests``: instances by profile, and whole GPUs; of one that
    needs memory alone ``memory_bytes``. ``waits``: kube-scheduler has found no node for it."""

    key: Key
    uid: str
    node: str
    requests: Mapping[str, int]
    memory_bytes: Bytes
    waits: bool
    has_claims: bool
    spec: Object = field(repr=False)


def read_pod(pod: Object) -> ObservedPod | None:
    if text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return None
    spec, annotations = mapping(pod, "spec"), mapping(pod, "metadata", "annotations")
    claims = any(True for _ in items(spec, "resourceClaims"))
    requests = instances_of(requests_of(spec))
    if not requests and not claims and not gpus_of(spec, annotations):
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
        Bytes(0) if requests else _memory(annotations),
        waits,
        claims,
        {name: spec[name] for name in kept if name in spec} if not node else {},
    )


def _memory(annotations: Mapping[str, Any]) -> Bytes:
    """What a pod needs that is to have an instance of its own: as sizing recommends it, else as its owner says."""
    if text(annotations, _ISOLATION) not in ("mig", "partition"):
        return Bytes(0)
    recommended = text(annotations, _RECOMMENDED)
    return parse_bytes(f"{recommended}Mi") if _MIB.fullmatch(recommended) else memory_of(annotations)


@dataclass(frozen=True)
class ObservedPlan:
    """A PartitioningPlan of Kaiwo's: selectors of the nodes that it cuts."""

    name: str
    selectors: tuple[Object, ...]


def read_partitioning_plan(document: Object) -> ObservedPlan:
    rules = (mapping(rule, "selector") for _, rule in items(document, "spec", "rules"))
    return ObservedPlan(text(document, "metadata", "name"), tuple(dict(rule) for rule in rules if rule))


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
