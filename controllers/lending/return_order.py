"""Which workloads of a borrowing queue return next, by the recorded evictions of those that were stopped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.objects.eviction import proven_notice_of
from kopt.controllers.lending.views import Borrowing, BorrowingQueue
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.lending_pool import HistoryPoint, LendingPool
from kopt.core.units import WHOLE_GPU
from kopt.policies.lending import Claim, HeldWorkload, Room, Turn, overdue, turn

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Queued:
    """A queue's stopped workloads: ``held`` still, or ``returning``. Others do not wait for one that needs more than
    ``most`` milli-GPU."""

    held: tuple[HeldWorkload, ...]
    returning: tuple[HeldWorkload, ...]
    most: int

    @classmethod
    def of(cls, queue: BorrowingQueue, lines: Mapping[str, Entry], most_lent: int) -> "Queued":
        held, returning = (
            [_held_workload(borrowing, lines) for borrowing in its] for its in (queue.held, queue.returning)
        )
        return cls(tuple(held), tuple(returning), (queue.own + most_lent) * WHOLE_GPU)

    def claim(self, queue: BorrowingQueue, now_s: float) -> Claim:
        """The queue's claim to what is lent."""
        if queue.problem is not None:
            return Claim(0)
        first = overdue((*self.held, *self.returning), self.most, now_s)
        if first is None:
            return Claim(queue.staying, queue.wanted)
        others = sum(workload.gpus for workload in self.returning if workload is not first)
        due = queue.used - queue.terminating_gpus + others + first.gpus - queue.own * WHOLE_GPU
        return Claim(queue.staying, queue.wanted, max(0, math.ceil(due / WHOLE_GPU)), first.since_s)

    def turn(self, queue: BorrowingQueue, share: int, now_s: float) -> Turn:
        """``share``: GPUs that the queue may use beyond its own."""
        room = Room((queue.own + share) * WHOLE_GPU, queue.used, queue.closed, self.most)
        return turn(room, self.held, self.returning, now_s)


def most_lent(pool: LendingPool, history: Sequence[HistoryPoint], lent: int, now_s: float) -> int:
    """GPUs that borrowers may expect at some time: the most of the last day, once a day is known."""
    if not history or history[0].at_s > now_s - 0.9 * _DAY_S:
        return pool.gpus - sum(service.minimum_gpus for service in pool.services)
    return max(lent, *(history_point.lent for history_point in history))


def _held_workload(borrowing: Borrowing, lines: Mapping[str, Entry]) -> HeldWorkload:
    """By the order of its recorded eviction; without one, by when it was stopped."""
    line = next((entry for uid in borrowing.uids if (entry := lines.get(uid))), None)
    if line is not None:
        return HeldWorkload(borrowing.name, borrowing.gpus, line.eviction.order, line.eviction.evicted_at_s)
    notice = proven_notice_of(borrowing.document)
    at_s = notice.at_s if notice else borrowing.since_s
    return HeldWorkload(borrowing.name, borrowing.gpus, int(at_s) * 1000 + 999, at_s)
