"""Weighted hierarchical dominant resource fairness by progressive filling.

Ghodsi et al., "Dominant Resource Fairness", NSDI 2011: every queue's dominant share grows at the rate of its weight
until its demand is met or a resource that it needs is exhausted. In trees, as Bhattacharya et al. ("Hierarchical
Scheduling for Diverse Datacenter Workloads", SoCC 2013) require it, blocked queues do not count in what their parent is
held to have: the shares of siblings that can still grow do so at the rates of their weights, whatever those that cannot
have used. So a leaf never starves because of a sibling with another dominant resource.

Quotas are filled first, those of the lowest queues before those of the queues above them; what is left is shared out
without quotas. A guarantee that its owner does not use is lent to nobody. A queue's demand is one vector, and its share
has the same proportions.

All of it is in integers: a leaf has ``filled / SCALE`` of its demand, so the result depends neither on the order of the
queues nor on rounding, and the sum is never above the capacity.
"""

from collections.abc import Iterable
from itertools import chain
from math import fsum

from kopt.policies.shares.model import Amounts, ShareQueue, ShareTree

_SCALE = 1 << 200
_RATE = 1 << 62
_SLACK = 1 << 160
"""Of a thousandth's ``_SCALE``: so little below a whole number is the rounding of rates, and counts as that number."""
_Bound = tuple[str, str, str]
"""(which bound, queue, resource)."""


def ideal_shares(queues: Iterable[ShareQueue], capacity: Amounts) -> dict[str, dict[str, int]]:
    """What every queue has under the ideal division; of a department the sum of its queues.

    A resource without ``capacity`` is not shared out, and met in the proportions of the others.
    """
    tree = ShareTree(queues)
    filling = _Filling(tree, capacity)
    for depth in range(max(map(tree.depth, tree.queues), default=0), -1, -1):
        filling.fill(depth)
    amounts = {leaf: filling.amounts(leaf) for leaf in tree.leaves}
    return {name: tree.total(name, amounts) for name in tree.queues}


class _Filling:
    def __init__(self, tree: ShareTree, capacity: Amounts) -> None:
        self._tree, self._capacity = tree, capacity
        self._demand = {
            leaf: {resource: value for resource, value in tree.queues[leaf].demand.items() if value}
            for leaf in tree.leaves
        }
        self._filled = {leaf: 0 for leaf in tree.leaves if self._demand[leaf]}
        self._blocked: set[str] = set()
        self._below_guarantee = {
            (name, resource)
            for name, queue in tree.queues.items()
            for resource, value in queue.guarantee.items()
            if value
        }
        self._resources = sorted(set(chain.from_iterable(self._demand.values())))
        self._below = {
            name: [leaf for leaf in self._filled if name in tree.lineages[leaf]] for name in ("", *tree.queues)
        }
        self._below[""] = list(self._filled)

    def amounts(self, leaf: str) -> dict[str, int]:
        filled = self._filled.get(leaf, 0)
        return {resource: (value * filled + _SLACK) // _SCALE for resource, value in self._demand[leaf].items()}

    def fill(self, depth: int) -> None:
        """Grow the leaves until each is blocked. Queues down to ``depth`` keep to their quotas, and leaves above it
        wait for their turn; at 0 nobody keeps to a quota."""
        full: set[str] = set()
        while active := {
            leaf
            for leaf, filled in self._filled.items()
            if filled < _SCALE and leaf not in self._blocked | full and self._has_turn(leaf, depth)
        }:
            rates = self._rates(active)
            step, reached = self._next(rates, depth)
            for leaf, rate in rates.items():
                self._filled[leaf] += step * rate
            for kind, name, resource in reached:
                if kind == "demand":
                    self._filled[name] = _SCALE
                elif kind == "guarantee":
                    self._below_guarantee.discard((name, resource))
                else:
                    touched = {leaf for leaf in rates if self._touches(kind, leaf, name, resource)}
                    (full if kind == "quota" else self._blocked).update(touched)

    def _has_turn(self, leaf: str, depth: int) -> bool:
        """Whether the queue at this depth above a leaf, or the leaf, has a quota of anything that the leaf needs."""
        if not depth:
            return True
        above = self._tree.lineages[leaf][-depth] if self._tree.depth(leaf) >= depth else ""
        return bool(above) and not self._demand[leaf].keys().isdisjoint(self._tree.queues[above].quota)

    def _rates(self, active: set[str]) -> dict[str, int]:
        """By leaf, how fast its part of the demand grows: the dominant share of every queue that can grow does so at
        the rate of its weight against its siblings'."""
        speeds: dict[str, float] = {}
        self._spread("", active, 1.0, speeds)
        fastest = max(speeds.values())
        return {leaf: max(1, int(speed / fastest * _RATE)) for leaf, speed in speeds.items()}

    def _spread(self, name: str, active: set[str], speed: float, speeds: dict[str, float]) -> None:
        if name in active:
            speeds[name] = speed / self._dominant(self._part(name))
            return
        children = self._growing(name, active)
        growth = self._growth(name, active)
        for child, weight in children.items():
            self._spread(child, active, speed * weight / (self._dominant(growth) if name else 1.0), speeds)

    def _growing(self, name: str, active: set[str]) -> dict[str, float]:
        """Children that can grow, with their weights; those of weight 0 only where no other can."""
        children = [child for child in self._tree.children(name) if any(leaf in active for leaf in self._below[child])]
        weights = {child: self._tree.queues[child].weight / 1000 for child in children}
        positive = {child: weight for child, weight in weights.items() if weight}
        return positive or dict.fromkeys(children, 1.0)

    def _growth(self, name: str, active: set[str]) -> dict[str, float]:
        """How a queue's use grows, by resource in parts of the capacity, while its children's dominant shares grow at
        the rates of their weights."""
        if name in active:
            return self._part(name)
        parts = []
        for child, weight in self._growing(name, active).items():
            growth = self._growth(child, active)
            dominant = self._dominant(growth)
            parts.append({resource: weight * value / dominant for resource, value in growth.items()})
        return {resource: fsum(part.get(resource, 0.0) for part in parts) for resource in self._resources}

    def _part(self, leaf: str) -> dict[str, float]:
        """The demand in parts of the capacity."""
        capacity = self._capacity
        return {name: value / capacity[name] for name, value in self._demand[leaf].items() if capacity.get(name)}

    @staticmethod
    def _dominant(growth: dict[str, float]) -> float:
        return max(growth.values(), default=0.0) or 1.0

    def _next(self, rates: dict[str, int], depth: int) -> tuple[int, list[_Bound]]:
        """How far everybody can grow until a bound is reached, and which are."""
        steps: dict[_Bound, int] = {
            ("demand", leaf, ""): -((self._filled[leaf] - _SCALE) // rate) for leaf, rate in rates.items()
        }
        for resource in self._resources:
            growth = {leaf: rate * self._demand[leaf].get(resource, 0) for leaf, rate in rates.items()}
            self._bounds(resource, growth, depth, steps)
        step = max(0, min(steps.values()))
        # A step that would overshoot ends below; what it was for is then reached.
        whole = min(step, *((_SCALE - self._filled[leaf]) // rate for leaf, rate in rates.items()))
        return whole, [bound for bound, at in steps.items() if at <= step]

    def _bounds(self, resource: str, growth: dict[str, int], depth: int, steps: dict[_Bound, int]) -> None:
        for name, queue in self._tree.queues.items():
            grows = sum(growth.get(leaf, 0) for leaf in self._below[name])
            if not grows:
                continue
            used = self._used(name, resource)
            bounds = {"limit": queue.limit}
            if self._tree.depth(name) <= depth:
                bounds["quota"] = queue.quota
            for kind, amounts in bounds.items():
                if resource in amounts:
                    steps[kind, name, resource] = (amounts[resource] * _SCALE - used) // grows
        if resource in self._capacity:
            self._shared(resource, growth, steps)

    def _shared(self, resource: str, growth: dict[str, int], steps: dict[_Bound, int]) -> None:
        """The capacity, of which unused guarantees are nobody else's."""
        whole = self._capacity[resource] * _SCALE
        if total := sum(growth.values()):
            steps["capacity", "", resource] = (whole - self._used("", resource)) // total
        used, grows = 0, 0
        for root in self._tree.children(""):
            its_own, its_growth = self._withheld(root, resource, growth, steps)
            used, grows = used + its_own, grows + its_growth
        if grows:
            steps["withheld", "", resource] = (whole - used) // grows

    def _withheld(self, name: str, resource: str, growth: dict[str, int], steps: dict[_Bound, int]) -> tuple[int, int]:
        """What a queue has or keeps for itself of a resource, and how fast that grows."""
        children = self._tree.children(name)
        if children:
            rows = [self._withheld(child, resource, growth, steps) for child in children]
            used, grows = sum(row[0] for row in rows), sum(row[1] for row in rows)
        else:
            used, grows = self._used(name, resource), growth.get(name, 0)
        if (name, resource) not in self._below_guarantee:
            return used, grows
        guarantee = self._tree.queues[name].guarantee[resource] * _SCALE
        if used >= guarantee:
            self._below_guarantee.discard((name, resource))
            return used, grows
        if grows:
            steps["guarantee", name, resource] = (guarantee - used) // grows
        return guarantee, 0

    def _touches(self, kind: str, leaf: str, name: str, resource: str) -> bool:
        """Whether a bound that is reached ends the growth of a leaf."""
        if not self._demand[leaf].get(resource):
            return False
        if kind == "withheld":
            return all((queue, resource) not in self._below_guarantee for queue in self._tree.lineages[leaf])
        return not name or name in self._tree.lineages[leaf]

    def _used(self, name: str, resource: str) -> int:
        return sum(self._filled[leaf] * self._demand[leaf].get(resource, 0) for leaf in self._below[name])
