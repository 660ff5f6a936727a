"""A cohort tree with its usage: what a queue can still get, and which node of the tree limits that."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.core.scheduling.quota import Admitted, FlavorResource, Quota, QuotaNode

_NONE = Quota()


@dataclass(frozen=True)
class Room:
    """The most that a queue can get as far as one node limits it: below 0 where more is used than there is.

    ``borrowing``: the node's borrowing limit binds, not its quota.
    """

    node: str
    amount: int
    borrowing: bool = False


@dataclass
class QuotaTree:
    """The nodes of one tree, or of several. A parent that has no node of its own is a cohort without quota.

    A node keeps for its own subtree what exceeds its lending limit; usage beyond that counts at its parent. A cohort
    that is its own ancestor, in which Kueue admits nothing, counts as a root.
    """

    nodes: Mapping[str, QuotaNode]
    _children: dict[str, list[str]] = field(default_factory=dict)
    _subtree: dict[tuple[str, FlavorResource], int] = field(default_factory=dict)
    _usage: Counter[tuple[str, FlavorResource]] = field(default_factory=Counter)
    _lineages: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[QuotaNode], admitted: Iterable[Admitted] = ()) -> "QuotaTree":
        """The tree with the usage of ``admitted``."""
        by_key = {node.key: node for node in nodes}
        for parent in {node.parent for node in by_key.values() if node.parent} - by_key.keys():
            by_key[parent] = QuotaNode(parent)
        for key, node in by_key.items():
            if _is_own_ancestor(key, by_key):
                by_key[key] = replace(node, parent="")
        tree = cls(by_key)
        for node in by_key.values():
            tree._children.setdefault(node.parent, []).append(node.key)
        for workload in admitted:
            tree.add(workload.queue, workload.uses)
        return tree

    def lineage(self, key: str) -> tuple[str, ...]:
        """A node and its ancestors up to the root."""
        if key not in self._lineages:
            result: list[str] = []
            current = key
            while current in self.nodes:
                result.append(current)
                current = self.nodes[current].parent
            self._lineages[key] = tuple(result)
        return self._lineages[key]

    def children(self, key: str) -> Sequence[str]:
        return self._children.get(key, ())

    def quota(self, key: str, flavor_resource: FlavorResource) -> Quota:
        node = self.nodes.get(key)
        return _NONE if node is None else node.quotas.get(flavor_resource, _NONE)

    def subtree(self, key: str, flavor_resource: FlavorResource) -> int:
        """A node's own quota and what its children lend."""
        at = (key, flavor_resource)
        if at not in self._subtree:
            self._subtree[at] = self.quota(key, flavor_resource).nominal + sum(
                self.subtree(child, flavor_resource) - self.local(child, flavor_resource)
                for child in self.children(key)
            )
        return self._subtree[at]

    def local(self, key: str, flavor_resource: FlavorResource) -> int:
        """The part of it that never leaves the node, because of its lending limit."""
        limit = self.quota(key, flavor_resource).lending_limit
        return 0 if limit is None else max(0, self.subtree(key, flavor_resource) - limit)

    def used(self, key: str, flavor_resource: FlavorResource) -> int:
        """What counts against a node's subtree: of a cohort, what its children use beyond their local quota."""
        return self._usage[key, flavor_resource]

    def add(self, queue: str, uses: Mapping[FlavorResource, int], sign: int = 1) -> None:
        """Adds usage to a queue, or removes it with ``sign`` -1."""
        for flavor_resource, amount in uses.items():
            change = sign * amount
            for key in self.lineage(queue):
                before, local = self.used(key, flavor_resource), self.local(key, flavor_resource)
                self._usage[key, flavor_resource] = before + change
                change = max(0, before + change - local) - max(0, before - local)
                if not change:
                    break

    def rooms(self, queue: str, flavor_resource: FlavorResource) -> list[Room]:
        """The limits of what a queue can get, from its own borrowing limit up to the quota of the root.

        What nodes below have left of their local quota does not have to come from the node.
        """
        result, kept = list[Room](), 0
        lineage = self.lineage(queue)
        for key in lineage:
            subtree, used = self.subtree(key, flavor_resource), self.used(key, flavor_resource)
            limit = self.quota(key, flavor_resource).borrowing_limit
            if key == lineage[-1]:
                result.append(Room(key, kept + subtree - used))
            elif limit is not None:
                result.append(Room(key, kept + subtree - used + limit, borrowing=True))
            kept += max(0, self.local(key, flavor_resource) - used)
        return result

    def available(self, queue: str, flavor_resource: FlavorResource) -> int:
        return max(0, min((room.amount for room in self.rooms(queue, flavor_resource)), default=0))

    def capacity(self, queue: str, flavor_resource: FlavorResource) -> int:
        """What a queue could get if nothing were in use."""
        lineage, result = self.lineage(queue), 0
        for key in reversed(lineage):
            subtree = self.subtree(key, flavor_resource)
            if key == lineage[-1]:
                result = subtree
                continue
            result += self.local(key, flavor_resource)
            limit = self.quota(key, flavor_resource).borrowing_limit
            if limit is not None:
                result = min(result, subtree + limit)
        return result

    def exceeds(self, key: str, flavor_resource: FlavorResource, more: int = 0) -> bool:
        """Whether a node uses more than its subtree has, with ``more``."""
        return self.used(key, flavor_resource) + more > self.subtree(key, flavor_resource)

    def height(self, key: str) -> int:
        """The distance to the furthest descendant."""
        return max((1 + self.height(child) for child in self.children(key)), default=0)


def _is_own_ancestor(key: str, nodes: Mapping[str, QuotaNode]) -> bool:
    visited, current = set[str](), nodes[key].parent
    while current in nodes and current not in visited:
        if current == key:
            return True
        visited.add(current)
        current = nodes[current].parent
    return False
