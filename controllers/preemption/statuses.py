"""What annotations on pods say about checkpoints (``agents/logtail/notes.py`` writes them), as the policy's members.

Pods of one owner write one log (all ranks of a training), and each carries what is known of it. Of those that were
written lately, one that says "not safe" counts before all that say "safe". A figure without an interval or without the
model that it comes from counts as none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kopt.controllers.preemption.reading import seconds
from kopt.controllers.preemption.views import PodView
from kopt.core.checkpoint import Estimate, JobState, JobStatus
from kopt.core.units import MilliGpu
from kopt.policies.preemption import Member

STATE, SAFE = "kaiwo.ai/checkpoint-state", "kaiwo.ai/checkpoint-safe"
OBSERVED_AT = "kaiwo.ai/checkpoint-observed-at"
LAST_TIME, LAST_STEP = "kaiwo.ai/last-checkpoint-time", "kaiwo.ai/last-checkpoint-step"
RISK, RISK_BETWEEN = "kaiwo.ai/work-at-risk", "kaiwo.ai/work-at-risk-interval"
REASON, MODEL = "kaiwo.ai/checkpoint-reason", "kaiwo.ai/checkpoint-model"
_NEVER_SAFE = (JobState.UNKNOWN, JobState.CKPT_WRITING)
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Said:
    """What one pod says of its job, and when it was written."""

    status: JobStatus
    at_s: float


def members_of(gpus: int, pods: Iterable[PodView], now_s: float, stale_s: float) -> tuple[Member, ...]:
    """A gang of ``gpus`` milli-GPU: one member for each log. GPUs whose pods are not seen are a member of which nothing
    is known; where pods have more than the gang, they are one member that is as bad as the worst."""
    members = []
    for _, group in groupby(sorted(pods, key=lambda one: (one.owner_uid, one.uid)), key=lambda one: one.owner_uid):
        own = list(group)
        said = heard([one.notes for one in own], now_s, stale_s)
        amount = MilliGpu(sum(one.gpus for one in own))
        if amount or said:
            members.append(Member(amount, said.status if said else None, said.at_s if said else 0.0))
    known = sum(one.gpus for one in members)
    if known > gpus:
        worst = next((one for one in members if one.status is None or not one.status.safe), members[0])
        return (Member(MilliGpu(gpus), worst.status, worst.seen_at_s),)
    return (*members, *([Member(MilliGpu(gpus - known))] if known < gpus or not members else []))


def heard(notes: Sequence[Mapping[str, str]], now_s: float, stale_s: float) -> Said | None:
    """What counts of what several pods say of one job."""
    told = sorted((one for one in map(said_by, notes) if one), key=lambda one: one.at_s)
    lately = [one for one in told if now_s - one.at_s <= stale_s]
    unsafe = [one for one in lately if not one.status.safe]
    found = unsafe or lately or told
    return found[-1] if found else None


def said_by(notes: Mapping[str, str]) -> Said | None:
    """None where the notes have no time: then nobody knows whether they are of now."""
    at_s, word = seconds(notes.get(OBSERVED_AT, "")), notes.get(STATE, "")
    if at_s is None:
        return None
    state = JobState(word) if word in tuple(JobState) else JobState.UNKNOWN
    last_s, step = seconds(notes.get(LAST_TIME, "")), notes.get(LAST_STEP, "")
    counted = _NUMBER.fullmatch(step) is not None
    evidence = last_s is not None or counted
    safe = notes.get(SAFE) == "true" and evidence and state not in _NEVER_SAFE
    return Said(JobStatus(
        state, safe, evidence, confidence=1.0, last_durable_step=int(step) if counted else None,
        last_durable_at_s=last_s, seconds_since_durable=None if last_s is None else max(0.0, at_s - last_s),
        work_at_risk_gpu_seconds=_risk(notes), reason=notes.get(REASON, ""),
    ), at_s)  # fmt: skip


def grounds(notes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The model and the interval behind the work at risk of a gang, off the notes of its pods."""
    found: Mapping[str, str] = next((one for one in notes if one.get(MODEL)), {})
    return {"model": found.get(MODEL, ""), "workAtRisk": found.get(RISK_BETWEEN, "")}


def _risk(notes: Mapping[str, str]) -> Estimate | None:
    low, _, high = notes.get(RISK_BETWEEN, "").partition("-")
    try:
        value = float(notes[RISK])
        # The three are rounded each for itself.
        return Estimate(value, min(float(low), value), max(float(high), value)) if notes.get(MODEL) else None
    except (KeyError, ValueError):
        return None
