"""Which flavours Kueue assigns to a waiting workload, and whether it would have to preempt for them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kopt.core.scheduling.quota import Admitted, Demand, FlavorResource, QueueRules, ResourceGroup
from kopt.policies.quota.tree import QuotaTree
from kopt.policies.quota.victims import targets


class Mode(IntEnum):
    """What a flavour can do for a workload, the worst first.

    ``NO_FIT``: it can never be assigned, or not by preemption. ``NO_VICTIMS``: it could, and nobody can be preempted.
    ``PREEMPT``: somebody of its own queue can be. ``RECLAIM``: only workloads of other queues are. ``FIT``: it is free.
    """

    NO_FIT = 0
    NO_VICTIMS = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


@dataclass(frozen=True)
class Assignment:
    """``requests`` by the flavours assigned, of which ``needed`` lack quota; ``victims`` are Kueue's own.

    With ``NO_FIT`` there are neither.
    """

    mode: Mode
    requests: Mapping[FlavorResource, int] = field(default_factory=dict)
    needed: frozenset[FlavorResource] = frozenset()
    victims: tuple[Admitted, ...] = ()


@dataclass(frozen=True)
class _Attempt:
    """One flavour for the resources of a group; the lower ``level``, the closer is the quota that it takes."""

    mode: Mode = Mode.NO_FIT
    level: int = 0
    modes: Mapping[FlavorResource, Mode] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, int]:
        return self.mode, -self.level


def assign(demand: Demand, rules: QueueRules, tree: QuotaTree, admitted: Sequence[Admitted]) -> Assignment:
    """Kueue's assignment now. Resources that no group of the queue covers are ignored."""
    total: Counter[FlavorResource] = Counter()
    modes: dict[FlavorResource, Mode] = {}
    for pods in demand.pod_sets:
        for group in rules.groups:
            requests = {name: pods.requests[name] for name in group.resources if pods.requests.get(name)}
            if not requests:
                continue
            best = _best(demand, rules, tree, admitted, group, requests, pods.flavors, total)
            if best.mode is Mode.NO_FIT:
                return Assignment(Mode.NO_FIT)
            for flavor_resource, mode in best.modes.items():
                total[flavor_resource] += requests[flavor_resource[1]]
                modes[flavor_resource] = min(modes.get(flavor_resource, Mode.FIT), mode)
    worst = min(modes.values(), default=Mode.FIT)
    needed = frozenset(flavor_resource for flavor_resource, mode in modes.items() if mode is not Mode.FIT)
    if worst is Mode.FIT:
        return Assignment(worst, total)
    victims = targets(demand, rules, tree, admitted, total, needed)
    return Assignment(worst if victims else Mode.NO_VICTIMS, total, needed, tuple(victims))


def _best(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Sequence[Admitted],
    group: ResourceGroup,
    requests: Mapping[str, int],
    allowed: frozenset[str],
    assumed: Mapping[FlavorResource, int],
) -> _Attempt:
    """The first flavour of the group that is good enough, else the best."""
    best = _Attempt()
    for flavor in group.flavors:
        if flavor not in allowed:
            continue
        attempt = _attempt(demand, rules, tree, admitted, flavor, requests, assumed)
        if not _wants_next(attempt, rules):
            return attempt
        if attempt.mode is not Mode.NO_FIT and (best.mode is Mode.NO_FIT or attempt.rank > best.rank):
            best = attempt
    return best


def _wants_next(attempt: _Attempt, rules: QueueRules) -> bool:
    if attempt.mode in (Mode.NO_FIT, Mode.NO_VICTIMS):
        return True
    if attempt.mode in (Mode.PREEMPT, Mode.RECLAIM) and rules.next_to_preempt:
        return True
    return attempt.level > 0 and rules.next_to_borrow


def _attempt(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Sequence[Admitted],
    flavor: str,
    requests: Mapping[str, int],
    assumed: Mapping[FlavorResource, int],
) -> _Attempt:
    worst, modes = (int(Mode.FIT), 0), {}
    for name, amount in requests.items():
        flavor_resource = (flavor, name)
        mode, level = _mode(demand, rules, tree, admitted, flavor_resource, assumed.get(flavor_resource, 0) + amount)
        worst, modes[flavor_resource] = min(worst, (int(mode), -level)), mode
    return _Attempt(Mode(worst[0]), -worst[1], modes)


def _mode(
    demand: Demand,
    rules: QueueRules,
    tree: QuotaTree,
    admitted: Sequence[Admitted],
    flavor_resource: FlavorResource,
    amount: int,
) -> tuple[Mode, int]:
    """The mode of one resource in one flavour, and how far away the quota is that it takes."""
    queue = demand.queue
    if amount > tree.capacity(queue, flavor_resource):
        return Mode.NO_FIT, 0
    level, _ = _level(tree, queue, flavor_resource, amount)
    if amount <= tree.available(queue, flavor_resource):
        return Mode.FIT, level
    if not may_preempt(rules, tree, queue, flavor_resource, amount):
        return Mode.NO_FIT, level
    victims = targets(demand, rules, tree, admitted, {flavor_resource: amount}, {flavor_resource})
    if not victims:
        return Mode.NO_VICTIMS, level
    for victim in victims:
        tree.add(victim.queue, victim.uses, -1)
    level, _ = _level(tree, queue, flavor_resource, amount)
    for victim in victims:
        tree.add(victim.queue, victim.uses)
    own = any(victim.queue == queue for victim in victims)
    return Mode.PREEMPT if own else Mode.RECLAIM, level


def may_preempt(rules: QueueRules, tree: QuotaTree, queue: str, flavor_resource: FlavorResource, amount: int) -> bool:
    """Whether Kueue looks for victims at all: for what a queue is guaranteed, what lies closer to it than the root, and
    where it may preempt to borrow."""
    return (
        amount <= tree.quota(queue, flavor_resource).nominal
        or _level(tree, queue, flavor_resource, amount)[1]
        or rules.borrows
    )


def _level(tree: QuotaTree, queue: str, flavor_resource: FlavorResource, amount: int) -> tuple[int, bool]:
    """The height of the lowest subtree whose quota has room for it, and whether it is not the whole tree."""
    lineage = tree.lineage(queue)
    for key in lineage:
        if not tree.exceeds(key, flavor_resource, amount):
            return (0 if key == queue else tree.height(key)), key != lineage[-1]
        amount -= max(0, tree.local(key, flavor_resource) - tree.used(key, flavor_resource))
    return tree.height(lineage[-1]) if lineage else 0, False
