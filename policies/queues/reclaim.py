"""When a conservative queue takes its quota back, and from whom: after a grace, from nobody in its minimum run time or
in a write, after a checkpoint where one can be had, and neither twice within a pause nor twice from one workload within
it, so that borrowers are not admitted and evicted in turns (kueue#14468).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.workload.save_state import SaveState
from kopt.policies.queues.victims import BorrowedRun, Room, Safety, victims_of

DEFAULT_GRACE_S = 600
PAUSE_S = 600.0
"""Between the beginnings of two reclaims of one queue, and from the return of a workload that was evicted until it is
evicted again."""
LONGEST_S = 60.0
"""For how long borrowers are evicted once that has begun, for workloads whose grace was over then."""
_STAMP_S = 1.0
"""What a time that is written in whole seconds may be early by."""
_RECHECK_S = 2.0


@dataclass(frozen=True)
class OwnerState:
    """A conservative queue. ``waits_since_s``: of its oldest workload that its own quota would hold, None without one;
    ``reclaimed_s``: when its last reclaim began. All in Unix seconds."""

    name: str
    grace_s: int = DEFAULT_GRACE_S
    waits_since_s: float | None = None
    reclaimed_s: float | None = None


@dataclass(frozen=True)
class ReclaimDecision:
    """Whether borrowers are evicted for the queue now, why, and in how many seconds that may change by itself.

    ``victims`` are evicted now; of ``saves`` a checkpoint is requested, and they are evicted when they have it.
    """

    reclaims: bool
    reason: Reason
    again_s: float = float("inf")
    victims: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()


def delayed_reclaim(owner: OwnerState, borrowed: Sequence[BorrowedRun], room: Room, now_s: float) -> ReclaimDecision:
    """What to do for the oldest workload that waits for the owner's quota; ``room`` is that for this workload."""
    if owner.waits_since_s is None:
        return ReclaimDecision(False, Reason("NOTHING_WAITS", "No workload waits for the queue's own quota."))
    waited_s = now_s - owner.waits_since_s
    if waited_s < owner.grace_s:
        why = f"A workload waits for the queue's own quota since {waited_s:.0f} s; the grace is {owner.grace_s} s."
        return ReclaimDecision(False, Reason("IN_GRACE", why), owner.grace_s - waited_s)
    since_s = None if owner.reclaimed_s is None else now_s - owner.reclaimed_s
    if since_s is not None and since_s < PAUSE_S and not _is_due(owner, since_s):
        why = f"Quota was taken back {since_s:.0f} s ago, and is again after {PAUSE_S:.0f} s at the earliest."
        return ReclaimDecision(False, Reason("BACKS_OFF", why), PAUSE_S - since_s)
    victims = victims_of([run for run in borrowed if run.terminating or _remaining_s(run, now_s) <= 0], room)
    if victims is None:
        return _nobody(borrowed, room, now_s)
    return _reclaimed(victims, waited_s)


def _is_due(owner: OwnerState, since_s: float) -> bool:
    """Whether what waits is among that for which the last reclaim began."""
    began_s, waits_s = owner.reclaimed_s or 0.0, owner.waits_since_s or 0.0
    return since_s < LONGEST_S and waits_s + owner.grace_s <= began_s + _STAMP_S


def _reclaimed(victims: Sequence[BorrowedRun], waited_s: float) -> ReclaimDecision:
    waits = f"A workload waits for the queue's own quota since {waited_s:.0f} s"
    if not victims:
        why = f"{waits}; it is free once those that were evicted have ended."
        return ReclaimDecision(False, Reason("COMES_FREE", why), _RECHECK_S)
    unready = [run for run in victims if run.safety is Safety.SAVES or run.save in (SaveState.ASKED, SaveState.ASKABLE)]
    if unready:
        saves = tuple(run.name for run in victims if run.save is SaveState.ASKABLE)
        why = f"{waits}; {', '.join(run.name for run in unready)} saves a checkpoint first."
        return ReclaimDecision(False, Reason("SAVES_FIRST", why), _RECHECK_S, saves=saves)
    names = tuple(run.name for run in victims)
    return ReclaimDecision(
        True, Reason("RECLAIMS", f"{waits}: {', '.join(names)} is evicted for it."), _RECHECK_S, names
    )


def _nobody(borrowed: Sequence[BorrowedRun], room: Room, now_s: float) -> ReclaimDecision:
    young = [
        (remaining_s, run) for run in borrowed if not run.terminating and (remaining_s := _remaining_s(run, now_s)) > 0
    ]
    if not young or victims_of(borrowed, room) is None:
        why = "All workloads that may be evicted do not free what a workload of the queue waits for."
        return ReclaimDecision(False, Reason("NO_VICTIMS", why))
    remaining_s, run = min(young, key=lambda item: (item[0], item[1].name))
    why = (
        f"{run.name} has run for less than {_protected_s(run):.0f} s, "
        f"and is left alone for another {remaining_s:.0f} s."
    )
    return ReclaimDecision(False, Reason("IN_MIN_RUNTIME", why), remaining_s)


def _protected_s(run: BorrowedRun) -> float:
    return max(run.min_runtime_s, PAUSE_S if run.was_evicted else 0.0)


def _remaining_s(run: BorrowedRun, now_s: float) -> float:
    return run.started_s + _protected_s(run) - now_s
