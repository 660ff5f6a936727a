"""When a conservative queue takes its quota back: after a grace, from nobody in its minimum run time, and not twice
within a pause, so that borrowers are not admitted and evicted in turns (kueue#14468).

The engine evicts, by its own rule: what is decided is from when until when it may.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason

DEFAULT_GRACE_S = 600
PAUSE_S = 600.0
"""Between the beginnings of two reclaims of one queue."""
LONGEST_S = 60.0
"""For how long the engine may evict for a queue; it needs seconds."""


@dataclass(frozen=True)
class OwnerState:
    """A conservative queue. ``waits_since_s``: of its oldest workload that its own quota would hold, None without one;
    ``reclaimed_s``: when its last reclaim began. All in Unix seconds."""

    name: str
    grace_s: int = DEFAULT_GRACE_S
    waits_since_s: float | None = None
    reclaimed_s: float | None = None


@dataclass(frozen=True)
class BorrowedRun:
    """A workload of a queue that uses more than its quota: since when it runs, and for how long it is left alone."""

    name: str
    started_s: float
    min_runtime_s: int = 0


@dataclass(frozen=True)
class ReclaimDecision:
    """Whether the engine may evict for the queue now, why, and in how many seconds that may change by itself."""

    reclaims: bool
    reason: Reason
    again_s: float = float("inf")


def delayed_reclaim(owner: OwnerState, borrowed: Sequence[BorrowedRun], now_s: float) -> ReclaimDecision:
    """Borrowers that are evicted lose no more than the engine would take from them after the grace."""
    if owner.waits_since_s is None:
        return ReclaimDecision(False, Reason("NOTHING_WAITS", "No workload waits for the queue's own quota."))
    waited_s = now_s - owner.waits_since_s
    if waited_s < owner.grace_s:
        why = f"A workload waits for the queue's own quota since {waited_s:.0f} s; the grace is {owner.grace_s} s."
        return ReclaimDecision(False, Reason("IN_GRACE", why), owner.grace_s - waited_s)
    since_s = None if owner.reclaimed_s is None else now_s - owner.reclaimed_s
    if since_s is not None and LONGEST_S <= since_s < PAUSE_S:
        why = f"Quota was taken back {since_s:.0f} s ago, and is again after {PAUSE_S:.0f} s at the earliest."
        return ReclaimDecision(False, Reason("BACKS_OFF", why), PAUSE_S - since_s)
    young = [(run.started_s + run.min_runtime_s - now_s, run) for run in borrowed]
    left_s, run = max(young, key=lambda item: item[0], default=(0.0, None))
    if run is not None and left_s > 0:
        why = f"{run.name} is in its minimum run time of {run.min_runtime_s} s for another {left_s:.0f} s."
        return ReclaimDecision(False, Reason("IN_MIN_RUNTIME", why), left_s)
    ongoing = since_s is not None and since_s < LONGEST_S
    why = f"A workload waits for the queue's own quota since {waited_s:.0f} s: borrowers are evicted for it."
    return ReclaimDecision(True, Reason("RECLAIMS", why), LONGEST_S - (since_s or 0.0) if ongoing else LONGEST_S)
