"""What each limit of quota has free for a waiting workload, and whose preemption frees how much of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.scheduling.quota import Admitted, Demand, FlavorResource, QueueRules
from kopt.policies.quota.assignment import may_preempt
from kopt.policies.quota.candidates import Advantage, candidates
from kopt.policies.quota.tree import QuotaTree


@dataclass
class Limits:
    """``free`` by limit. The workload fits if all limits of one of the ``rooms`` have enough free.

    ``frees``: the limits that have the amount of a candidate more once it is preempted, by its name. ``flavors``: the
    flavour of each candidate.
    """

    free: dict[str, int] = field(default_factory=dict)
    rooms: list[tuple[str, ...]] = field(default_factory=list)
    frees: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flavors: dict[str, str] = field(default_factory=dict)


def limits(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Sequence[Admitted],
    resource: str,
    flavors: Sequence[str],
) -> Limits:
    """The limits for ``resource``, all of it in one of ``flavors``.

    A flavour has two rooms: one where the queue may borrow, and one where it may not, in which more queues give back
    what they have borrowed (``Advantage.NOT_BORROWING``). As victims leave their queues at their quota, each of them
    frees as much of every limit from the lowest node that both queues share as it uses.
    """
    result = Limits()
    for flavor in flavors:
        requests = {
            (flavor, name): sum(pods.requests.get(name, 0) for pods in demand.pod_sets)
            for group in rules.groups
            if flavor in group.flavors and resource in group.resources
            for name in group.resources
        }
        flavor_resource = (flavor, resource)
        amount = requests.get(flavor_resource, 0)
        if amount <= tree.capacity(demand.queue, flavor_resource):
            _add(result, demand, rules, tree, admitted, requests, flavor_resource)
    return result


def _add(
    result: Limits,
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Sequence[Admitted],
    requests: Mapping[FlavorResource, int],
    flavor_resource: FlavorResource,
) -> None:
    queue, lineage = demand.queue, tree.lineage(demand.queue)
    rooms = tree.rooms(queue, flavor_resource)
    borrowing = {f"{flavor_resource[0]} of {room.node}": room.amount for room in rooms}
    result.free |= borrowing
    result.rooms.append(tuple(borrowing))
    if not may_preempt(rules, tree, queue, flavor_resource, requests[flavor_resource]):
        return
    quota, used = tree.quota(queue, flavor_resource).nominal, tree.used(queue, flavor_resource)
    owned = {f"own {key}": amount for key, amount in borrowing.items()} | {
        f"own {flavor_resource[0]} of {queue}": quota - used
    }
    every = candidates(demand, rules, tree, admitted, requests, {flavor_resource})
    if any(advantage is Advantage.NOT_BORROWING for _, advantage in every) and (rules.borrows or used < quota):
        result.free |= owned
        result.rooms.append(tuple(owned))
    for workload, advantage in every:
        if sum(1 for _, name in workload.uses if name == flavor_resource[1]) != 1:
            continue
        above = set(tree.lineage(workload.queue))
        shared = [key for key in lineage if key in above]
        keys = [f"own {flavor_resource[0]} of {key}" for key in shared]
        if advantage is not Advantage.NOT_BORROWING:
            keys += [f"{flavor_resource[0]} of {key}" for key in shared]
        result.frees[workload.name] = tuple(key for key in keys if key in result.free)
        result.flavors[workload.name] = flavor_resource[0]
