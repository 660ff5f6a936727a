"""Queues as a fair division needs them. All amounts are integers in thousandths of what Kubernetes counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, int]
"""By resource."""
FAIR_WEIGHT = 1000
"""The weight of a queue that names none, in thousandths."""


@dataclass(frozen=True)
class ShareQueue:
    """One queue. ``quota``, ``limit`` and ``guarantee`` are totals of its subtree; a resource that is not among them
    is not bounded by them. ``demand`` (leaves only) is what its running and waiting workloads request together.

    Raises ValueError for negative amounts.
    """

    name: str
    parent: str = ""
    weight: int = FAIR_WEIGHT
    quota: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)
    guarantee: Amounts = field(default_factory=dict)
    demand: Amounts = field(default_factory=dict)

    def __post_init__(self) -> None:
        amounts = (self.quota, self.limit, self.guarantee, self.demand)
        if self.weight < 0 or any(value < 0 for each in amounts for value in each.values()):
            raise ValueError(f"{self.name}: weights and amounts are never negative")


class ShareTree:
    """Queues by name, in an order that does not depend on how they were given.

    Raises ValueError for two queues of one name, unknown parents, cycles, and demand in a queue that has others below.
    """

    def __init__(self, queues: Iterable[ShareQueue]) -> None:
        ordered = sorted(queues, key=lambda queue: queue.name)
        self.queues = {queue.name: queue for queue in ordered}
        if len(self.queues) < len(ordered):
            raise ValueError("two queues have one name")
        self._children: dict[str, list[str]] = {"": []}
        for queue in ordered:
            if queue.parent and queue.parent not in self.queues:
                raise ValueError(f"{queue.name}: there is no queue {queue.parent}")
            self._children.setdefault(queue.parent, []).append(queue.name)
        self.lineages = {name: self._lineage(name) for name in self.queues}
        self.leaves = [name for name in self.queues if name not in self._children]
        for queue in ordered:
            if queue.name in self._children and any(queue.demand.values()):
                raise ValueError(f"{queue.name}: a queue with others below it has no demand of its own")

    def children(self, name: str) -> list[str]:
        """The queues below one; of ``""`` the roots."""
        return self._children.get(name, [])

    def depth(self, name: str) -> int:
        """1 for a root."""
        return len(self.lineages[name])

    def total(self, name: str, amounts: Mapping[str, Amounts]) -> dict[str, int]:
        """The amounts of the leaves in a subtree together."""
        result: dict[str, int] = {}
        for leaf in self.leaves:
            if name in self.lineages[leaf]:
                for resource, value in amounts.get(leaf, {}).items():
                    result[resource] = result.get(resource, 0) + value
        return result

    def _lineage(self, name: str) -> tuple[str, ...]:
        result: list[str] = []
        while name:
            if name in result:
                raise ValueError(f"queue {name} is its own ancestor")
            result.append(name)
            name = self.queues[name].parent
        return tuple(result)
