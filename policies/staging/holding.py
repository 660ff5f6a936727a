"""Which workloads wait for their data, and when they are released."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.decision import Mode


class Hold(StrEnum):
    """What to do about a workload that requests staged data."""

    LEAVE = "leave"
    HOLD = "hold"
    ANNOTATE = "mark"
    """Its queue has admitted it and no container has started: mark it as held, then stop it through its Workload."""
    STOP = "stop"
    """We hold it and its queue reserves quota for it: give the quota back."""
    PARK = "park"
    """We hold it and its queue has stopped it: take it out of the queue."""
    STAY = "stay"
    RELEASE = "release"
    QUEUE_UP = "queue up"
    """Another controller holds it: hold it next."""


@dataclass(frozen=True)
class DataWorkload:
    """A workload. ``queued``: a queue admits it; ``runs``: it is not suspended; ``begun``: one of its containers has
    started; ``ours``: we hold it, ``others``: another controller holds it, ``next``: we hold it after that one."""

    mode: Mode
    managed: bool
    queued: bool = False
    runs: bool = False
    begun: bool = False
    has_quota: bool = False
    """Its queue has reserved quota."""
    stopping: bool = False
    """We have deactivated its Workload, so that its queue stops it."""
    parked: bool = False
    changeable: bool = True
    stopped: bool = False
    """Suspended by its owner, neither by a queue nor by us."""
    finished: bool = False
    opted_out: bool = False
    ours: bool = False
    others: bool = False
    next: bool = False


def hold_for(workload: DataWorkload, *, ready: bool) -> Hold:
    """What to do about a workload, given whether its data is ``ready``."""
    acts = workload.managed and workload.mode is Mode.ENFORCE and not workload.opted_out
    if workload.ours:
        return _of_ours(workload, ends=ready or not acts or workload.finished)
    if not acts or ready or workload.finished or workload.stopped:
        return Hold.LEAVE
    if workload.others:
        return Hold.LEAVE if workload.next else Hold.QUEUE_UP
    if workload.runs and workload.begun:
        return Hold.LEAVE
    # A workload cannot leave a queue that has reserved quota for it.
    return Hold.ANNOTATE if workload.queued and (workload.runs or workload.has_quota) else Hold.HOLD


def _of_ours(workload: DataWorkload, *, ends: bool) -> Hold:
    if workload.queued and workload.parked and workload.has_quota and not workload.finished:
        # Its queue was about to start it when we parked it: it can return once that is over.
        return Hold.STAY if workload.stopping else Hold.STOP
    if ends or (workload.runs and workload.begun and not workload.stopping):
        return Hold.RELEASE
    if workload.queued and workload.has_quota:
        return Hold.STAY if workload.stopping else Hold.STOP
    can_leave_queue = workload.queued and not workload.runs and not workload.parked and workload.changeable
    return Hold.PARK if can_leave_queue else Hold.STAY
