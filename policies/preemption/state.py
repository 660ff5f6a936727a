"""What is remembered between two decisions: how often each gang makes checkpoints, and who made room for whom."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kopt.policies.preemption.words import RunningGang

KEPT_S = 7 * 86_400.0
"""Pre-emptions and gangs not seen since are forgotten after so long."""
_INTERVALS = 9
_SAME_S = 5.0
_ROUNDED_S = 1.0


@dataclass(frozen=True)
class Rhythm:
    """Durable checkpoints of one gang as they were seen: the last one's time and the intervals before, oldest first.

    ``safe_at_s``: when it was last seen safe, None if never in this run, which began at ``started_at_s``. ``own_at_s``:
    the last one that nobody had asked for; intervals are those between such.
    """

    gang: str
    started_at_s: float
    seen_at_s: float
    durable_at_s: float | None = None
    intervals_s: tuple[float, ...] = ()
    safe_at_s: float | None = None
    own_at_s: float | None = None


@dataclass(frozen=True)
class Eviction:
    """``gang`` was told to make room for ``by``."""

    at_s: float
    gang: str
    by: str


@dataclass(frozen=True)
class PreemptionState:
    """Kept by the caller from one call to the next; both tuples are sorted."""

    rhythms: tuple[Rhythm, ...] = ()
    evictions: tuple[Eviction, ...] = ()

    def rhythm(self, gang: str) -> Rhythm | None:
        return next((one for one in self.rhythms if one.gang == gang), None)

    def evicted(self, at_s: float, gangs: Iterable[str], by: str) -> "PreemptionState":
        """The state after ``gangs`` were told to make room."""
        added = (Eviction(at_s, gang, by) for gang in gangs)
        return replace(self, evictions=tuple(sorted((*self.evictions, *added), key=lambda one: (one.at_s, one.gang))))


def observe(state: PreemptionState, gangs: Iterable[RunningGang], now_s: float) -> PreemptionState:
    """The state after looking at ``gangs``. To be called as often as statuses come: intervals are learned here.

    An interval that spans a restart is none; the intervals of earlier runs are kept.
    """
    known = {one.gang: one for one in state.rhythms if now_s - one.seen_at_s <= KEPT_S}
    for gang in gangs:
        known[gang.name] = _seen(known.get(gang.name), gang, now_s)
    evictions = tuple(one for one in state.evictions if now_s - one.at_s <= KEPT_S)
    return PreemptionState(tuple(known[name] for name in sorted(known)), evictions)


def _seen(before: Rhythm | None, gang: RunningGang, now_s: float) -> Rhythm:
    known = before or Rhythm(gang.name, gang.started_at_s, now_s)
    if known.started_at_s != gang.started_at_s:
        known = replace(known, started_at_s=gang.started_at_s, durable_at_s=None, safe_at_s=None, own_at_s=None)
    durable, own, intervals = durable_at_s(gang), known.own_at_s, known.intervals_s
    if durable is None or (known.durable_at_s is not None and durable <= known.durable_at_s + _SAME_S):
        durable = known.durable_at_s
    elif not _was_asked_for(durable, known, gang):
        intervals = intervals if own is None else (*intervals, durable - own)[-_INTERVALS:]
        own = durable
    safe = [member.seen_at_s for member in gang.members if member.status is not None and member.status.safe]
    safe_at_s = min(safe) if len(safe) == len(gang.members) else known.safe_at_s
    return replace(
        known, seen_at_s=now_s, durable_at_s=durable, intervals_s=intervals, safe_at_s=safe_at_s, own_at_s=own
    )


def _was_asked_for(durable_s: float, known: Rhythm, gang: RunningGang) -> bool:
    """The first checkpoint since it was asked to save tells nothing about its own rhythm."""
    asked_s = gang.saved_at_s
    return asked_s is not None and durable_s >= asked_s - _ROUNDED_S and (known.durable_at_s or 0.0) < asked_s


def durable_at_s(gang: RunningGang) -> float | None:
    """When the whole gang was last durable, on the caller's clock; None where a member does not say."""
    found = []
    for member in gang.members:
        if member.status is None or member.status.seconds_since_durable is None:
            return None
        found.append(member.seen_at_s - member.status.seconds_since_durable)
    return min(found)
