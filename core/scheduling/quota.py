"""Quota as Kueue has it: ClusterQueues and cohorts in a tree, with limits for each flavour of a resource."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FlavorResource = tuple[str, str]
"""(ResourceFlavor, resource)."""


@dataclass(frozen=True)
class Quota:
    """Of one flavour and resource, in any one unit. A limit of None does not limit."""

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True)
class QuotaNode:
    """A ClusterQueue or a cohort, by its key; ``parent`` is the key of its cohort, empty at the root."""

    key: str
    parent: str = ""
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceGroup:
    """Resources that a pod set gets of one flavour; flavours in the order in which they are tried."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True)
class QueueRules:
    """How a ClusterQueue selects flavours and victims.

    ``within`` and ``reclaim``: ``withinClusterQueue`` and ``reclaimWithinCohort``. ``borrows``: whether it preempts in
    its cohort also to borrow (``borrowWithinCohort``), then up to priority ``borrow_threshold``. ``next_to_borrow`` and
    ``next_to_preempt``: whether the next flavour is tried before this is done in the current one.
    """

    groups: tuple[ResourceGroup, ...] = ()
    within: str = "Never"
    reclaim: str = "Never"
    borrows: bool = False
    borrow_threshold: int | None = None
    next_to_borrow: bool = False
    next_to_preempt: bool = True


@dataclass(frozen=True)
class PodSetDemand:
    """What the pods of a set request together, and the flavours whose nodes they may run on."""

    requests: Mapping[str, int]
    flavors: frozenset[str]


@dataclass(frozen=True)
class Demand:
    """A workload that waits for quota, all of it at once."""

    name: str
    queue: str
    priority: int
    created_s: float
    pod_sets: tuple[PodSetDemand, ...]


@dataclass(frozen=True)
class Admitted:
    """A workload with quota. ``terminating``: it was evicted already, and uses its quota until its pods have ended."""

    name: str
    queue: str
    priority: int
    created_s: float
    reserved_s: float
    uses: Mapping[FlavorResource, int]
    terminating: bool = False


def cohort_key(name: str) -> str:
    """A cohort's key: it may have the name of a ClusterQueue."""
    return f"cohort/{name}" if name else ""
