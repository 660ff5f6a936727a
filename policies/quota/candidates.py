"""Whom Kueue may preempt for a workload, by priority and by the place of their queues in the cohort tree."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from kopt.core.scheduling.quota import Admitted, Demand, FlavorResource, QueueRules
from kopt.policies.quota.tree import QuotaTree


class Advantage(StrEnum):
    """Why a queue may take quota back from another's workload.

    ``OWN``: it is its own workload. ``CLOSER``: the quota in use is closer to the queue in the tree. ``BORROWING``: by
    priority, even if the queue borrows then. ``NOT_BORROWING``: only if the queue does not borrow afterwards.
    """

    OWN = "own"
    CLOSER = "closer"
    BORROWING = "borrowing"
    NOT_BORROWING = "not borrowing"


def candidates(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Iterable[Admitted],
    requests: Mapping[FlavorResource, int],
    needed: Collection[FlavorResource],
) -> list[tuple[Admitted, Advantage]]:
    """In the order in which Kueue takes them for ``requests``, of which ``needed`` lack quota."""
    by_queue = advantages(demand.queue, tree, requests, needed)
    result = []
    for workload in admitted:
        closer = by_queue.get(workload.queue)
        own = workload.queue == demand.queue
        if (
            workload.terminating
            or not any(workload.uses.get(flavor_resource) for flavor_resource in needed)
            or not (own or closer is not None)
        ):
            continue
        if _satisfies(demand, workload, rules.within if own else rules.reclaim):
            result.append((workload, Advantage.OWN if own else _advantage(demand, workload, rules, closer is True)))
    return sorted(result, key=_order)


def advantages(
    queue: str, tree: QuotaTree, requests: Mapping[FlavorResource, int], needed: Collection[FlavorResource]
) -> dict[str, bool]:
    """The queues in the tree that use more than they have, and whether the quota that they use is closer to ``queue``.

    It is closer if the requests fit into a subtree that has the queue and not the other one.
    """
    result: dict[str, bool] = {}
    remaining, closer, before = dict(requests), False, ""
    for key in tree.lineage(queue):
        if before:
            result |= dict.fromkeys(_exceeding(tree, key, needed, {before, queue}), closer)
        if not closer:
            closer = not any(
                tree.exceeds(key, flavor_resource, amount) for flavor_resource, amount in remaining.items()
            )
            for flavor_resource in remaining:
                remaining[flavor_resource] = max(
                    0,
                    remaining[flavor_resource]
                    - max(0, tree.local(key, flavor_resource) - tree.used(key, flavor_resource)),
                )
        before = key
    return result


def _exceeding(tree: QuotaTree, key: str, needed: Collection[FlavorResource], without: Collection[str]) -> list[str]:
    """The leaves below a node that exceed their quota of what is needed, as all their ancestors below it do."""
    result = []
    for child in tree.children(key):
        if child not in without and any(tree.exceeds(child, flavor_resource) for flavor_resource in needed):
            result += [child, *_exceeding(tree, child, needed, without)]
    return result


def _satisfies(demand: Demand, workload: Admitted, policy: str) -> bool:
    if policy == "Any" or (policy in ("LowerPriority", _NEWER) and workload.priority < demand.priority):
        return True
    return policy == _NEWER and workload.priority == demand.priority and demand.created_s < workload.created_s


_NEWER = "LowerOrNewerEqualPriority"


def _advantage(demand: Demand, workload: Admitted, rules: QueueRules, closer: bool) -> Advantage:
    if closer:
        return Advantage.CLOSER
    above = rules.borrow_threshold is not None and workload.priority > rules.borrow_threshold
    if not rules.borrows or workload.priority >= demand.priority or above:
        return Advantage.NOT_BORROWING
    return Advantage.BORROWING


def _order(candidate: tuple[Admitted, Advantage]) -> tuple[int, int, float, str]:
    workload, advantage = candidate
    group = {Advantage.CLOSER: 0, Advantage.OWN: 2}.get(advantage, 1)
    return group, workload.priority, -workload.reserved_s, workload.name
