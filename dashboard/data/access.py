"""What somebody may see: data is left out of a page as the API server leaves objects out for its reader.

Every feed says how its data is restricted (``Feed.restrict``), so that a page cannot forget it. Rights are those that
RBAC gives on the objects themselves: whoever may list the pods of a namespace sees its jobs, services and sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass

ALL_NAMESPACES = ""


@dataclass(frozen=True)
class Right:
    """To list a resource in a namespace, or in all of them."""

    group: str
    resource: str
    namespace: str = ALL_NAMESPACES


SWITCHES = Right("kaiwo.ai", "featurerollouts")
POOLS = Right("kaiwo.ai", "lendingpools")
NODES = Right("kaiwo.ai", "nodetopologies")
BUDGETS = Right("kaiwo.ai", "kaiwobudgets")
CLUSTER_QUEUES = Right("kueue.x-k8s.io", "clusterqueues")
NODE_HEALTHS = Right("kaiwo.ai", "nodehealths")
KUBERNETES_NODES = Right("", "nodes")
Holds = Callable[[Right], bool]
"""Whether the reader has a right."""


def pods_in(namespace: str) -> Right:
    return Right("", "pods", namespace)


def pods_of(name: str) -> Right:
    """For ``namespace/name``; what has no namespace is for those who see all of them."""
    namespace, slash, _ = name.partition("/")
    return pods_in(namespace if slash else ALL_NAMESPACES)
