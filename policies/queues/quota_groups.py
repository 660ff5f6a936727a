"""Groups of queues whose quota can be traded, from a tree and what its queues demanded."""

from collections.abc import Callable, Sequence

from kopt.core.scheduling.queue_demand import QueueDemandHistory
from kopt.core.scheduling.queue_tree import UNLIMITED
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.queues.advice import QuotaAdvice, QuotaDemand, advise
from kopt.policies.queues.tree import QueueTree

DemandOf = Callable[[str, str], Sequence[int | None]]
"""Of a queue in a pool, by hour."""


def tradable(
    tree: QueueTree, gpu_resources: Callable[[str], bool], demand: DemandOf, hours: int
) -> list[list[QuotaDemand]]:
    """Leaves of one parent with a quota of GPUs of their own in one pool. A queue that was never seen has no demand
    that is known. Queues without bound need no quota. Where shares by claims have quota, what was demanded is of whole
    GPUs and of shares together, so that neither quota can be told from it."""
    groups: dict[tuple[str, str, str], list[QuotaDemand]] = {}
    for name in filter(tree.is_leaf, tree.queues):
        for pool, shares in tree.queues[name].pools.items():
            if CHARGE_RESOURCE in shares:
                continue
            for resource, share in shares.items():
                if not gpu_resources(resource) or share.quota in (None, UNLIMITED):
                    continue
                hourly = demand(name, pool) or [None] * hours
                limit = None if share.limit in (None, UNLIMITED) else share.limit
                leaf = QuotaDemand(name, pool, share.quota or 0, hourly, share.guarantee or 0, limit, resource)
                groups.setdefault((tree.queues[name].parent, pool, resource), []).append(leaf)
    return [group for (parent, _, _), group in groups.items() if parent] + [
        [leaf] for (parent, _, _), group in groups.items() if not parent for leaf in group
    ]


def advised_quotas(
    tree: QueueTree, history: QueueDemandHistory, gpu_resources: Callable[[str], bool]
) -> list[QuotaAdvice]:
    """For every quota of GPUs of a leaf's own."""
    hours = max((len(series) for series in history.used.values()), default=0)
    groups = tradable(tree, gpu_resources, lambda queue, pool: history.demand((queue, pool)), hours)
    return [each for group in groups for each in advise(group)]
