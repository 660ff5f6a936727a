"""A tree of queues as people declare it (``KaiwoQueue``, ``KaiwoPool``), whatever queueing system carries it out.

Amounts are thousandths of what Kubernetes counts, so that GPUs are milli-GPUs and sums are exact. A queue with
children is a department: workloads are queued in leaves only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

UNLIMITED = -1
"""As an amount: no bound."""
GPU, CPU, MEMORY = "gpu", "cpu", "memory"
DEFAULT_POOL = "default"
DEFAULT_GPU_RESOURCE = "nvidia.com/gpu"


MANAGED_LABEL = "kaiwo.ai/queue-tree"
"""On every object that a tree becomes: ``managed``."""
MANAGED = "managed"
ADDED_LABEL = "kaiwo.ai/added-for"
"""On an object that stands for no KaiwoQueue: which one it was added for."""
FIELD_MANAGER = "kopt-queues"
"""Who owns the fields of these objects that we write."""


DEMAND_METRIC = "kopt_queues_gpus"
"""The gauge of `kopt controller queues` by queue, pool and state (``DemandState``), in GPUs."""


class DemandState(StrEnum):
    """Of GPUs that a queue demands."""

    USED = "used"
    PENDING = "pending"


class Engine(StrEnum):
    """The queueing systems that a tree is compiled for."""

    KUEUE = "kueue"
    KAI = "kai"
    VOLCANO = "volcano"


class Reclaim(StrEnum):
    """How a queue takes back quota that others borrow: at once, or after a grace; a balanced queue also its share of
    what is above quotas, as far as that brings queues nearer their shares."""

    AGGRESSIVE = "aggressive"
    CONSERVATIVE = "conservative"
    BALANCED = "balanced"

    @property
    def is_delayed(self) -> bool:
        """Whether Kueue itself evicts nobody for it: our controller does."""
        return self is not Reclaim.AGGRESSIVE


class OtherResources(StrEnum):
    """CPU and memory where a queue says nothing about them: free, or refused to workloads that request any.

    Refused also refuses what only a queue above names.
    """

    UNLIMITED = "Unlimited"
    REFUSED = "Refused"


@dataclass(frozen=True)
class Share:
    """What a queue has of a resource, in thousandths; None is what was not written.

    ``quota``: what it can have back whenever it wants it. ``guarantee``: the part of the quota that is never lent.
    ``limit``: the most that it may use, quota included. ``weight``: its part of what is idle, against its siblings',
    in thousandths too.
    """

    quota: int | None = None
    limit: int | None = None
    weight: int | None = None
    guarantee: int | None = None


Shares = Mapping[str, Share]
"""By resource: ``gpu``, ``cpu``, ``memory`` or the full name of another."""


@dataclass(frozen=True)
class KaiwoQueue:
    """One queue. ``pools`` are in the order in which they are tried.

    ``reclaim`` says how it takes back its quota, ``grace_s`` how long it waits for it; ``min_runtime_s`` is how long
    its own workloads run before others may evict them. ``kueue`` and ``kai`` hold fields of a ClusterQueue's and of a
    KAI Queue's spec that no other engine knows.
    """

    name: str
    parent: str = ""
    display_name: str = ""
    priority: int | None = None
    pools: Mapping[str, Shares] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    reclaim: Reclaim | None = None
    grace_s: int | None = None
    min_runtime_s: int | None = None
    other_resources: OtherResources = OtherResources.UNLIMITED
    kueue: Mapping[str, Any] = field(default_factory=dict)
    kai: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KaiwoPool:
    """Nodes of one kind, by their labels. ``capacity`` is by resource, in thousandths; what is not named is unknown."""

    name: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    taints: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology: str = ""

    def resource(self, name: str) -> str:
        """The full name of a resource on these nodes."""
        return self.gpu_resource if name == GPU else name


@dataclass(frozen=True)
class NotExpressible:
    """A field that the engine cannot carry out as it is meant: ``path`` is ``QUEUE/spec.FIELD``."""

    code: str
    path: str
    text: str


@dataclass(frozen=True)
class Compiled:
    """Objects as they should be, in the order in which they are applied, and what they leave out.

    ``requires``: how the engine itself has to be configured for them to mean what was declared.
    """

    objects: tuple[dict[str, Any], ...]
    not_expressible: tuple[NotExpressible, ...] = ()
    requires: tuple[str, ...] = ()
