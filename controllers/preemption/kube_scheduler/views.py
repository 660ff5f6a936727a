"""Pods and nodes, as far as they matter here. Amounts are thousandths of a resource's unit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.resources import PODS, Key, Object, key_of
from kopt.cluster.objects.fields import at, count, has_condition, items, mapping, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.kueue.objects import Evicting, GpuPod, RecordedDecision
from kopt.cluster.workloads.kueue.reading import amount, annotations_of, evicting_of, recorded_decision, requests_of
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.cluster.workloads.workload_class import class_of_pod
from kopt.core.scheduling.classify import Classified
from kopt.core.switches import Owner
from kopt.core.times import seconds_or_none

_NOBODY: Object = {}
_NO_OWNER = Owner("", "", "")
_SCHEDULER = "default-scheduler"
KUEUE = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed")
_KEEPS_OFF = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class PlainPod:
    """A pod that has not ended. ``gang``: its namespace and its owner's uid, or its own where it has none."""

    gpu_pod: GpuPod
    gang: tuple[str, str]
    owner: Object
    node: str
    priority: int
    requests: Mapping[str, int]
    open: bool
    """It has no node yet, and kube-scheduler preempts no pod for it."""
    refused: bool
    """kube-scheduler found no room for it."""
    promised: str
    """The node whose room is kept for it."""
    terminating: bool
    batch: bool
    """It may be evicted: its owner replaces it (steps of workflows and the like end for good), and no queue decides
    about it."""
    simple: bool
    """Whether it fits on a node depends on selector, taints and amounts alone."""
    created_s: float
    started_s: float | None
    ends_s: float = 0.0
    """By when a terminating pod should have ended."""
    grace_s: float = 0.0
    """Its grace period for that."""
    mode: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Any] = ()
    evicting: Evicting | None = None
    decision: RecordedDecision | None = None
    queue: str = ""
    """Of KAI's; empty for pods of kube-scheduler's."""
    gates: tuple[str, ...] = ()
    whose: Owner = _NO_OWNER
    """Of what percentages count."""
    classified: Classified | None = None
    """Its class; None where it is not ours to evict anyway."""

    @property
    def key(self) -> Key:
        return self.gpu_pod.key

    @property
    def resource(self) -> str:
        """The one GPU resource that it requests; empty for none or several."""
        result = [name for name, value in self.requests.items() if value and is_gpu(name)]
        return result[0] if len(result) == 1 else ""


@dataclass(frozen=True)
class PlainNode:
    """A node that takes pods."""

    name: str
    room: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]

    def accepts(self, pod: PlainPod) -> bool:
        selected = all(self.labels.get(key) == value for key, value in pod.selector.items())
        return selected and all(
            any(_tolerates(toleration, taint) for toleration in pod.tolerations) for taint in self.taints
        )


def plain_pod(pod: Object) -> PlainPod | None:
    """None for pods that have ended; nothing that anybody may have written makes this raise."""
    if text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return None
    metadata, spec = pod["metadata"], mapping(pod, "spec")
    labels, annotations = mapping(metadata, "labels"), annotations_of(pod)
    requests = requests_of(spec)
    owner = next((item for _, item in items(metadata, "ownerReferences") if at(item, "controller") is True), _NOBODY)
    gpus = sum(value for name, value in requests.items() if is_gpu(name))
    gpu_pod = GpuPod(
        key_of(pod),
        text(metadata, "uid"),
        "",
        text(owner, "uid"),
        gpus,
        annotations,
        text(metadata, "resourceVersion"),
        seconds_or_none(text(pod, "status", "startTime")),
    )
    node = text(spec, "nodeName")
    ours = text(spec, "schedulerName") == _SCHEDULER and not any(name in labels for name in KUEUE)
    return PlainPod(
        gpu_pod,
        (gpu_pod.key[0], text(owner, "uid") or gpu_pod.uid),
        owner,
        node,
        priority if isinstance(priority := at(spec, "priority"), int) else 0,
        requests,
        open=not node and ours and text(spec, "preemptionPolicy") == "Never",
        refused=_is_unschedulable(pod),
        promised=text(pod, "status", "nominatedNodeName"),
        terminating=bool(text(metadata, "deletionTimestamp")),
        batch=ours and text(owner, "kind") == "Job",
        simple=not (at(spec, "affinity") or at(spec, "topologySpreadConstraints") or at(spec, "resourceClaims")),
        created_s=seconds_or_none(text(metadata, "creationTimestamp")) or 0.0,
        started_s=seconds_or_none(text(pod, "status", "startTime")),
        ends_s=seconds_or_none(text(metadata, "deletionTimestamp")) or 0.0,
        grace_s=float(count(metadata, "deletionGracePeriodSeconds", default=0)),
        mode=annotations.get(MODE_ANNOTATION, ""),
        selector={str(key): str(value) for key, value in mapping(spec, "nodeSelector").items()},
        tolerations=[item for _, item in items(spec, "tolerations")],
        evicting=evicting_of(annotations),
        decision=recorded_decision(annotations),
        whose=owner_of(pod, PODS.plural),
        classified=class_of_pod(pod) if gpus and owner else None,
    )


def plain_node(node: Object) -> PlainNode | None:
    """None for nodes that accept no pods."""
    if not has_condition(node, "Ready") or at(node, "spec", "unschedulable") is True:
        return None
    room = Counter({str(name): amount(value) for name, value in mapping(node, "status", "allocatable").items()})
    labels = {str(key): str(value) for key, value in mapping(node, "metadata", "labels").items()}
    taints = [
        (text(item, "key"), text(item, "value"), text(item, "effect")) for _, item in items(node, "spec", "taints")
    ]
    kept = tuple(taint for taint in taints if taint[2] in _KEEPS_OFF)
    return PlainNode(node["metadata"]["name"], room, labels, kept)


def _is_unschedulable(pod: Object) -> bool:
    return any(
        text(item, "type") == "PodScheduled" and text(item, "reason") == "Unschedulable"
        for _, item in items(pod, "status", "conditions")
    )


def _tolerates(toleration: Any, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if text(toleration, "effect") not in ("", effect) or text(toleration, "key") not in ("", key):
        return False
    exists = text(toleration, "operator") == "Exists"
    return exists or (text(toleration, "key") == key and text(toleration, "value") == value)
