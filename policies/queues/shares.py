"""A tree of queues as the fair division needs it (``policies.shares``).

Amounts of a resource are summed over pools, as Kueue's own dominant resource shares are: which of its pools a waiting
workload would run in is not known. The priorities of queues, which KAI gives what is idle by, do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kopt.core.scheduling.queue_tree import UNLIMITED
from kopt.policies.queues.settings import weight_of
from kopt.policies.queues.tree import QueueTree
from kopt.policies.shares import Amounts, ShareQueue
from kopt.policies.shares.model import FAIR_WEIGHT


@dataclass(frozen=True)
class Division:
    """Queues that share one capacity. ``name`` is their root, empty where all roots share the cluster."""

    name: str
    queues: tuple[ShareQueue, ...]
    capacity: Amounts


def divisions(tree: QueueTree, demands: Mapping[str, Amounts], capacity: Amounts | None = None) -> list[Division]:
    """Without ``capacity`` each root by itself, with what its queues have as quota together, as in Kueue, where roots
    lend each other nothing. With ``capacity`` all roots share it."""
    if capacity is not None:
        return [Division("", tuple(share_queue(tree, name, demands) for name in tree.queues), capacity)]
    result = []
    for root in tree.roots:
        below = [share_queue(tree, name, demands) for name in tree.queues if tree.lineage(name)[-1] == root]
        quota = next(queue.quota for queue in below if queue.name == root)
        result.append(Division(root, tuple(below), quota))
    return result


def share_queue(tree: QueueTree, name: str, demands: Mapping[str, Amounts]) -> ShareQueue:
    """One queue of a tree. What it says nothing about is not bounded by it."""
    quota: dict[str, int] = {}
    limit: dict[str, int] = {}
    guarantee: dict[str, int] = {}
    unbounded, unlimited = set[str](), set[str]()
    for pool, resource in tree.places(name):
        share, amount = tree.share(name, pool, resource), tree.quota(name, pool, resource)
        if amount == UNLIMITED:
            unbounded.add(resource)
        quota[resource] = quota.get(resource, 0) + max(0, amount or 0)
        if share.limit in (None, UNLIMITED):
            unlimited.add(resource)
        limit[resource] = limit.get(resource, 0) + (share.limit or 0)
        guarantee[resource] = guarantee.get(resource, 0) + (share.guarantee or 0)
    weight = weight_of(tree, name)[0]
    return ShareQueue(
        name,
        tree.queues[name].parent,
        FAIR_WEIGHT if weight is None else weight,
        {resource: value for resource, value in quota.items() if resource not in unbounded},
        {resource: value for resource, value in limit.items() if resource not in unlimited},
        {resource: value for resource, value in guarantee.items() if value},
        demands.get(name, {}) if tree.is_leaf(name) else {},
    )
