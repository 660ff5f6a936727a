"""What a gang's logs say: whether it may be killed now, what that loses, and when it will lose less.

Promise: a gang in a checkpoint write, or without evidence of checkpoints, is never a victim.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kopt.core.checkpoint import JobState
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU
from kopt.policies.preemption.rhythm import Pace, pace_of
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import Rhythm
from kopt.policies.preemption.words import Member, RunningGang

_ENDING = (JobState.FINISHED, JobState.CRASHED, JobState.OOM)
_MOST_GPU_S = 1e12
"""Ten thousand GPUs for three years: more work at risk is no figure."""


@dataclass(frozen=True)
class Phase:
    """From ``from_s`` until before ``until_s`` the gang may be killed; ``cost`` (milli-GPU-seconds) holds at the start
    and grows with every second by ``gpus``."""

    from_s: float
    until_s: float
    cost: int
    gpus: int

    def cost_at(self, at_s: float) -> int:
        return self.cost + math.ceil(self.gpus * (at_s - self.from_s))


@dataclass(frozen=True)
class Outlook:
    """``phases`` in order of time; ``spared`` says why the gang may not be killed now, None if it may.

    ``passes``: whether that may change by waiting. ``fresh_cost`` is what killing it right after its next checkpoint
    would cost, ``saved_cost`` right after one that it is asked for, ``hazard`` the chance per second that there is one,
    where no time for it is known. ``askable``: it can be asked to save now, which one of the phases counts on.
    """

    gang: RunningGang
    phases: tuple[Phase, ...]
    spared: Reason | None = None
    passes: bool = False
    fresh_cost: int = 0
    hazard: float = 0.0
    askable: bool = False
    saved_cost: int = 0

    def cost_at(self, at_s: float) -> int | None:
        """Milli-GPU-seconds that killing it then would lose; None where it may not be killed."""
        costs = [one.cost_at(at_s) for one in self.phases if one.from_s <= at_s < one.until_s]
        return costs[-1] if costs else None


def outlook(gang: RunningGang, rhythm: Rhythm | None, now_s: float, settings: PreemptionSettings) -> Outlook:
    """What is known of a gang from its members' statuses and the rhythm of its checkpoints."""
    doubts = [(member, doubt) for member in gang.members if (doubt := _doubt(gang, member, now_s, settings))]
    passes = all(doubt.code == "ENDING" or (member.status and member.status.evidence) for member, doubt in doubts)
    pace = _told(gang, pace_of(rhythm, now_s, settings), now_s, settings)
    fresh = _restart(gang) + math.ceil(gang.gpus * settings.write_guard_s)
    spared = doubts[0][1] if doubts else None
    ready_s = _ready_s([member for member, _ in doubts], pace, now_s, settings)
    later = () if ready_s is None or not passes else (Phase(ready_s, math.inf, fresh, gang.gpus),)
    if spared is None and now_s >= pace.due_s:
        spared = _due(gang, pace)
    # Asking is of use also where a write of its own may come at any moment, but not within one.
    asked = () if doubts or gang.saves_s is None else (_asked(gang, now_s + gang.saves_s),)
    later = tuple(sorted((*asked, *later), key=lambda one: one.from_s))
    hazard = pace.hazard if passes and not later else 0.0
    if spared:
        return Outlook(gang, later, spared, passes, fresh, hazard, bool(asked), _restart(gang))
    cost = sum(cost_of(member, now_s) for member in gang.members) + math.ceil(gang.gpus * pace.doubtful_s)
    phases = (Phase(now_s, pace.due_s, cost, gang.gpus), *later)
    return Outlook(gang, phases, None, passes, fresh, hazard, bool(asked), _restart(gang))


def _asked(gang: RunningGang, from_s: float) -> Phase:
    """What asking it to save now should bring."""
    return Phase(from_s, math.inf, _restart(gang), gang.gpus)


def _told(gang: RunningGang, pace: Pace, now_s: float, settings: PreemptionSettings) -> Pace:
    """The pace with what the statuses themselves expect, where the intervals seen here tell nothing."""
    told = [(one.seen_at_s, one.status.next_checkpoint_seconds) for one in gang.members if one.status]
    known = [(seen_s + next_s.low, seen_s + next_s.value, seen_s + next_s.high) for seen_s, next_s in told if next_s]
    if pace.next_s is not None or len(known) < len(gang.members) or now_s > max(high for *_, high in known):
        return pace
    next_s = max(value for _, value, _ in known)
    due_s = min(low for low, *_ in known) - settings.write_guard_s - settings.act_s
    return replace(pace, next_s=next_s, hazard=0.0, due_s=pace.due_s if pace.known else due_s)


def _ready_s(doubtful: Sequence[Member], pace: Pace, now_s: float, settings: PreemptionSettings) -> float | None:
    """When there should be a fresh checkpoint: at the end of the writes that are seen, else by the rhythm."""
    ends = [_write_ends(member, now_s, settings) for member in doubtful]
    known = [end for end in ends if end is not None]
    if doubtful and len(known) == len(ends):
        return max(known)
    return None if pace.next_s is None else max(pace.next_s, now_s + settings.recheck_s)


def _doubt(gang: RunningGang, member: Member, now_s: float, settings: PreemptionSettings) -> Reason | None:
    """Why a member's status does not allow to kill the gang now; the first reason that holds."""
    status, name = member.status, gang.name
    if status is None:
        return Reason("NO_STATUS", f"Nothing is known of {name}'s checkpoints; have its log followed, or let it set "
                      "the annotation kaiwo.ai/last-checkpoint-time.")  # fmt: skip
    age_s = now_s - member.seen_at_s
    for code, message in _doubts(gang, member, age_s, settings):
        return Reason(code, message, {"state": status.state.value, "age_s": age_s, "confidence": status.confidence})
    return None


def _doubts(gang: RunningGang, member: Member, age_s: float, settings: PreemptionSettings) -> Iterator[tuple[str, str]]:
    status, name = member.status, gang.name
    assert status is not None
    if status.state is JobState.CKPT_WRITING:
        yield "WRITING", f"{name} is writing a checkpoint; it may be chosen when the write is complete."
    if status.state in _ENDING:
        yield "ENDING", f"{name} is {status.state.value} and will free its GPUs itself."
    if status.state is JobState.UNKNOWN:
        yield "UNKNOWN", f"What {name} does is unknown ({status.reason or 'no reason given'}); it is never chosen so."
    if not status.evidence:
        yield "NO_EVIDENCE", f"No durable checkpoint of {name} has been seen; all its work would be lost."
    if not status.safe:
        yield (
            "NOT_SAFE",
            f"{name} is in {status.state.value}, not safe to kill ({status.reason or 'no reason given'}).",
        )
    if not 0 <= age_s <= settings.stale_s:
        yield "STALE", f"The last word of {name} is {age_s:.0f} s old, more than {settings.stale_s:g} s."
    if status.confidence < settings.min_confidence:
        yield "UNSURE", f"{name}'s state is only {status.confidence:.2f} sure, {settings.min_confidence:.2f} is needed."
    if risk_gpu_s(member) is None:
        yield "COST_UNKNOWN", f"Nothing says how much work {name} would lose."


def _due(gang: RunningGang, pace: Pace) -> Reason:
    code, when = "WRITE_POSSIBLE", "at any moment"
    if pace.next_s is not None:
        code, when = "WRITE_DUE", f"complete at {pace.next_s:.0f} s"
    text = f"{gang.name} may be about to write a checkpoint ({when}, from the {pace.known} intervals seen)."
    return Reason(code, text, {"intervals": pace.known})


def _write_ends(member: Member, now_s: float, settings: PreemptionSettings) -> float | None:
    """When a member that is writing should have its checkpoint; None where nothing tells."""
    status = member.status
    if status is None or status.state is not JobState.CKPT_WRITING or status.next_safe_seconds is None:
        return None
    if now_s > member.seen_at_s + status.next_safe_seconds.high:
        return None
    return max(member.seen_at_s + status.next_safe_seconds.value, now_s + settings.recheck_s)


def cost_of(member: Member, now_s: float) -> int:
    """Milli-GPU-seconds: what the status says, and what was computed since it was made."""
    return math.ceil(WHOLE_GPU * (risk_gpu_s(member) or 0.0)) + math.ceil(member.gpus * (now_s - member.seen_at_s))


def _restart(gang: RunningGang) -> int:
    """Milli-GPU-seconds of starting again: told, or what a status counts beyond the work since its checkpoint."""
    if gang.restart_s is not None:
        return math.ceil(gang.gpus * gang.restart_s)
    found = 0
    for member in gang.members:
        risk = risk_gpu_s(member)
        since = (member.status.seconds_since_durable if member.status else None) or 0.0
        found += 0 if risk is None else max(0, math.ceil(WHOLE_GPU * risk) - math.floor(member.gpus * since))
    return found


def risk_gpu_s(member: Member) -> float | None:
    """What a member's status says would be lost; None where it says nothing that can be."""
    risk = member.status.work_at_risk_gpu_seconds if member.status else None
    return risk.value if risk is not None and risk.value <= _MOST_GPU_S else None
