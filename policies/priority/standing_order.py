"""The writes of an order that always stands: each Workload is decided on when it changes, and at no other time."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_order import OrderedWorkload
from kopt.policies.priority.order_writes import OrderWrite, order_write
from kopt.policies.priority.queue_order import QueueOrder


class StandingOrder:
    """Of Workloads as they come, change and go, by name. ``order`` is None where nothing is to be ordered.

    A change costs the logarithm of what there is; another set of ordered queues costs their Workloads.
    """

    def __init__(self, order: QueueOrder | None) -> None:
        self._order = order
        self._queues: Set[str] = frozenset()
        self._queue_of: dict[str, str] = {}
        self._in_queue: defaultdict[str, set[str]] = defaultdict(set)
        self._writes: dict[str, OrderWrite] = {}
        self._ranks: list[tuple[bool, int, float, str]] = []
        """Of the writes, sorted."""
        self._respected: dict[str, Reason] = {}
        self._standing: set[str] = set()

    @property
    def writes(self) -> Iterator[OrderWrite]:
        """In the order in which they are to be made."""
        return (self._writes[name] for *_, name in self._ranks)

    @property
    def unordered(self) -> int:
        """How many are to be written."""
        return len(self._writes)

    @property
    def ordered(self) -> int:
        """How many have their number, in queues that are ordered."""
        return len(self._standing)

    @property
    def respected(self) -> Mapping[str, Reason]:
        """What others have changed since, by the Workload's name."""
        return self._respected

    def include(self, queues: Set[str]) -> list[str]:
        """These ClusterQueues are ordered, and no others. Returns the names of the Workloads for which that is new:
        they are to be put again."""
        changed, self._queues = queues ^ self._queues, queues
        return [name for queue in changed for name in self._in_queue.get(queue, ())]

    def put(self, workload: OrderedWorkload) -> None:
        """This is how it is now."""
        self.remove(workload.name)
        self._queue_of[workload.name] = workload.queue
        self._in_queue[workload.queue].add(workload.name)
        self._decide(workload)

    def remove(self, name: str) -> None:
        """It is gone, if it was there."""
        queue = self._queue_of.pop(name, None)
        if queue is None:
            return
        self._in_queue[queue].discard(name)
        if not self._in_queue[queue]:
            del self._in_queue[queue]
        self._standing.discard(name)
        self._respected.pop(name, None)
        write = self._writes.pop(name, None)
        if write is not None:
            del self._ranks[bisect_left(self._ranks, write.rank)]

    def _decide(self, workload: OrderedWorkload) -> None:
        is_ordered = self._order is not None and workload.queue in self._queues
        if is_ordered and workload.may_change and workload.stands:
            self._standing.add(workload.name)
        decided = order_write(workload, self._order, is_ordered)
        if isinstance(decided, Reason):
            self._respected[workload.name] = decided
        elif decided is not None:
            self._writes[workload.name] = decided
            insort(self._ranks, decided.rank)
