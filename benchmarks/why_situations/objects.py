"""Builders of Kubernetes objects, and the situation that holds them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
NOW_S = 1_900_000_000.0
SPACE = "team"


@dataclass
class Cluster:
    """Objects by kind; ``target``: the kind and name of what waits."""

    nodes: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    jobs: list[Object] = field(default_factory=list)
    workloads: list[Object] = field(default_factory=list)
    local_queues: list[Object] = field(default_factory=list)
    cluster_queues: list[Object] = field(default_factory=list)
    cohorts: list[Object] = field(default_factory=list)
    flavors: list[Object] = field(default_factory=list)
    kai_queues: list[Object] = field(default_factory=list)
    kai_groups: list[Object] = field(default_factory=list)
    volcano_queues: list[Object] = field(default_factory=list)
    volcano_groups: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)


@dataclass
class Constructed:
    """``accepted``: further codes that are as right as ``label``, where several constraints bind by construction."""

    engine: str
    label: str
    cluster: Cluster
    accepted: frozenset[str] = frozenset()
    name: str = "train"

    @property
    def right(self) -> frozenset[str]:
        return self.accepted | {self.label}


def stamp(ago_s: float = 0.0) -> str:
    return datetime.fromtimestamp(NOW_S - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str, space: str = SPACE, **more: Any) -> Object:
    result: Object = {"name": name, "uid": f"uid-{space}-{name}", "creationTimestamp": stamp(600), "labels": {}}
    result |= {"annotations": {}, "resourceVersion": "1"} | ({"namespace": space} if space else {})
    return result | more


def node(
    name: str,
    gpus: int = 8,
    *,
    cpu: int = 96,
    memory_gib: int = 1024,
    labels: dict[str, str] | None = None,
    taints: list[Object] | None = None,
    cordoned: bool = False,
    ready: bool = True,
    most_pods: int = 110,
    resource: str = GPU,
) -> Object:
    amounts = {"cpu": str(cpu), "memory": f"{memory_gib}Gi", "pods": str(most_pods)}
    amounts |= {resource: str(gpus)} if gpus else {}
    spec: Object = {"taints": list(taints or [])}
    if cordoned:
        spec |= {"unschedulable": True}
        spec["taints"].append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    if not ready:
        spec["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    status = {
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    return {
        "metadata": meta(name, "", labels={"kubernetes.io/hostname": name} | (labels or {})),
        "spec": spec,
        "status": status,
    }


def taint(key: str, value: str = "") -> Object:
    return {"key": key, "effect": "NoSchedule"} | ({"value": value} if value else {})


def pod_spec(
    gpus: int = 1, *, cpu: int = 4, memory_gib: int = 16, resource: str = GPU, extra: Object | None = None, **spec: Any
) -> Object:
    requests = {"cpu": str(cpu), "memory": f"{memory_gib}Gi"} | ({resource: str(gpus)} if gpus else {})
    limits = ({resource: str(gpus)} if gpus else {}) | (extra or {})
    return {
        "containers": [
            {
                "name": "main",
                "image": "team/train",
                "resources": {"requests": requests | (extra or {}), "limits": limits},
            }
        ]
    } | spec


def owner(kind: str, name: str, space: str = SPACE, version: str = "batch/v1") -> Object:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{space}-{name}", "controller": True}


def pod(
    name: str,
    spec: Object,
    *,
    on: str = "",
    message: str = "",
    owned_by: Object | None = None,
    space: str = SPACE,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    condition: Object = {"type": "PodScheduled", "status": "True" if on else "False", "lastTransitionTime": stamp(300)}
    condition |= {"reason": "Unschedulable", "message": message} if message else {}
    more: Object = {"labels": labels or {}, "annotations": annotations or {}}
    more |= {"ownerReferences": [owned_by]} if owned_by else {}
    status = {"phase": "Running" if on else "Pending", "conditions": [condition]}
    return {
        "metadata": meta(name, space, **more),
        "spec": spec | ({"nodeName": on} if on else {}),
        "status": status | ({"startTime": stamp(200)} if on else {}),
    }


def job(name: str, spec: Object, *, pods: int = 1, queue: str = "", suspended: bool = False) -> Object:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {
        "metadata": meta(name, labels=labels),
        "spec": {"parallelism": pods, "completions": pods, "suspend": suspended, "template": {"spec": spec}},
        "status": {},
    }


def event(about: Object, note: str, reason: str = "FailedScheduling") -> Object:
    metadata = about["metadata"]
    return {
        "metadata": meta(f"{metadata['name']}.1", metadata.get("namespace", "")),
        "reason": reason,
        "note": note,
        "regarding": {"uid": metadata["uid"], "name": metadata["name"]},
        "eventTime": stamp(30),
        "reportingController": "default-scheduler",
    }
