"""Which limit of Kueue's quota binds."""

from collections import Counter
from collections.abc import Iterator, Mapping

from kopt.core.scheduling.diagnosis import Binding, Cause
from kopt.core.scheduling.quota import FlavorResource, ResourceGroup
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.diagnosis import sentences
from kopt.policies.diagnosis.situation import KueueSide, Situation
from kopt.policies.quota import Assignment, Mode


def quota_causes(situation: Situation, assignment: Assignment) -> Iterator[Cause]:
    """What is short, GPUs first; then whom Kueue would preempt; or what is ahead where quota is free."""
    side = situation.kueue
    assert side is not None, "there is an assignment only with quota"
    if absent := _without_quota(side):
        yield from (sentences.no_quota(side, name, amount) for name, amount in absent.items())
        return
    if assignment.mode is Mode.FIT:
        if side.strict and side.ahead:
            yield sentences.ahead(side)
        return
    causes = []
    for group in side.rules.groups:
        for flavors, requests in _wanted(side, group).items():
            if not flavors:
                causes += [sentences.no_flavor(situation, side, group)]
            else:
                causes += _short(side, requests, flavors)
    yield from sorted(causes, key=lambda cause: cause.unit != "GPUs")
    if assignment.victims:
        yield sentences.preempts(assignment)


def _without_quota(side: KueueSide) -> Mapping[str, int]:
    """What it is charged of resources that the queue has no quota for, in thousandths. Before Kueue has looked at it
    only shares by claims are known to be charged as they stand there: others may be transformed, or left out."""
    covered = {"pods", *(name for group in side.rules.groups for name in group.resources)}
    absent = Counter[str]()
    for pods in side.demand.pod_sets:
        absent.update({name: amount for name, amount in pods.requests.items() if amount > 0 and name not in covered})
    return {name: absent[name] for name in sorted(absent) if side.is_counted or name == CHARGE_RESOURCE}


def _wanted(side: KueueSide, group: ResourceGroup) -> Mapping[tuple[str, ...], Mapping[str, int]]:
    """What pod sets with the same open flavours request together, by these flavours in the group's order."""
    wanted: dict[tuple[str, ...], Counter[str]] = {}
    for pods in side.demand.pod_sets:
        requests = {name: pods.requests[name] for name in group.resources if pods.requests.get(name)}
        if requests:
            open_flavors = tuple(name for name in group.flavors if name in pods.flavors)
            wanted.setdefault(open_flavors, Counter()).update(requests)
    return wanted


def _short(side: KueueSide, requests: Mapping[str, int], flavors: tuple[str, ...]) -> list[Cause]:
    """What the flavour lacks that lacks least; those with too little quota for it even if nothing ran come last."""
    ranked = []
    for position, flavor in enumerate(flavors):
        missing, never = 0.0, False
        for name, amount in requests.items():
            free = side.tree.available(side.queue, (flavor, name))
            never = never or amount > side.tree.capacity(side.queue, (flavor, name))
            missing = max(missing, (amount - free) / amount)
        ranked.append((never, missing, position, flavor))
    flavor = min(ranked)[-1]
    return [cause for name, amount in requests.items() if (cause := _limit(side, (flavor, name), amount))]


def _limit(side: KueueSide, flavor_resource: FlavorResource, amount: int) -> Cause | None:
    """The limit that binds for an amount, None where none does."""
    queue, most = side.queue, side.tree.capacity(side.queue, flavor_resource)
    if amount > most:
        return sentences.quota(Binding.QUOTA_TOO_SMALL, queue, flavor_resource, amount, most)
    rooms = side.tree.rooms(queue, flavor_resource)
    room = min(rooms, key=lambda room: room.amount)
    if amount <= room.amount:
        return None
    limit = side.tree.quota(room.node, flavor_resource).borrowing_limit
    if room.borrowing and (limit or room.node != queue):
        code = Binding.BORROWING_LIMIT
    else:
        code = Binding.QUOTA_IN_USE if room.node == queue else Binding.COHORT_IN_USE
    return sentences.quota(code, room.node, flavor_resource, amount, max(0, room.amount))
