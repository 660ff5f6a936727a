"""The objects of a cluster that decide whether a workload can start."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import Object

Objects = Sequence[Object]


@dataclass(frozen=True)
class ClusterDocuments:
    """Of all namespaces, as far as they may be read; ``unread`` names kinds that may not. ``claims`` and ``slices`` are
    those of dynamic resource allocation."""

    nodes: Objects = ()
    pods: Objects = ()
    workloads: Objects = ()
    local_queues: Objects = ()
    cluster_queues: Objects = ()
    cohorts: Objects = ()
    flavors: Objects = ()
    kai_queues: Objects = ()
    kai_groups: Objects = ()
    volcano_queues: Objects = ()
    volcano_groups: Objects = ()
    claims: Objects = ()
    slices: Objects = ()
    events: Objects = ()
    unread: tuple[str, ...] = ()
