"""State between two decisions: the checkpoint intervals of each gang, and past evictions."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kopt.policies.preemption.model import RunningGang

KEPT_S = 7 * 86_400.0
"""Evictions, and gangs that are no longer observed, are forgotten after this long."""
_INTERVALS = 9
_SAME_S = 5.0
_ROUNDED_S = 1.0


@dataclass(frozen=True)
class Rhythm:
    """Observed durable checkpoints of one gang: the time of the last one and the intervals before, oldest first.

    ``safe_at_s``: when it was last safe to kill, None if never in this run, which began at ``started_at_s``.
    ``own_at_s``: the last checkpoint that was not requested; intervals are measured between such checkpoints.
    """

    gang: str
    started_at_s: float
    observed_at_s: float
    durable_at_s: float | None = None
    intervals_s: tuple[float, ...] = ()
    safe_at_s: float | None = None
    own_at_s: float | None = None


@dataclass(frozen=True)
class Eviction:
    """``gang`` was preempted for ``by``."""

    at_s: float
    gang: str
    by: str


@dataclass(frozen=True)
class PreemptionState:
    """The caller keeps it from one call to the next; both tuples are sorted."""

    rhythms: tuple[Rhythm, ...] = ()
    evictions: tuple[Eviction, ...] = ()

    def rhythm(self, gang: str) -> Rhythm | None:
        return next((rhythm for rhythm in self.rhythms if rhythm.gang == gang), None)

    def evicted(self, at_s: float, gangs: Iterable[str], by: str) -> "PreemptionState":
        """The state after ``gangs`` were evicted."""
        added = (Eviction(at_s, gang, by) for gang in gangs)
        return replace(
            self,
            evictions=tuple(sorted((*self.evictions, *added), key=lambda eviction: (eviction.at_s, eviction.gang))),
        )


def observe(state: PreemptionState, gangs: Iterable[RunningGang], now_s: float) -> PreemptionState:
    """The state after observing ``gangs``. Call it whenever statuses arrive: checkpoint intervals are learned here.

    An interval that spans a restart does not count; the intervals of earlier runs are kept.
    """
    rhythms = {rhythm.gang: rhythm for rhythm in state.rhythms if now_s - rhythm.observed_at_s <= KEPT_S}
    for gang in gangs:
        rhythms[gang.name] = _updated(rhythms.get(gang.name), gang, now_s)
    evictions = tuple(eviction for eviction in state.evictions if now_s - eviction.at_s <= KEPT_S)
    return PreemptionState(tuple(rhythms[name] for name in sorted(rhythms)), evictions)


def _updated(before: Rhythm | None, gang: RunningGang, now_s: float) -> Rhythm:
    rhythm = before or Rhythm(gang.name, gang.started_at_s, now_s)
    if rhythm.started_at_s != gang.started_at_s:
        rhythm = replace(rhythm, started_at_s=gang.started_at_s, durable_at_s=None, safe_at_s=None, own_at_s=None)
    durable, own, intervals = durable_at_s(gang), rhythm.own_at_s, rhythm.intervals_s
    if durable is None or (rhythm.durable_at_s is not None and durable <= rhythm.durable_at_s + _SAME_S):
        durable = rhythm.durable_at_s
    elif not _was_requested(durable, rhythm, gang):
        intervals = intervals if own is None else (*intervals, durable - own)[-_INTERVALS:]
        own = durable
    safe = [member.observed_at_s for member in gang.members if member.status is not None and member.status.safe]
    safe_at_s = min(safe) if len(safe) == len(gang.members) else rhythm.safe_at_s
    return replace(
        rhythm, observed_at_s=now_s, durable_at_s=durable, intervals_s=intervals, safe_at_s=safe_at_s, own_at_s=own
    )


def _was_requested(durable_s: float, rhythm: Rhythm, gang: RunningGang) -> bool:
    """Whether this is the first checkpoint since a save request: it says nothing about the gang's own interval."""
    requested_s = gang.saved_at_s
    return (
        requested_s is not None and durable_s >= requested_s - _ROUNDED_S and (rhythm.durable_at_s or 0.0) < requested_s
    )


def durable_at_s(gang: RunningGang) -> float | None:
    """When the last checkpoint of the whole gang became durable, on the caller's clock; None if a member lacks it."""
    result = []
    for member in gang.members:
        if member.status is None or member.status.seconds_since_durable is None:
            return None
        result.append(member.observed_at_s - member.status.seconds_since_durable)
    return min(result)
