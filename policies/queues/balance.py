"""Which borrowers go so that a balanced queue comes nearer its ideal share, of GPUs.

Kueue's own rules either take no job that leaves a queue with less than the other (and stop far from the shares where
jobs are large), or take it and give it back in turns (kueue#14468). Here the queue that is furthest from its share must
be nearer afterwards, by a GPU at least: while nothing comes or ends, each step lessens the largest error among those it
touches, so that it is never undone.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kopt.policies.queues.victims import BorrowedRun, Gone, Room, needed, order

STEP = 1000
"""By how much the largest error has to fall, in thousandths of a GPU."""


@dataclass(frozen=True)
class SharedRun:
    """A workload that may go, with its queue and its GPUs in thousandths."""

    run: BorrowedRun
    queue: str
    amount: int


@dataclass(frozen=True)
class Shares:
    """By leaf, thousandths of a GPU: what it uses, without what is terminating, and what it ideally had."""

    use: Mapping[str, int]
    ideal: Mapping[str, int]

    def lacks(self, queue: str) -> int:
        return self.ideal.get(queue, 0) - self.use.get(queue, 0)

    def error(self, queues: Sequence[str]) -> int:
        """The largest of these queues."""
        return max(abs(self.lacks(queue)) for queue in queues)

    def moved(self, queue: str, amount: int) -> "Shares":
        """With more in use."""
        return Shares({**self.use, queue: self.use.get(queue, 0) + amount}, self.ideal)


def wants_share(shares: Shares, owner: str, wanted: int) -> bool:
    """Whether the owner is nearer its share with a workload of this size, by a step at least."""
    lacks = shares.lacks(owner)
    return abs(lacks - wanted) <= lacks - STEP


def balancing_victims(
    owner: str, wanted: int, runs: Sequence[SharedRun], shares: Shares, room: Room
) -> tuple[BorrowedRun, ...] | None:
    """Who goes for a workload of ``wanted`` thousandths of a GPU, beside those that are terminating; empty where nobody
    else has to, None where no shares come nearer by it. No queue is taken below its quota."""
    if not wants_share(shares, owner, wanted):
        return None
    gone = Gone(each.run.name for each in runs if each.run.terminating)
    alike: dict[tuple[str, int], list[SharedRun]] = defaultdict(list)
    for each in sorted(runs, key=lambda each: order(each.run), reverse=True):
        if not each.run.terminating:
            alike[each.queue, each.amount].append(each)
    picked, after, most = list[SharedRun](), shares, shares.lacks(owner) - STEP
    while not room.fits(gone):
        heads = [others[-1] for others in alike.values() if others]
        if not heads:
            return None
        best = min(heads, key=partial(_rank, after))
        alike[best.queue, best.amount].pop()
        # Whoever may not go now may not when others have gone from its queue either.
        if _may_go(best, after, most, gone, room):
            picked.append(best)
            gone.add(best.run.name)
            after = after.moved(best.queue, -best.amount)
    return needed([each.run for each in picked], gone, room)


def _rank(shares: Shares, each: SharedRun) -> tuple[Any, ...]:
    """Those first whose queue keeps its share, or is least below it; then of the queue that has most above it."""
    lacks = shares.lacks(each.queue)
    return max(0, each.amount + lacks), lacks, order(each.run)


def _may_go(each: SharedRun, shares: Shares, most: int, gone: Gone, room: Room) -> bool:
    """Of a queue above its share, which is then below it by ``most`` at the utmost, and not below its quota."""
    above = -shares.lacks(each.queue)
    return (
        above > 0
        and each.amount - above <= max(0, most)
        and room.lends(each.run.name, gone)
        and room.shortfall(each.run.name, gone) <= 0
    )
