"""Nodes and GPU pods, reduced to what decides whether a test may start, go on, or has ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.objects.fields import at, has_condition, items, mapping, text
from kopt.cluster.workloads.jobs import JOB_NAME_LABEL
from kopt.cluster.workloads.node_selection import GPU_PRODUCT_LABELS, runs_on
from kopt.cluster.workloads.requests.gpus import gpus_of, milli_of
from kopt.controllers.pairwise.jobs import BENCHMARK_LABEL, INDEX_ANNOTATION
from kopt.core.times import seconds

_DISRUPTED = ("Evicted", "Preempting", "NodeLost", "Shutdown", "Terminated")
_NEAR_LABELS = ("kaiwo.ai/nvlink-domain", "kaiwo.ai/topology-rack", "kaiwo.ai/topology-block")


@dataclass(frozen=True)
class ObservedNode:
    """``gpus`` by resource name, as allocatable; ``ready``: pods may be bound to it."""

    name: str
    uid: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    gpus: Mapping[str, int]
    ready: bool
    created_s: float

    @property
    def hardware(self) -> str:
        return next((self.labels[name] for name in GPU_PRODUCT_LABELS if self.labels.get(name)), "")

    @property
    def levels(self) -> tuple[str, ...]:
        """Block, rack and NVLink domain, as far as they are known."""
        return tuple([self.labels[name] for name in reversed(_NEAR_LABELS) if self.labels.get(name)])

    def nearness(self, other: "ObservedNode") -> str:
        """The closest level that two nodes share, by labels; empty for none."""
        return next(
            (
                near_label
                for near_label in _NEAR_LABELS
                if self.labels.get(near_label) and self.labels[near_label] == other.labels.get(near_label)
            ),
            "",
        )


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs, or of a test. ``wants`` are extended GPU resources; ``exit_code`` of its first container.

    ``pending``: not bound, and nothing holds it back; ``unschedulable``: the scheduler reports that there is no room.
    """

    key: Key
    uid: str
    node: str
    ended: bool
    pending: bool
    unschedulable: bool
    priority: int
    wants: Mapping[str, int]
    job: Key | None = None
    """Of a test."""
    rank: str = ""
    succeeded: bool = False
    exit_code: int | None = None
    finished_s: float | None = None
    evicted: bool = False
    """Deleted, pre-empted or evicted by others."""
    spec: Object = field(default_factory=dict)
    """Where it may run; of one that waits."""

    def may_use(self, resource: str, node: ObservedNode) -> bool:
        """Whether GPUs of this resource on this node could be what it waits for."""
        wanted = self.wants.get(resource, 0 if self.wants else 1)
        return 0 < wanted <= node.gpus.get(resource, 0) and runs_on(self.spec, node.labels, node.taints)


def read_node(node: Object) -> ObservedNode:
    """Also of a node without GPUs: they are missing while a device plugin restarts."""
    gpus = {
        str(name): int(amount)
        for name, amount in items(node, "status", "allocatable")
        if milli_of(str(name), _whole(amount))
    }
    metadata = node["metadata"]
    labels = {str(key): str(value) for key, value in mapping(metadata, "labels").items()}
    taints = tuple([dict(item) for _, item in items(node, "spec", "taints")])
    usable = (
        has_condition(node, "Ready")
        and at(node, "spec", "unschedulable") is not True
        and "deletionTimestamp" not in metadata
    )
    return ObservedNode(
        metadata["name"], metadata["uid"], labels, taints, gpus, usable, seconds(metadata["creationTimestamp"])
    )


def read_pod(pod: Object) -> ObservedPod | None:
    """None for a pod that neither has GPUs nor is of a test."""
    spec, metadata = mapping(pod, "spec"), pod["metadata"]
    of_test = BENCHMARK_LABEL in mapping(metadata, "labels")
    wants = _wants(spec)
    if not of_test and not wants and not gpus_of(spec, mapping(metadata, "annotations")):
        return None
    phase, node = text(pod, "status", "phase"), text(spec, "nodeName")
    ended = phase in ("Succeeded", "Failed")
    deleted = "deletionTimestamp" in metadata
    scheduled = next(
        (item for _, item in items(pod, "status", "conditions") if text(item, "type") == "PodScheduled"), None
    )
    pending = not node and not ended and not deleted and not list(items(spec, "schedulingGates"))
    state = next((mapping(item, "state", "terminated") for _, item in items(pod, "status", "containerStatuses")), {})
    code = at(state, "exitCode")
    job = text(metadata, "labels", JOB_NAME_LABEL)
    return ObservedPod(
        key_of(pod),
        metadata["uid"],
        node,
        ended,
        pending,
        pending and text(scheduled, "status") == "False" and text(scheduled, "reason") == "Unschedulable",
        _number(at(spec, "priority")),
        wants,
        (metadata["namespace"], job) if of_test and job else None,
        text(metadata, "annotations", INDEX_ANNOTATION),
        phase == "Succeeded",
        code if isinstance(code, int) else None,
        seconds(text(state, "finishedAt")) if text(state, "finishedAt") else None,
        deleted or _disrupted(pod),
        dict(spec) if pending else {},
    )


def _disrupted(pod: Object) -> bool:
    return text(pod, "status", "reason") in _DISRUPTED or has_condition(pod, "DisruptionTarget")


def _wants(spec: Mapping[str, object]) -> dict[str, int]:
    wants: dict[str, int] = {}
    for _, container in items(spec, "containers"):
        for name, amount in items(container, "resources", "limits"):
            if milli_of(str(name), _whole(amount)):
                wants[str(name)] = wants.get(str(name), 0) + _whole(amount)
    return wants


def _whole(amount: object) -> int:
    return int(str(amount)) if str(amount).isascii() and str(amount).isdigit() and len(str(amount)) < 8 else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
