"""Which Workloads get their rank in the order as their priority, which have their own back, and where neither may be.

Kueue evicts by the same number by which it admits, so that the order is written only in cohorts that evict nobody by
priority. Numbers are written from the highest down: what has none yet is behind all that have one, and what has one is
in the right order at any time, also when nobody goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_order import OrderedWorkload, OrderMark, OrderRules
from kopt.policies.priority.formula import PendingWorkload
from kopt.policies.priority.queue_order import QueueOrder

MOST_TIMES = 3
"""How often a number is written again over the workload's own priority: Kueue puts that back when a job's pods change,
and somebody who does it again and again wants it so."""


class OrderAction(StrEnum):
    WRITE = "write"
    GIVE_BACK = "give back"


@dataclass(frozen=True, slots=True)
class OrderWrite:
    """One change of a Workload; ``mark`` is None where it has its own priority back."""

    action: OrderAction
    workload: OrderedWorkload
    mark: OrderMark | None = None

    @property
    def rank(self) -> tuple[bool, int, float, str]:
        """The lowest is made first: what is given back from the last in the order up, then what is written from the
        first down, of equal numbers the older."""
        if self.mark is not None:
            return True, -self.mark.written, self.workload.created_s, self.workload.name
        standing = self.workload.mark
        return False, standing.written if standing is not None else 0, 0.0, self.workload.name


def order_write(workload: OrderedWorkload, order: QueueOrder | None, is_ordered: bool) -> OrderWrite | Reason | None:
    """What is to be written on a Workload, or why what others have written stays; None where all is as it should be.

    ``order`` is None where nothing is to be ordered; ``is_ordered`` says it of its ClusterQueue.
    """
    mark = workload.mark
    if not workload.may_change:
        return None
    if order is None or not is_ordered:
        return OrderWrite(OrderAction.GIVE_BACK, workload) if mark is not None else None
    if not workload.pending or (workload.stands and mark is not None and mark.formula == order.identity):
        return None
    return _respected(workload) or OrderWrite(OrderAction.WRITE, workload, _mark(workload, order))


def pending_workload(workload: OrderedWorkload) -> PendingWorkload:
    points = float(workload.own_priority or 0) + workload.more_points
    return PendingWorkload(workload.name, points, workload.gpus / 1000, workload.created_s)


def order_refusals(queues: Iterable[OrderRules]) -> dict[str, Reason]:
    """By ClusterQueue, why its order may not be written. A cohort tree is refused as a whole: its queues compare their
    first workloads by the same number."""
    queues = list(queues)
    causes = dict[str, Reason]()
    for queue in sorted(queues, key=lambda each: each.name):
        reason = _refusal(queue)
        if reason is not None:
            causes.setdefault(root_of(queue), reason)
    return {queue.name: causes[root_of(queue)] for queue in queues if root_of(queue) in causes}


def root_of(queue: OrderRules) -> str:
    """What is ordered as a whole: a cohort tree, or a ClusterQueue without one."""
    return f"cohorts/{queue.cohort}" if queue.cohort else f"clusterqueues/{queue.name}"


def _refusal(queue: OrderRules) -> Reason | None:
    rule = ""
    if queue.within != "Never":
        rule = f"withinClusterQueue: {queue.within}"
    elif queue.cohort and queue.reclaim != "Never":
        # Kueue selects among borrowers of any priority by their priority too.
        rule = f"reclaimWithinCohort: {queue.reclaim}"
    elif queue.cohort and queue.borrows:
        rule = "borrowWithinCohort"
    if rule:
        text = f"ClusterQueue {queue.name} has {rule}: a number for the order would change who is evicted."
        return Reason("EVICTS_BY_PRIORITY", text, {"queue": queue.name})
    if queue.by_usage:
        text = f"ClusterQueue {queue.name} has an admissionScope: whoever has used less is first, whatever the number."
        return Reason("ORDERED_BY_USAGE", text, {"queue": queue.name})
    return None


def _respected(workload: OrderedWorkload) -> Reason | None:
    """Why a priority that somebody has set since stays. With another class it is that class's, and counts as it."""
    mark = workload.mark
    if mark is None or workload.stands or mark.class_name != workload.class_name:
        return None
    if workload.priority == mark.priority and mark.times < MOST_TIMES:
        return None
    text = f"The priority {workload.priority} was written by others after {mark.written}, and stays."
    return Reason("PRIORITY_OF_OTHERS", text, {"priority": workload.priority or 0, "written": mark.written})


def _mark(workload: OrderedWorkload, order: QueueOrder) -> OrderMark:
    before = workload.mark
    again = before is not None and not workload.stands and before.class_name == workload.class_name
    times = before.times + 1 if before is not None and again else 1
    written = order.number(pending_workload(workload))
    return OrderMark(workload.own_priority, written, workload.class_name, order.identity, times)
