"""When a conservative queue takes its quota back, and from whom: after a grace, from nobody in its minimum run time or
in a write, after a checkpoint where one can be had, and neither twice within a pause nor twice from one workload within
it, so that borrowers are not admitted and evicted in turns (kueue#14468).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kopt.core.reason import Reason
from kopt.core.workload.save_state import SaveState
from kopt.policies.queues.balance import SharedRun, Shares, balancing_victims, wants_share
from kopt.policies.queues.victims import BorrowedRun, Room, Safety, victims_of

DEFAULT_GRACE_S = 600


@dataclass(frozen=True)
class Pace:
    """Spans in seconds. ``pause_s``: from the beginning of a reclaim until the next one of that queue, for what came
    since; and from the return of a workload that was evicted until it is evicted again. ``longest_s``: for how long
    borrowers are evicted for one workload once that has begun, if others get what they leave. ``recheck_s``: until what
    others do is looked at again."""

    pause_s: float = 600.0
    longest_pause_s: float = 14_400.0
    """Up to this a workload for which victims went in vain again waits for twice the pause that it waited before."""
    longest_s: float = 60.0
    recheck_s: float = 2.0
    review_s: float = 10.0
    """How often a balanced queue is looked at while something waits in it."""


PACE = Pace()


@dataclass(frozen=True)
class OwnerState:
    """A conservative queue, for one of the workloads that wait for its own quota. ``waits_since_s``: of this one, None
    without one; ``reclaimed_s``: when the queue's last reclaim began; ``attempted_s``: when borrowers were first
    evicted for this workload the last time; all in Unix seconds. ``attempts``: how often they were. ``sufficed``: it
    would have its quota now, had nobody else been admitted since. ``is_full``: workloads wait, and none fits beside
    what the queue's own ones use. ``by_age``: a balanced queue, in which the engine does not share what is freed."""

    name: str
    grace_s: int = DEFAULT_GRACE_S
    waits_since_s: float | None = None
    reclaimed_s: float | None = None
    attempted_s: float | None = None
    attempts: int = 0
    sufficed: bool = False
    is_full: bool = False
    by_age: bool = False


@dataclass(frozen=True)
class ReclaimDecision:
    """Whether borrowers are evicted for the queue now, why, and in how many seconds that may change by itself.

    ``victims`` are evicted now; of ``saves`` a checkpoint is requested, and they are evicted when they have it. Both
    are among ``claimed``, who go for no other workload; ``is_served``: with these gone this one has its quota.
    """

    reclaims: bool
    reason: Reason
    again_s: float = float("inf")
    victims: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()
    is_served: bool = False


def delayed_reclaim(
    owner: OwnerState, borrowed: Sequence[BorrowedRun], room: Room, now_s: float, pace: Pace = PACE
) -> ReclaimDecision:
    """What to do for one workload that waits for the owner's quota; ``room`` is that for this workload, and for those
    that were decided about before it."""
    if owner.waits_since_s is None:
        return ReclaimDecision(False, _nothing(owner))
    waited_s = now_s - owner.waits_since_s
    if waited_s < owner.grace_s:
        why = f"A workload waits for the queue's own quota since {waited_s:.0f} s; the grace is {owner.grace_s} s."
        return ReclaimDecision(False, Reason("IN_GRACE", why), owner.grace_s - waited_s)
    # For quota there are more victims for a while where others got what the first left: a pause would serve it later.
    paused_s = _paused_s(replace(owner, sufficed=False), now_s, pace)
    if paused_s > 0:
        return _backs_off(paused_s)
    free_to_go = [run for run in borrowed if run.terminating or _remaining_s(run, now_s, pace) <= 0]
    victims = victims_of(free_to_go, room)
    if victims is None:
        return _nobody(borrowed, room, now_s, pace)
    return _reclaimed(victims, waited_s, pace)


def in_order(decisions: Sequence[ReclaimDecision]) -> ReclaimDecision:
    """What to report of a queue: of what is done for its workloads what is done first, else what the oldest waits for;
    looked at again when the first of them says. ``decisions`` are one at least, the oldest's first."""
    first = min(decisions, key=lambda it: (not it.reclaims, not it.saves))
    return replace(first, again_s=min(it.again_s for it in decisions))


def _backs_off(paused_s: float) -> ReclaimDecision:
    why = f"Borrowers were evicted a short time ago, and are again in {paused_s:.0f} s at the earliest."
    return ReclaimDecision(False, Reason("BACKS_OFF", why), paused_s)


def _nothing(owner: OwnerState) -> Reason:
    if owner.by_age:
        why = "Kueue's Configuration has no fairSharing, so that what is freed goes by age: only quota is taken back."
        return Reason("NO_FAIR_SHARING", why)
    if owner.is_full:
        why = "What waits does not fit into what the queue's own workloads leave of its quota."
        return Reason("OWN_QUOTA_IN_USE", why)
    return Reason("NOTHING_WAITS", "No workload waits for the queue's own quota.")


def balancing_reclaim(
    owner: OwnerState,
    wanted: int,
    runs: Sequence[SharedRun],
    shares: Shares,
    room: Room,
    now_s: float,
    pace: Pace = PACE,
) -> ReclaimDecision | None:
    """What to do for a workload of ``wanted`` thousandths of a GPU that brings its queue nearer its ideal share; None
    where nothing does. Borrowers are left alone as ``delayed_reclaim`` leaves them alone."""
    waited_s = 0.0 if owner.waits_since_s is None else now_s - owner.waits_since_s
    if owner.waits_since_s is None or waited_s < owner.grace_s or not wants_share(shares, owner.name, wanted):
        return None
    paused_s = _paused_s(replace(owner, reclaimed_s=None), now_s, pace)
    if paused_s > 0:
        return _backs_off(paused_s)
    able = [each for each in runs if each.run.terminating or _remaining_s(each.run, now_s, pace) <= 0]
    victims = balancing_victims(owner.name, wanted, able, shares, room)
    return None if victims is None else _reclaimed(victims, waited_s, pace, "its share")


def _paused_s(owner: OwnerState, now_s: float, pace: Pace) -> float:
    """For how long it backs off. What waited already when the last reclaim began is due with it, whenever its grace
    ends; a workload for which borrowers went in vain is not, as others got what they left, and would again."""
    rests_s = [0.0]
    if owner.reclaimed_s is not None and (owner.waits_since_s or 0.0) > owner.reclaimed_s:
        rests_s.append(owner.reclaimed_s + pace.pause_s - now_s)
    if owner.attempted_s is not None and (owner.sufficed or now_s - owner.attempted_s >= pace.longest_s):
        rests_s.append(owner.attempted_s + _attempt_pause_s(owner.attempts, pace) - now_s)
    return max(rests_s)


def _attempt_pause_s(attempts: int, pace: Pace) -> float:
    """From the beginning of an attempt until the next one."""
    doublings = min(max(attempts, 1) - 1, 30)
    return max(pace.pause_s, min(pace.longest_pause_s, pace.pause_s * float(2**doublings)))


def _reclaimed(
    victims: Sequence[BorrowedRun], waited_s: float, pace: Pace, what: str = "the queue's own quota"
) -> ReclaimDecision:
    waits, again_s = f"A workload waits for {what} since {waited_s:.0f} s", pace.recheck_s
    if not victims:
        why = f"{waits}; it is free once those that were evicted have ended."
        return ReclaimDecision(False, Reason("COMES_FREE", why), again_s, is_served=True)
    claimed = tuple(run.name for run in victims)
    unready = [run for run in victims if run.safety is Safety.SAVES or run.save in (SaveState.ASKED, SaveState.ASKABLE)]
    if unready:
        saves = tuple(run.name for run in victims if run.save is SaveState.ASKABLE)
        why = f"{waits}; {', '.join(run.name for run in unready)} saves a checkpoint first."
        reason = Reason("SAVES_FIRST", why)
        return ReclaimDecision(False, reason, again_s, saves=saves, claimed=claimed, is_served=True)
    reason = Reason("RECLAIMS", f"{waits}: {', '.join(claimed)} is evicted for it.")
    return ReclaimDecision(True, reason, again_s, claimed, claimed=claimed, is_served=True)


def _nobody(borrowed: Sequence[BorrowedRun], room: Room, now_s: float, pace: Pace) -> ReclaimDecision:
    young = [
        (remaining_s, run)
        for run in borrowed
        if not run.terminating and (remaining_s := _remaining_s(run, now_s, pace)) > 0
    ]
    if not young or victims_of(borrowed, room) is None:
        why = "All workloads that may be evicted do not free what a workload of the queue waits for."
        return ReclaimDecision(False, Reason("NO_VICTIMS", why))
    remaining_s, run = min(young, key=lambda item: (item[0], item[1].name))
    why = (
        f"{run.name} has run for less than {_protected_s(run, pace):.0f} s, "
        f"and is left alone for another {remaining_s:.0f} s."
    )
    return ReclaimDecision(False, Reason("IN_MIN_RUNTIME", why), remaining_s)


def _protected_s(run: BorrowedRun, pace: Pace) -> float:
    return max(run.min_runtime_s, pace.pause_s if run.was_evicted else 0.0)


def _remaining_s(run: BorrowedRun, now_s: float, pace: Pace) -> float:
    return run.started_s + _protected_s(run, pace) - now_s
