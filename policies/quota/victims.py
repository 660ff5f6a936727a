"""The workloads that Kueue preempts for another one, without fair sharing."""

from collections.abc import Collection, Mapping, Sequence

from kopt.core.scheduling.quota import Admitted, Demand, FlavorResource, QueueRules
from kopt.policies.quota.candidates import Advantage, candidates
from kopt.policies.quota.tree import QuotaTree


def targets(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Sequence[Admitted],
    requests: Mapping[FlavorResource, int],
    needed: Collection[FlavorResource],
) -> list[Admitted]:
    """Kueue's victims for ``requests``, of which ``needed`` lack quota; empty if it finds none.

    Candidates are removed in order, as long as their queues exceed their quota, until the requests fit; then those
    that turn out not to be needed are spared. ``tree`` is as before afterwards.
    """
    every = candidates(demand, rules, tree, admitted, requests, needed)
    for borrowing in _attempts(demand, rules, tree, every, needed):
        victims = _removed(demand, tree, every, requests, needed, borrowing=borrowing)
        for victim in victims:
            tree.add(victim.queue, victim.uses)
        if victims:
            return victims
    return []


def _attempts(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    every: Sequence[tuple[Admitted, Advantage]],
    needed: Collection[FlavorResource],
) -> tuple[bool, ...]:
    """Whether the queue may borrow after the preemption, in the order in which that is tried."""
    under = all(
        tree.used(demand.queue, flavor_resource) < tree.quota(demand.queue, flavor_resource).nominal
        for flavor_resource in needed
    )
    advantages = {advantage for _, advantage in every}
    if advantages <= {Advantage.OWN} or (not rules.borrows and not under):
        return (True,)
    return (False, True) if not rules.borrows and Advantage.CLOSER not in advantages else (True, False)


def _removed(
    demand: Demand,
    tree: QuotaTree,
    every: Sequence[tuple[Admitted, Advantage]],
    requests: Mapping[FlavorResource, int],
    needed: Collection[FlavorResource],
    *,
    borrowing: bool,
) -> list[Admitted]:
    """The victims, removed from the tree; empty, and none removed, if all together do not suffice."""
    victims: list[Admitted] = []
    for workload, advantage in every:
        if advantage is not Advantage.OWN and not _is_valid(demand, tree, workload, advantage, needed, borrowing):
            continue
        tree.add(workload.queue, workload.uses, -1)
        victims.append(workload)
        if fits(tree, demand.queue, requests, borrowing=borrowing):
            return _spared(demand, tree, victims, requests, borrowing=borrowing)
    for workload in victims:
        tree.add(workload.queue, workload.uses)
    return []


def _is_valid(
    demand: Demand,
    tree: QuotaTree,
    workload: Admitted,
    advantage: Advantage,
    needed: Collection[FlavorResource],
    borrowing: bool,
) -> bool:
    """Whether the workload's queue, and its cohorts that the other queue is not in, still exceed their quota."""
    if borrowing and advantage is Advantage.NOT_BORROWING:
        return False
    shared = set(tree.lineage(demand.queue))
    return all(
        any(tree.exceeds(key, flavor_resource) for flavor_resource in needed)
        for key in tree.lineage(workload.queue)
        if key not in shared
    )


def _spared(
    demand: Demand,
    tree: QuotaTree,
    victims: list[Admitted],
    requests: Mapping[FlavorResource, int],
    *,
    borrowing: bool,
) -> list[Admitted]:
    for index in range(len(victims) - 2, -1, -1):
        victim = victims[index]
        tree.add(victim.queue, victim.uses)
        if fits(tree, demand.queue, requests, borrowing=borrowing):
            victims[index] = victims[-1]
            victims.pop()
        else:
            tree.add(victim.queue, victim.uses, -1)
    return victims


def fits(tree: QuotaTree, queue: str, requests: Mapping[FlavorResource, int], *, borrowing: bool = True) -> bool:
    """Whether a queue can get all that is requested, without borrowing if that is not allowed."""
    return all(
        amount <= tree.available(queue, flavor_resource)
        and (borrowing or tree.used(queue, flavor_resource) + amount <= tree.quota(queue, flavor_resource).nominal)
        for flavor_resource, amount in requests.items()
    )
