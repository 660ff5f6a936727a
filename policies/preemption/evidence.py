"""What a gang's logs say: whether it is safe to kill now, what that would lose, and when it would lose less.

Guarantee: a gang that is writing a checkpoint, or has no evidence of checkpoints, is never a victim.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.checkpoint import CLAIMED, JobState, Member
from kopt.policies.preemption.checkpoint_interval import Pace, pace_of
from kopt.policies.preemption.model import RunningGang
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import Rhythm

_ENDING = (JobState.FINISHED, JobState.CRASHED, JobState.OOM)
_MOST_GPU_S = 1e12
"""Ten thousand GPUs for three years: more work at risk than this is implausible."""


@dataclass(frozen=True)
class Phase:
    """The gang is safe to kill from ``from_s`` until before ``until_s``; ``cost`` (milli-GPU-seconds) applies at the
    start and grows by ``gpus`` every second."""

    from_s: float
    until_s: float
    cost: int
    gpus: int

    def cost_at(self, at_s: float) -> int:
        return self.cost + math.ceil(self.gpus * (at_s - self.from_s))


@dataclass(frozen=True)
class Outlook:
    """``phases`` are in order of time; ``spared`` says why the gang is not safe to kill now, None if it is.

    ``temporary``: whether that may change by waiting. ``fresh_cost`` is the cost of killing it right after its next
    checkpoint, ``saved_cost`` right after a requested one, ``hazard`` the probability per second of a checkpoint where
    no time for it is known. ``askable``: a save can be requested now, and one of the phases assumes that it is.
    """

    gang: RunningGang
    phases: tuple[Phase, ...]
    spared: Reason | None = None
    temporary: bool = False
    fresh_cost: int = 0
    hazard: float = 0.0
    askable: bool = False
    saved_cost: int = 0

    def cost_at(self, at_s: float) -> int | None:
        """Milli-GPU-seconds that killing it at ``at_s`` would lose; None if it is not safe to kill then."""
        costs = [phase.cost_at(at_s) for phase in self.phases if phase.from_s <= at_s < phase.until_s]
        return costs[-1] if costs else None


def claims_sentence(gangs: Iterable[RunningGang]) -> str:
    """A sentence naming the gangs whose status does not come from the log agent; empty if there are none."""
    names = [gang.name for gang in gangs if any(member.claimed for member in gang.members)]
    return f" What is said of the checkpoints of {', '.join(names)} is {CLAIMED}." if names else ""


def outlook(gang: RunningGang, rhythm: Rhythm | None, now_s: float, settings: PreemptionSettings) -> Outlook:
    """The outlook of a gang from its members' statuses and its checkpoint intervals."""
    doubts = [(member, doubt) for member in gang.members if (doubt := _doubt(gang, member, now_s, settings))]
    temporary = all(doubt.code == "ENDING" or (member.status and member.status.evidence) for member, doubt in doubts)
    pace = _with_own_estimates(gang, pace_of(rhythm, now_s, settings), now_s, settings)
    fresh = _restart(gang) + math.ceil(gang.gpus * settings.write_guard_s)
    spared = doubts[0][1] if doubts else None
    ready_s = _ready_s([member for member, _ in doubts], pace, now_s, settings)
    later = () if ready_s is None or not temporary else (Phase(ready_s, math.inf, fresh, gang.gpus),)
    if spared is None and now_s >= pace.due_s:
        spared = _due(gang, pace)
    # A save request also helps while the gang's own write may begin at any time, but not during a write.
    on_request = () if doubts or gang.saves_s is None else (_after_request(gang, now_s + gang.saves_s),)
    later = tuple(sorted((*on_request, *later), key=lambda item: item.from_s))
    hazard = pace.hazard if temporary and not later else 0.0
    if spared:
        return Outlook(gang, later, spared, temporary, fresh, hazard, bool(on_request), _restart(gang))
    cost = sum(cost_of(member, now_s) for member in gang.members) + math.ceil(gang.gpus * pace.doubtful_s)
    phases = (Phase(now_s, pace.due_s, cost, gang.gpus), *later)
    return Outlook(gang, phases, None, temporary, fresh, hazard, bool(on_request), _restart(gang))


def _after_request(gang: RunningGang, from_s: float) -> Phase:
    """The phase after a save that is requested now."""
    return Phase(from_s, math.inf, _restart(gang), gang.gpus)


def _with_own_estimates(gang: RunningGang, pace: Pace, now_s: float, settings: PreemptionSettings) -> Pace:
    """The pace, completed by the statuses' own estimates where the observed intervals give none."""
    estimates = [
        (member.observed_at_s, member.status.next_checkpoint_seconds) for member in gang.members if member.status
    ]
    expected = [
        (observed_s + next_s.low, observed_s + next_s.value, observed_s + next_s.high)
        for observed_s, next_s in estimates
        if next_s
    ]
    if pace.next_s is not None or len(expected) < len(gang.members) or now_s > max(high for *_, high in expected):
        return pace
    next_s = max(value for _, value, _ in expected)
    due_s = min(low for low, *_ in expected) - settings.write_guard_s - settings.act_s
    return replace(pace, next_s=next_s, due_s=pace.due_s if pace.intervals else due_s)


def _ready_s(doubtful: Sequence[Member], pace: Pace, now_s: float, settings: PreemptionSettings) -> float | None:
    """When a fresh checkpoint is expected: at the end of the writes under way, otherwise by the interval."""
    ends = [_write_ends(member, now_s, settings) for member in doubtful]
    expected = [end for end in ends if end is not None]
    if doubtful and len(expected) == len(ends):
        return max(expected)
    return None if pace.next_s is None else max(pace.next_s, now_s + settings.recheck_s)


def _doubt(gang: RunningGang, member: Member, now_s: float, settings: PreemptionSettings) -> Reason | None:
    """The first reason why a member's status makes the gang unsafe to kill now."""
    status, name = member.status, gang.name
    if status is None:
        return Reason(
            "NO_STATUS",
            f"Nothing is known of {name}'s checkpoints; have its log followed, or let it set "
            "the annotation kaiwo.ai/last-checkpoint-time.",
        )
    age_s = now_s - member.observed_at_s
    for code, message in _doubts(gang, member, age_s, settings):
        message += claims_sentence([gang]) if member.claimed else ""
        return Reason(code, message, {"state": status.state.value, "age_s": age_s, "confidence": status.confidence})
    return None


def _doubts(gang: RunningGang, member: Member, age_s: float, settings: PreemptionSettings) -> Iterator[tuple[str, str]]:
    status, name = member.status, gang.name
    assert status is not None
    if status.state is JobState.CKPT_WRITING:
        yield "WRITING", f"{name} is writing a checkpoint; it is eligible once the write is complete."
    if status.state in _ENDING:
        yield "ENDING", f"{name} is {status.state.value} and will free its GPUs itself."
    if status.state is JobState.UNKNOWN:
        yield "UNKNOWN", f"The state of {name} is unknown ({status.reason or 'no reason given'}); it is not eligible."
    if not status.evidence:
        yield "NO_EVIDENCE", f"No durable checkpoint of {name} has been observed; all its work would be lost."
    if not status.safe:
        yield (
            "NOT_SAFE",
            f"{name} is in {status.state.value}, not safe to kill ({status.reason or 'no reason given'}).",
        )
    if not 0 <= age_s <= settings.stale_s:
        yield "STALE", f"The last status of {name} is {age_s:.0f} s old, more than {settings.stale_s:g} s."
    if status.confidence < settings.min_confidence:
        yield "UNSURE", f"{name}'s state has confidence {status.confidence:.2f}, below {settings.min_confidence:.2f}."
    if risk_gpu_s(member) is None:
        yield "COST_UNKNOWN", f"The work that {name} would lose is unknown."


def _due(gang: RunningGang, pace: Pace) -> Reason:
    code, when = "WRITE_POSSIBLE", "at any time"
    if pace.next_s is not None:
        code, when = "WRITE_DUE", f"complete at {pace.next_s:.0f} s"
    text = f"{gang.name} may be about to write a checkpoint ({when}, by the {pace.intervals} intervals observed)."
    return Reason(code, text, {"intervals": pace.intervals})


def _write_ends(member: Member, now_s: float, settings: PreemptionSettings) -> float | None:
    """When a member that is writing should complete its checkpoint; None if unknown."""
    status = member.status
    if status is None or status.state is not JobState.CKPT_WRITING or status.next_safe_seconds is None:
        return None
    if now_s > member.observed_at_s + status.next_safe_seconds.high:
        return None
    return max(member.observed_at_s + status.next_safe_seconds.value, now_s + settings.recheck_s)


def cost_of(member: Member, now_s: float) -> int:
    """Milli-GPU-seconds at risk by the status, plus those computed since it was observed."""
    return math.ceil(WHOLE_GPU * (risk_gpu_s(member) or 0.0)) + math.ceil(member.gpus * (now_s - member.observed_at_s))


def _restart(gang: RunningGang) -> int:
    """Milli-GPU-seconds of a restart: as configured, or what the status counts beyond the work since its checkpoint."""
    if gang.restart_s is not None:
        return math.ceil(gang.gpus * gang.restart_s)
    result = 0
    for member in gang.members:
        risk = risk_gpu_s(member)
        since = (member.status.seconds_since_durable if member.status else None) or 0.0
        result += 0 if risk is None else max(0, math.ceil(WHOLE_GPU * risk) - math.floor(member.gpus * since))
    return result


def risk_gpu_s(member: Member) -> float | None:
    """The work at risk by a member's status; None if missing or implausible."""
    risk = member.status.work_at_risk_gpu_seconds if member.status else None
    return risk.value if risk is not None and risk.value <= _MOST_GPU_S else None
