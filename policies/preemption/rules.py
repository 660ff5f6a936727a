"""Which gangs may be preempted at all, whatever it costs: priority, quota, and limits on repeated preemption.

Guarantee: no queue falls below its guaranteed quota. A gang in another queue than the preemptor's is eligible only as
far as its queue, and every ancestor that the preemptor is not in, uses more than it is guaranteed.
"""

from collections.abc import Callable, Sequence

from kopt.core.reason import Reason
from kopt.core.units import counted, format_gpus
from kopt.policies.preemption.model import RunningGang, Snapshot
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState

HOUR_S, DAY_S = 3600.0, 86_400.0

_Rule = Callable[[RunningGang, Snapshot, PreemptionState, PreemptionSettings], Reason | None]


def forbidden(
    gang: RunningGang, snapshot: Snapshot, state: PreemptionState, settings: PreemptionSettings
) -> Reason | None:
    """The first rule that forbids preempting a gang for this workload; None if all rules allow it."""
    for rule in RULES:
        if reason := rule(gang, snapshot, state, settings):
            return reason
    return None


def _preemptible(gang: RunningGang, snapshot: Snapshot, _: PreemptionState, __: PreemptionSettings) -> Reason | None:
    if gang.preemptible and gang.name != snapshot.preemptor.name:
        return None
    return Reason("NOT_PREEMPTIBLE", f"{gang.name} is not preemptible; give it a preemptible class to change that.")


def _class(gang: RunningGang, _: Snapshot, __: PreemptionState, ___: PreemptionSettings) -> Reason | None:
    return gang.barred_by_class


def _priority(gang: RunningGang, snapshot: Snapshot, _: PreemptionState, settings: PreemptionSettings) -> Reason | None:
    own = snapshot.preemptor.priority
    if gang.priority < own or (settings.reclaims_any_priority and snapshot.reclaims and snapshot.lenders(gang)):
        return None
    text = f"{gang.name} has priority {gang.priority}, which is not below the {own} of {snapshot.preemptor.name}."
    return Reason("PRIORITY", text, {"priority": gang.priority, "waiting_priority": own})


def _quota(gang: RunningGang, snapshot: Snapshot, _: PreemptionState, __: PreemptionSettings) -> Reason | None:
    if gang.queue and gang.queue != snapshot.preemptor.queue and gang.queue not in snapshot.queues:
        return Reason("QUEUE_UNKNOWN", f"The guarantee of queue {gang.queue}, which {gang.name} is in, is unknown.")
    for name in snapshot.lenders(gang):
        share = snapshot.queues[name]
        if share.borrowed < gang.gpus:
            text = (
                f"Queue {name} is guaranteed {counted(format_gpus(share.guaranteed), 'GPU')} and uses "
                f"{format_gpus(share.used)}: without the {format_gpus(gang.gpus)} of {gang.name} it would fall "
                "below its guarantee."
            )
            numbers = {"guaranteed_milli_gpu": share.guaranteed, "used_milli_gpu": share.used}
            return Reason("QUOTA", text, numbers)
    return None


def _terminating(gang: RunningGang, snapshot: Snapshot, state: PreemptionState, _: PreemptionSettings) -> Reason | None:
    evicted_at_s = [
        eviction.at_s
        for eviction in state.evictions
        if eviction.gang == gang.name and eviction.at_s >= gang.started_at_s
    ]
    if not evicted_at_s:
        return None
    text = f"{gang.name} was preempted {snapshot.now_s - max(evicted_at_s):.0f} s ago and is still terminating."
    return Reason("GOING", text, {"since_s": snapshot.now_s - max(evicted_at_s)})


def _resumed(
    gang: RunningGang, snapshot: Snapshot, state: PreemptionState, settings: PreemptionSettings
) -> Reason | None:
    runs_s = snapshot.now_s - gang.started_at_s
    if not preemptions(gang, snapshot, state) or runs_s >= settings.resumed_s:
        return None
    text = (
        f"{gang.name} was preempted before and has been running again for {max(0.0, runs_s) / 60:.0f} minutes; it is "
        f"protected for {settings.resumed_s / 60:g}."
    )
    return Reason("RESUMED", text, {"runs_s": runs_s, "resumed_s": settings.resumed_s})


def _limit(
    gang: RunningGang, snapshot: Snapshot, state: PreemptionState, settings: PreemptionSettings
) -> Reason | None:
    count = preemptions(gang, snapshot, state)
    if count < settings.most_per_gang:
        return None
    text = f"{gang.name} was preempted {count} times within a day; the limit is {settings.most_per_gang}."
    return Reason("LIMIT", text, {"preemptions": count, "most": settings.most_per_gang})


def _reversal(
    gang: RunningGang, snapshot: Snapshot, state: PreemptionState, settings: PreemptionSettings
) -> Reason | None:
    for eviction in state.evictions:
        if (
            eviction.gang == snapshot.preemptor.name
            and eviction.by == gang.name
            and snapshot.now_s - eviction.at_s < settings.reversal_s
        ):
            ago = (snapshot.now_s - eviction.at_s) / 60
            text = (
                f"{snapshot.preemptor.name} was preempted for {gang.name} {ago:.0f} minutes ago; this is not reversed."
            )
            return Reason("REVERSAL", text, {"minutes_ago": ago})
    return None


RULES: Sequence[_Rule] = (_terminating, _preemptible, _class, _priority, _quota, _reversal, _limit, _resumed)
"""In the order in which they are checked; the first that applies is reported."""


def preemptions(gang: RunningGang, snapshot: Snapshot, state: PreemptionState) -> int:
    """How often a gang is known to have been preempted within a day."""
    ours = sum(eviction.gang == gang.name and snapshot.now_s - eviction.at_s < DAY_S for eviction in state.evictions)
    return max(gang.preemptions, ours)


def too_soon(
    snapshot: Snapshot, state: PreemptionState, count: int, settings: PreemptionSettings
) -> tuple[Reason, float] | None:
    """Why ``count`` gangs cannot be preempted now, and until when; None if they can."""
    preemptor, now_s = snapshot.preemptor, snapshot.now_s
    last = max((eviction.at_s for eviction in state.evictions if eviction.by == preemptor.name), default=None)
    if last is not None and now_s - last < settings.hold_s:
        ago_s, hold_s = now_s - last, settings.hold_s
        text = f"Gangs were preempted for {preemptor.name} {ago_s:.0f} s ago; no more are within {hold_s:g} s."
        return Reason("HOLD", text, {"since_s": now_s - last}), last + settings.hold_s
    recent = sorted(eviction.at_s for eviction in state.evictions if now_s - eviction.at_s < HOUR_S)
    excess = len(recent) + count - settings.most_per_hour
    if excess <= 0:
        return None
    past = counted(len(recent), "preemption")
    text = f"After {past} within an hour, {count} more would exceed the limit of {settings.most_per_hour}."
    return Reason("RATE", text, {"within_hour": len(recent), "most": settings.most_per_hour}), (
        recent[min(excess, len(recent)) - 1] + HOUR_S if recent else now_s + HOUR_S
    )
