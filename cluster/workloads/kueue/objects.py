"""Kueue's Workloads and queues, pods and evictions, as far as they matter here.

Amounts are thousandths of a resource's unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.fields import at
from kopt.cluster.workloads.requests.gpus import devices_in
from kopt.cluster.workloads.workload_class import class_of_kueue_workload
from kopt.core.scheduling.classify import Classified
from kopt.core.scheduling.queue_order import OrderMark
from kopt.core.scheduling.quota import FlavorResource, QueueRules, Quota, QuotaNode, cohort_key

HOLDER = "preemption"
"""The value of kaiwo.ai/held on Workloads that wait for a decision, and on those whose priority we have raised."""
DECISION_ANNOTATION = "kaiwo.ai/preemption"
EVICTING_ANNOTATION = "kaiwo.ai/evicting"
MINE = "kopt-preemption"


@dataclass(frozen=True)
class Shield:
    """A priority raised above a preemptor's: its old value (None: not set), its new one, the preemptor's uid, and until
    when. ``stands``: no other priority was written since."""

    priority: int | None
    raised: int
    for_uid: str
    until_s: float
    stands: bool = True


@dataclass(frozen=True)
class Evicting:
    """Our notice to a victim: for which preemptor (namespace/name) and when. ``pods``: how many a plain gang had."""

    at_s: float
    preemptor: str
    pods: int = 0


@dataclass(frozen=True)
class RecordedDecision:
    """What was decided about a preemptor, as its annotation says. ``until_s``: its shields last so long."""

    action: str
    until_s: float = 0.0
    victims: tuple[str, ...] = ()
    at_s: float = 0.0


@dataclass(frozen=True)
class PodSet:
    """``requests`` of all its pods that have not ended, in thousandths; ``spec`` of one pod."""

    requests: Mapping[str, int]
    spec: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class KueueWorkload:
    """A Workload of Kueue's. ``priority`` is its own also while we have raised it, or its rank in the order stands
    there (``queue_priority``); ``requests`` and ``uses`` are totals over its pods."""

    document: Object = field(compare=False, repr=False)
    version: str
    key: Key
    uid: str
    owner_uid: str
    priority: int
    queue: str
    cluster_queue: str
    requests: Mapping[str, int]
    uses: Mapping[tuple[str, str], int]
    created_s: float
    reserved_s: float | None
    evicted_at_s: float | None
    finished: bool
    active: bool
    holder: str
    mode: str = ""
    shield: Shield | None = None
    evicting: Evicting | None = None
    decision: RecordedDecision | None = None
    let_go_s: float | None = None
    """When another holder released it to its queue and we held it in turn."""
    pod_sets: tuple[PodSet, ...] = field(default=(), compare=False)
    mirrored: bool = False
    """MultiKueue has it in two clusters, and deletes the remote job when the specs of the two differ."""
    order: OrderMark | None = None
    """What its priority was before its rank in the order was written there."""
    is_counted: bool = False
    """Kueue has looked at it and said what it counts: that are ``requests``. Else they are what its pods request."""

    @property
    def name(self) -> str:
        return "/".join(self.key)

    @property
    def queue_priority(self) -> int:
        """By which Kueue orders its queue."""
        return self.order.written if self.is_ordered and self.order is not None else self.priority

    @property
    def is_ordered(self) -> bool:
        """Whether its rank in the order stands where its priority was."""
        before = self.shield.priority if self.shield and self.shield.stands else at(self.document, "spec", "priority")
        return self.order is not None and before == self.order.written

    @cached_property
    def classified(self) -> Classified:
        """Its class."""
        return class_of_kueue_workload(self.document)

    @property
    def came_s(self) -> float:
        """Since when its queue could have made room for it."""
        return self.created_s if self.let_go_s is None else self.let_go_s

    @property
    def held(self) -> bool:
        """It waits for our decision."""
        return self.holder == HOLDER and self.shield is None and not self.active

    def is_shielded_from(self, preemptor: "KueueWorkload") -> bool:
        """Kueue cannot preempt it for this workload."""
        shield = self.shield
        return (
            shield is not None
            and shield.for_uid == preemptor.uid
            and shield.stands
            and shield.raised > preemptor.priority
        )

    def is_counted_in(self, resource: str) -> bool:
        """Whether Kueue said that it asks for some of a resource."""
        return self.is_counted and bool(self.requests.get(resource))

    @property
    def pending(self) -> bool:
        return self.reserved_s is None and not self.finished

    @property
    def running(self) -> bool:
        """It has quota, and was not evicted."""
        return self.reserved_s is not None and not self.finished and self.evicted_at_s is None and self.active

    @property
    def terminating(self) -> bool:
        """It was evicted, and its pods have not ended yet."""
        return self.reserved_s is not None and not self.finished and self.evicted_at_s is not None

    @property
    def gpu_resource(self) -> str:
        """The one GPU resource that it requests; empty where there is none, or several."""
        result = [name for name, amount in self.requests.items() if amount and devices_in(name, 1000)]
        return result[0] if len(result) == 1 else ""


@dataclass(frozen=True)
class ClusterQueue:
    """``quotas`` by flavour and resource, as the groups list them, in thousandths.

    ``fair``: Kueue shares fairly among queues or users here, in place of going by priority. ``preference``: the queue
    prefers flavours by a rule of its own. ``by_usage``: whoever has used less is admitted first. ``strict``: nothing
    is admitted before what is first.
    """

    name: str
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)
    rules: QueueRules = field(default_factory=QueueRules)
    cohort: str = ""
    active: bool = False
    fair: bool = False
    preference: bool = False
    by_usage: bool = False
    strict: bool = False

    @property
    def quota(self) -> Mapping[FlavorResource, int]:
        """Nominal quota."""
        return {flavor_resource: quota.nominal for flavor_resource, quota in self.quotas.items()}

    @property
    def node(self) -> QuotaNode:
        return QuotaNode(self.name, cohort_key(self.cohort), self.quotas)

    @property
    def resources(self) -> frozenset[str]:
        return frozenset(resource for _, resource in self.quotas)

    def flavors(self, resource: str) -> list[str]:
        return [flavor for flavor, name in self.quotas if name == resource]


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: labels and taints of its nodes, and tolerations that its pods get. ``topology``: Kueue also
    places pods on its nodes."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Object] = ()
    tolerations: Sequence[Object] = ()
    topology: str = ""


@dataclass(frozen=True)
class GpuPod:
    """A pod that has not ended: its Workload or owner, its GPUs, and our annotations on it. ``shares``: it has shares
    of GPUs by a claim, of which its spec does not say how much they are."""

    key: Key
    uid: str
    workload: str
    owner_uid: str
    gpus: int
    annotations: Mapping[str, str]
    version: str = field(default="", compare=False)
    started_s: float | None = None
    shares: bool = False


@dataclass(frozen=True)
class PastEviction:
    """One eviction, by anyone."""

    uid: str
    at_s: float
