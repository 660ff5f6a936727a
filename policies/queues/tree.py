"""The tree that KaiwoQueues make, checked as a whole: what contradicts itself is refused before anything is written."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import DEFAULT_POOL, UNLIMITED, KaiwoPool, KaiwoQueue, Share
from kopt.core.units import format_thousandths

Location = tuple[str, str]
"""(pool, resource)."""
_NOTHING = Share()
_NUMBER = re.compile(r"\d+")


class TreeError(ValueError):
    """Queues that contradict each other or themselves; the message has a line for each reason."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("\n".join(reason.message for reason in reasons))
        self.reasons = tuple(reasons)


@dataclass
class QueueTree:
    """Queues by name, parents before their children. ``implied``: parents that no manifest describes; they have no
    bounds of their own. ``pools``: those that were declared, by name."""

    queues: Mapping[str, KaiwoQueue]
    pools: Mapping[str, KaiwoPool]
    implied: frozenset[str]
    default_pool: str = DEFAULT_POOL
    _children: dict[str, list[str]] = field(default_factory=dict)
    _quotas: dict[tuple[str, str, str], int | None] = field(default_factory=dict)
    _inherited: dict[str, frozenset[Location]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, queues: Iterable[KaiwoQueue], pools: Iterable[KaiwoPool] = (), default_pool: str = DEFAULT_POOL
    ) -> "QueueTree":
        """Raises TreeError with everything that is wrong."""
        queue_list, declared = list(queues), list(pools)
        problems = _twice(queue_list, declared)
        by_name = {queue.name: queue for queue in queue_list}
        problems += _cycles(by_name)
        if problems:
            raise TreeError(problems)
        implied = {queue.parent for queue in queue_list if queue.parent} - by_name.keys()
        by_name |= {name: KaiwoQueue(name) for name in implied}
        tree = cls(by_name, {pool.name: pool for pool in declared}, frozenset(implied), default_pool)
        for queue in by_name.values():
            tree._children.setdefault(queue.parent, []).append(queue.name)
        tree.queues = {name: by_name[name] for name in tree._downwards()}
        problems = [*_unknown_pools(tree), *_wrong_amounts(tree)]
        if problems:
            raise TreeError(problems)
        return tree

    @property
    def roots(self) -> Sequence[str]:
        return self._children.get("", ())

    def children(self, name: str) -> Sequence[str]:
        return self._children.get(name, ())

    def is_leaf(self, name: str) -> bool:
        return name not in self._children

    def lineage(self, name: str) -> list[str]:
        """A queue and its ancestors up to the root."""
        result = []
        while name:
            result.append(name)
            name = self.queues[name].parent
        return result

    def share(self, name: str, pool: str, resource: str) -> Share:
        return self.queues[name].pools.get(pool, {}).get(resource, _NOTHING)

    def pools_of(self, name: str) -> list[str]:
        """The pools of a queue in its order: its own, else those of the nearest queue above, else the default one."""
        queues = (self.queues[ancestor] for ancestor in self.lineage(name))
        return next((list(queue.pools) for queue in queues if queue.pools), [self.default_pool])

    def resources_of(self, name: str, pool: str) -> list[str]:
        """What a queue, or one above it, says something about in a pool."""
        shares = [self.queues[ancestor].pools.get(pool, {}) for ancestor in self.lineage(name)]
        return list(dict.fromkeys(resource for share in shares for resource in share))

    def places(self, name: str) -> list[Location]:
        """What a queue and those below it say something about, its own first."""
        own = [(pool, resource) for pool, shares in self.queues[name].pools.items() for resource in shares]
        below = [location for child in self.children(name) for location in self.places(child)]
        return list(dict.fromkeys([*own, *below]))

    def quota(self, name: str, pool: str, resource: str) -> int | None:
        """The quota of a queue in thousandths: its own, else that of its children together; None if nobody says."""
        key = (name, pool, resource)
        if key not in self._quotas:
            own = self.share(name, pool, resource).quota
            self._quotas[key] = self.below(name, pool, resource) if own is None else own
        return self._quotas[key]

    def below(self, name: str, pool: str, resource: str) -> int | None:
        """The quota of a queue's children together; None if none of them says any."""
        quotas = [quota for child in self.children(name) if (quota := self.quota(child, pool, resource)) is not None]
        return None if not quotas else UNLIMITED if UNLIMITED in quotas else sum(quotas)

    def bounded(self, name: str, pool: str, resource: str) -> bool:
        """Whether the queue or one above it says something about a resource; else it may use any amount."""
        return (pool, resource) in self._places_above(name)

    def capacity(self, pool: str, resource: str) -> int | None:
        """What a pool has of a resource, where that is declared."""
        declared = self.pools.get(pool)
        return None if declared is None else declared.capacity.get(resource)

    def where(self, name: str, pool: str, resource: str) -> str:
        """A share, for people."""
        return f"{name}: {resource}" + (f" of pool {pool}" if pool != self.default_pool else "")

    def above_parents(self) -> list[Reason]:
        """Queues whose quotas together are more than their parent's: KAI shares out what there is, others refuse it."""
        result = []
        for name in self._children.keys() - {""}:
            for pool, shares in self.queues[name].pools.items():
                for resource, share in shares.items():
                    below = self.below(name, pool, resource)
                    if below is not None:
                        result += _wrong_sum(self.where(name, pool, resource), share, below)
        return result

    def assumptions(self) -> list[str]:
        """What is assumed of parents that no manifest describes: their name may be a slip of the pen."""
        described = self.queues.keys() - self.implied
        return [
            f"{name} is described by no manifest, and has no bounds of its own{misspelled(name, described)}"
            for name in sorted(self.implied)
        ]

    def _places_above(self, name: str) -> frozenset[Location]:
        if name not in self._inherited:
            queue = self.queues[name]
            own = {(pool, resource) for pool, shares in queue.pools.items() for resource in shares}
            self._inherited[name] = frozenset(own | (self._places_above(queue.parent) if queue.parent else frozenset()))
        return self._inherited[name]

    def _downwards(self) -> list[str]:
        result = list(self.roots)
        for name in result:
            result += self.children(name)
        return result


def nearest(name: str, names: Iterable[str]) -> str:
    """``; did you mean …?`` with the nearest of the names, or nothing."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def misspelled(name: str, names: Iterable[str]) -> str:
    """As ``nearest``, for a name that may be right: it differs by a letter or two, and not in its number alone."""
    unlike = [other for other in names if _NUMBER.sub("", other) != _NUMBER.sub("", name)]
    near = get_close_matches(name, unlike, n=1, cutoff=0.9)
    return f"; did you mean {near[0]}?" if near else ""


def _twice(queues: Sequence[KaiwoQueue], pools: Sequence[KaiwoPool]) -> list[Reason]:
    result = []
    for name, count in Counter(queue.name for queue in queues).items():
        if count > 1:
            parents = sorted({queue.parent or "none" for queue in queues if queue.name == name})
            under = f", with the parents {' and '.join(parents)}: a queue has one" if len(parents) > 1 else ""
            result.append(Reason("TWO_QUEUES", f"{count} KaiwoQueues are named {name}{under}; remove one."))
    for name, count in Counter(pool.name for pool in pools).items():
        if count > 1:
            result.append(Reason("TWO_POOLS", f"{count} KaiwoPools are named {name}; remove one."))
    return result


def _cycles(queues: Mapping[str, KaiwoQueue]) -> list[Reason]:
    result, visited = list[Reason](), set[str]()
    for start in queues:
        way, name = list[str](), start
        while name in queues and name not in visited and name not in way:
            way.append(name)
            name = queues[name].parent
        if name in way:
            circle = " → ".join([*way[way.index(name) :], name])
            result.append(Reason("QUEUE_CYCLE", f"queues are their own ancestors: {circle}; remove a parentQueue."))
        visited |= set(way)
    return result


def _unknown_pools(tree: QueueTree) -> list[Reason]:
    if not tree.pools:
        # Nothing is declared: they are those of the cluster, and looked up when the queues are applied.
        return []
    pools = tree.pools.keys() | ({tree.default_pool} if tree.default_pool == DEFAULT_POOL else set())
    there = f"; there are {', '.join(tree.pools)}"
    return [
        Reason("UNKNOWN_POOL", f"{queue.name}: there is no pool {pool}{nearest(pool, tree.pools) or there}")
        for queue in tree.queues.values()
        for pool in queue.pools
        if pool not in pools
    ]


def _wrong_amounts(tree: QueueTree) -> list[Reason]:
    result = []
    for name, queue in tree.queues.items():
        for pool, shares in queue.pools.items():
            for resource, share in shares.items():
                if share.limit is not None or share.guarantee is not None:
                    result += _wrong_share(tree, (name, pool, resource), share)
    return result + _above_pools(tree)


def _wrong_share(tree: QueueTree, location: tuple[str, str, str], share: Share) -> list[Reason]:
    result, quota = list[Reason](), tree.quota(*location) or 0
    below = share.limit not in (None, UNLIMITED) and (quota == UNLIMITED or (share.limit or 0) < quota)
    above = share.guarantee is not None and quota != UNLIMITED and share.guarantee > quota
    where = tree.where(*location) if below or above else ""
    if below:
        why = f"{where}: the limit {_amount(share.limit)} is below the quota {_amount(quota)}; change one."
        result.append(Reason("LIMIT_BELOW_QUOTA", why))
    if above:
        why = f"{where}: the guarantee {_amount(share.guarantee)} is more than the quota {_amount(quota)}."
        result.append(Reason("GUARANTEE_ABOVE_QUOTA", why))
    return result


def _wrong_sum(where: str, share: Share, below: int) -> list[Reason]:
    if share.quota in (None, UNLIMITED) or (below != UNLIMITED and below <= share.quota):
        return []
    why = f"{where}: its queues have a quota of {_amount(below)} together, and it has {_amount(share.quota)}."
    return [Reason("CHILDREN_ABOVE_QUOTA", why)]


def _above_pools(tree: QueueTree) -> list[Reason]:
    result = []
    for pool in tree.pools.values():
        for resource, capacity in pool.capacity.items():
            quotas = [tree.quota(name, pool.name, resource) or 0 for name in tree.roots]
            total = sum(quota for quota in quotas if quota != UNLIMITED)
            if total > capacity:
                why = (
                    f"pool {pool.name} has {_amount(capacity)} {resource}, and its queues a quota of {_amount(total)}."
                )
                result.append(Reason("QUOTA_ABOVE_POOL", why))
    return result


def _amount(amount: int | None) -> str:
    return "without bound" if amount in (None, UNLIMITED) else format_thousandths(amount)
