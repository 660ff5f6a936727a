"""What queues use against what they ideally had."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kopt.policies.shares.filling import ideal_shares
from kopt.policies.shares.model import Amounts, ShareQueue, ShareTree


@dataclass(frozen=True)
class QueueUse:
    """A leaf's part of what runs, and how many ``pending`` workloads request the rest of its demand."""

    use: Amounts = field(default_factory=dict)
    pending: int = 0


@dataclass(frozen=True)
class ShareRow:
    """A queue at one instant, of a department with all queues below it. Amounts are thousandths.

    ``dominant`` is the resource of which it demands the largest part of the capacity, ``share_error`` how much more of
    that capacity it uses than it ideally would (negative: less), from -1 to 1. ``borrowing`` is what it uses above its
    quota, ``broken`` what it lacks of its quota although it demands it, both by resource. ``pending`` counts workloads.
    """

    queue: ShareQueue
    use: Amounts
    demand: Amounts
    ideal: Amounts
    dominant: str
    share_error: float
    borrowing: Amounts
    broken: Amounts
    pending: int
    is_leaf: bool


def share_rows(queues: Iterable[ShareQueue], uses: Mapping[str, QueueUse], capacity: Amounts) -> list[ShareRow]:
    """A row for each queue, in the order of their names. The demand of leaves includes what they use."""
    tree = ShareTree(queues)
    ideal = ideal_shares(tree.queues.values(), capacity)
    used = {name: item.use for name, item in uses.items()}
    demands = {leaf: tree.queues[leaf].demand for leaf in tree.leaves}
    return [
        _row(
            queue,
            tree.total(name, used),
            tree.total(name, demands),
            ideal[name],
            capacity,
            sum(uses[leaf].pending for leaf in tree.leaves if leaf in uses and name in tree.lineages[leaf]),
            name in tree.leaves,
        )
        for name, queue in tree.queues.items()
    ]


def misallocated(rows: Iterable[ShareRow]) -> float:
    """The part of the capacity that leaves use and others should have: 0 where every leaf has its ideal share."""
    return max(
        sum(max(0.0, row.share_error) for row in rows if row.is_leaf),
        sum(max(0.0, -row.share_error) for row in rows if row.is_leaf),
    )


def _row(
    queue: ShareQueue, use: Amounts, demand: Amounts, ideal: Amounts, capacity: Amounts, pending: int, is_leaf: bool
) -> ShareRow:
    parts = {name: value / capacity[name] for name, value in demand.items() if capacity.get(name)}
    dominant = min(parts, key=lambda name: (-parts[name], name), default="")
    error = (use.get(dominant, 0) - ideal.get(dominant, 0)) / capacity[dominant] if dominant else 0.0
    borrowing = {name: value - queue.quota[name] for name, value in use.items() if value > queue.quota.get(name, value)}
    floors = {name: min(value, quota) for name, quota in queue.quota.items() if (value := demand.get(name, 0))}
    broken = {name: floor - use.get(name, 0) for name, floor in floors.items() if floor > use.get(name, 0)}
    return ShareRow(queue, use, demand, ideal, dominant, error, borrowing, broken, pending, is_leaf)
