"""Whom the rules allow at all, whatever it costs: priority, quota, and that nobody is pre-empted again and again.

Promise: no queue falls below its guarantee. A gang in another queue than the workload's may be taken only out of what
its queue, and every queue above it that the workload is not in, uses beyond the guarantee.
"""

from collections.abc import Callable, Sequence

from kopt.core.reason import Reason
from kopt.core.units import format_gpus
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState
from kopt.policies.preemption.words import RunningGang, Scene

HOUR_S, DAY_S = 3600.0, 86_400.0

_Rule = Callable[[RunningGang, Scene, PreemptionState, PreemptionSettings], Reason | None]


def forbidden(gang: RunningGang, scene: Scene, state: PreemptionState, settings: PreemptionSettings) -> Reason | None:
    """The first rule that forbids to pre-empt a gang for the waiting workload; None if none does."""
    for rule in RULES:
        if reason := rule(gang, scene, state, settings):
            return reason
    return None


def _preemptible(gang: RunningGang, scene: Scene, _: PreemptionState, __: PreemptionSettings) -> Reason | None:
    if gang.preemptible and gang.name != scene.waiting.name:
        return None
    return Reason("NOT_PREEMPTIBLE", f"{gang.name} is not pre-emptible; give it a pre-emptible class to change that.")


def _priority(gang: RunningGang, scene: Scene, _: PreemptionState, settings: PreemptionSettings) -> Reason | None:
    own = scene.waiting.priority
    if gang.priority < own or (settings.reclaims_any_priority and scene.reclaims and scene.lenders(gang)):
        return None
    text = f"{gang.name} has priority {gang.priority}, not less than the {own} of {scene.waiting.name}."
    return Reason("PRIORITY", text, {"priority": gang.priority, "waiting_priority": own})


def _quota(gang: RunningGang, scene: Scene, _: PreemptionState, __: PreemptionSettings) -> Reason | None:
    if gang.queue and gang.queue != scene.waiting.queue and gang.queue not in scene.queues:
        return Reason("QUEUE_UNKNOWN", f"What queue {gang.queue} of {gang.name} is guaranteed is not known.")
    for name in scene.lenders(gang):
        share = scene.queues[name]
        if share.borrowed < gang.gpus:
            text = (f"Queue {name} is guaranteed {format_gpus(share.guaranteed)} GPUs and uses "
                    f"{format_gpus(share.used)}: without the {format_gpus(gang.gpus)} of {gang.name} it would fall "
                    "below its guarantee.")  # fmt: skip
            numbers = {"guaranteed_milli_gpu": share.guaranteed, "used_milli_gpu": share.used}
            return Reason("QUOTA", text, numbers)
    return None


def _going(gang: RunningGang, scene: Scene, state: PreemptionState, _: PreemptionSettings) -> Reason | None:
    told = [one.at_s for one in state.evictions if one.gang == gang.name and one.at_s >= gang.started_at_s]
    if not told:
        return None
    text = f"{gang.name} was told {scene.now_s - max(told):.0f} s ago to make room and is still there."
    return Reason("GOING", text, {"since_s": scene.now_s - max(told)})


def _resumed(gang: RunningGang, scene: Scene, state: PreemptionState, settings: PreemptionSettings) -> Reason | None:
    runs_s = scene.now_s - gang.started_at_s
    if not preemptions(gang, scene, state) or runs_s >= settings.resumed_s:
        return None
    text = (f"{gang.name} was pre-empted before and runs again for {max(0.0, runs_s) / 60:.0f} minutes; it is left "
            f"alone for {settings.resumed_s / 60:g}.")  # fmt: skip
    return Reason("RESUMED", text, {"runs_s": runs_s, "resumed_s": settings.resumed_s})


def _limit(gang: RunningGang, scene: Scene, state: PreemptionState, settings: PreemptionSettings) -> Reason | None:
    count = preemptions(gang, scene, state)
    if count < settings.most_per_gang:
        return None
    text = f"{gang.name} was pre-empted {count} times within a day, and {settings.most_per_gang} are the most."
    return Reason("LIMIT", text, {"preemptions": count, "most": settings.most_per_gang})


def _reversal(gang: RunningGang, scene: Scene, state: PreemptionState, settings: PreemptionSettings) -> Reason | None:
    for one in state.evictions:
        if one.gang == scene.waiting.name and one.by == gang.name and scene.now_s - one.at_s < settings.reversal_s:
            ago = (scene.now_s - one.at_s) / 60
            text = f"{scene.waiting.name} made room for {gang.name} {ago:.0f} minutes ago and does not take it back."
            return Reason("REVERSAL", text, {"minutes_ago": ago})
    return None


RULES: Sequence[_Rule] = (_going, _preemptible, _priority, _quota, _reversal, _limit, _resumed)
"""In the order in which they are told."""


def preemptions(gang: RunningGang, scene: Scene, state: PreemptionState) -> int:
    """How often a gang was pre-empted within a day, as far as anyone knows."""
    ours = sum(one.gang == gang.name and scene.now_s - one.at_s < DAY_S for one in state.evictions)
    return max(gang.preemptions, ours)


def too_soon(
    scene: Scene, state: PreemptionState, count: int, settings: PreemptionSettings
) -> tuple[Reason, float] | None:
    """Why ``count`` gangs cannot be pre-empted at this moment, and until when; None if they can."""
    waiting, now_s = scene.waiting, scene.now_s
    last = max((one.at_s for one in state.evictions if one.by == waiting.name), default=None)
    if last is not None and now_s - last < settings.hold_s:
        text = (
            f"Room was made for {waiting.name} {now_s - last:.0f} s ago; no more is taken within {settings.hold_s:g} s."
        )
        return Reason("HOLD", text, {"since_s": now_s - last}), last + settings.hold_s
    recent = sorted(one.at_s for one in state.evictions if now_s - one.at_s < HOUR_S)
    excess = len(recent) + count - settings.most_per_hour
    if excess <= 0:
        return None
    text = (f"{len(recent)} gangs were pre-empted within an hour, and {count} more would be over the "
            f"{settings.most_per_hour} allowed.")  # fmt: skip
    return Reason("RATE", text, {"within_hour": len(recent), "most": settings.most_per_hour}), (
        recent[min(excess, len(recent)) - 1] + HOUR_S if recent else now_s + HOUR_S
    )
