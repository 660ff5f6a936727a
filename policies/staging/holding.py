"""Which workloads wait for their data, and when they are let go."""

from dataclasses import dataclass
from enum import StrEnum

from kopt.core.decision import Mode


class Hold(StrEnum):
    """What to do about a workload that asks for data."""

    LEAVE = "leave"
    HOLD = "hold"
    MARK = "mark"
    """Its queue has admitted it and nothing of it began: ours from now on, and stopped by its Workload."""
    STOP = "stop"
    """Ours, and its queue keeps quota for it: that is given back."""
    PARK = "park"
    """Ours, and its queue has stopped it: it leaves the queue."""
    STAY = "stay"
    RELEASE = "release"
    QUEUE_UP = "queue up"
    """Somebody else holds it: be the next."""


@dataclass(frozen=True)
class Asker:
    """A workload. ``queued``: a queue decides about it; ``runs``: it is not stopped; ``begun``: a container of it has
    started since; ``ours`` we hold it, ``others`` somebody else does, ``next``: and then we."""

    mode: Mode
    managed: bool
    queued: bool = False
    runs: bool = False
    begun: bool = False
    has_quota: bool = False
    """Its queue has reserved some."""
    stopping: bool = False
    """Its queue was told by us to stop it."""
    parked: bool = False
    changeable: bool = True
    stopped: bool = False
    """By its owner: neither a queue nor we."""
    finished: bool = False
    opted_out: bool = False
    ours: bool = False
    others: bool = False
    next: bool = False


def hold_for(asker: Asker, *, ready: bool) -> Hold:
    """What happens to a workload whose data is ``ready``, or is not."""
    acts = asker.managed and asker.mode is Mode.ENFORCE and not asker.opted_out
    if asker.ours:
        return _of_ours(asker, ends=ready or not acts or asker.finished)
    if not acts or ready or asker.finished or asker.stopped:
        return Hold.LEAVE
    if asker.others:
        return Hold.LEAVE if asker.next else Hold.QUEUE_UP
    if asker.runs and asker.begun:
        return Hold.LEAVE
    # A queue lets nobody leave for whom it has reserved quota.
    return Hold.MARK if asker.queued and (asker.runs or asker.has_quota) else Hold.HOLD


def _of_ours(asker: Asker, *, ends: bool) -> Hold:
    if asker.queued and asker.parked and asker.has_quota and not asker.finished:
        # Its queue was about to start it as we parked it: it can come back once that is over.
        return Hold.STAY if asker.stopping else Hold.STOP
    if ends or (asker.runs and asker.begun and not asker.stopping):
        return Hold.RELEASE
    if asker.queued and asker.has_quota:
        return Hold.STAY if asker.stopping else Hold.STOP
    leaves = asker.queued and not asker.runs and not asker.parked and asker.changeable
    return Hold.PARK if leaves else Hold.STAY
