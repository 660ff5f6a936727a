"""One copy: its state after observing its Job, and the next step."""

from dataclasses import dataclass, replace
from enum import StrEnum

from kopt.core.staging.manifest import Trouble
from kopt.core.staging.staged_data import Amounts, Copy, DataPhase
from kopt.policies.staging.rules import NEVER, SLOW, StagingRules


class Verb(StrEnum):
    """What a Job of ours does with a copy."""

    STAGE = "stage"
    REMOVE = "remove"


@dataclass(frozen=True)
class Run:
    """A Job of ours: ``ok`` and its result once it ended; ``pending_reason`` says why its pod does not run yet."""

    location: str
    verb: Verb
    attempt: int
    generation: int
    ended: bool = False
    ok: bool = False
    reason: Trouble | None = None
    message: str = ""
    digest: str = ""
    ended_at_s: float = 0.0
    pending_reason: str = ""
    amounts: Amounts | None = None
    ending: bool = False
    """It is being deleted."""
    stalled: str = ""
    """Why it loses its slot; empty while it makes progress."""


class Step(StrEnum):
    """What to do about a copy now."""

    NOTHING = "nothing"
    BEGIN = "begin"
    END = "end"
    """The running Job does something that is no longer wanted."""


@dataclass(frozen=True)
class Next:
    """The copy as it is reported, and the step; ``again_s`` is when to decide again, in Unix seconds."""

    copy: Copy
    step: Step = Step.NOTHING
    verb: Verb = Verb.STAGE
    again_s: float | None = None


def advance(
    copy: Copy,
    run: Run | None,
    *,
    wanted: bool,
    generation: int,
    now_s: float,
    rules: StagingRules,
    hurried: bool = False,
) -> Next:
    """The next step for a copy. ``wanted``: whether it should exist. ``hurried``: pauses count as over.

    ``run`` is the newest Job for this copy; only its own success makes a copy Ready.
    """
    verb = Verb.STAGE if wanted else Verb.REMOVE
    if run is not None and run.attempt < copy.attempts:
        # A later Job has been deleted already.
        run = None
    if run is not None:
        copy = replace(
            copy, attempts=max(copy.attempts, run.attempt), removed=copy.removed and run.verb is not Verb.STAGE
        )
    if run is not None and not run.ended:
        if run.verb is not verb or (wanted and run.generation != generation):
            return Next(copy, Step.NOTHING if run.ending else Step.END, run.verb)
        if run.stalled and run.attempt > copy.failed_attempt:
            stalled = replace(run, reason=Trouble.STALLED, message=run.stalled, ended_at_s=now_s)
            copy = _failed(copy, stalled, rules, now_s)
        if wanted and run.attempt == copy.failed_attempt:
            # It is being stopped; the reason for that stays on the object.
            return Next(copy, Step.NOTHING if run.ending else Step.END, run.verb)
        return Next(_under_way(copy, run, wanted=wanted))
    if run is not None and run.verb is verb and (not wanted or run.generation == generation):
        if run.ok and (run.digest or not wanted):
            return Next(_done(copy, run, wanted=wanted, generation=generation))
        if run.attempt > copy.failed_attempt:
            copy = _failed(copy, run, rules, now_s)
    if _is_settled(copy, wanted=wanted, generation=generation):
        return Next(copy)
    return _begin(copy, verb, generation, now_s, hurried=hurried)


def _begin(copy: Copy, verb: Verb, generation: int, now_s: float, *, hurried: bool) -> Next:
    """Start a Job, unless the copy failed and its pause is not over."""
    failed = copy.failed_attempt == copy.attempts and copy.failed_attempt > 0 and copy.failures > 0
    same = verb is Verb.REMOVE or copy.generation == generation
    if failed and same and not hurried:
        if copy.retry_at_s is None:
            return Next(copy)
        if now_s < copy.retry_at_s:
            return Next(copy, again_s=copy.retry_at_s)
    phase = DataPhase.WAITING if verb is Verb.STAGE else DataPhase.EVICTED
    amounts = copy.amounts if verb is Verb.STAGE else None
    failures = copy.failures if same else 0
    begun = replace(copy, phase=phase, digest="", ready_at_s=None, amounts=amounts, failures=failures)
    return Next(begun, Step.BEGIN, verb)


def _is_settled(copy: Copy, *, wanted: bool, generation: int) -> bool:
    if wanted:
        return copy.phase is DataPhase.READY and copy.generation == generation
    return copy.removed


def _under_way(copy: Copy, run: Run, *, wanted: bool) -> Copy:
    amounts = run.amounts or copy.amounts
    phase = DataPhase.STAGING if wanted else DataPhase.EVICTED
    return replace(
        copy,
        phase=phase,
        generation=run.generation,
        reason=None,
        message=run.pending_reason,
        amounts=amounts,
        digest="",
        ready_at_s=None,
        retry_at_s=None,
    )


def _done(copy: Copy, run: Run, *, wanted: bool, generation: int) -> Copy:
    if not wanted:
        return replace(
            copy,
            phase=DataPhase.EVICTED,
            reason=None,
            message="",
            digest="",
            amounts=None,
            failures=0,
            ready_at_s=None,
            retry_at_s=None,
            removed=True,
        )
    ready_at_s = copy.ready_at_s if copy.phase is DataPhase.READY else None
    return replace(
        copy,
        phase=DataPhase.READY,
        generation=generation,
        reason=None,
        message="",
        digest=run.digest,
        failures=0,
        amounts=run.amounts or copy.amounts,
        ready_at_s=ready_at_s or run.ended_at_s,
        retry_at_s=None,
        removed=False,
    )


def _failed(copy: Copy, run: Run, rules: StagingRules, now_s: float) -> Copy:
    """Record a new failure: Failed if it needs intervention, Waiting if a retry may succeed."""
    # A node's clock may be ahead of ours, by days.
    ended_at_s = min(run.ended_at_s, now_s)
    failures, reason = copy.failures + 1, run.reason or Trouble.STOPPED
    pause_s = rules.pause_s(reason, failures)
    phase = DataPhase.FAILED if reason in NEVER | SLOW else DataPhase.WAITING
    message = run.message or "its pod ended without a message; finished parts are kept"
    return replace(
        copy,
        phase=phase if run.verb is Verb.STAGE else DataPhase.EVICTED,
        generation=run.generation,
        failed_attempt=run.attempt,
        failures=failures,
        reason=reason,
        message=message,
        amounts=run.amounts or copy.amounts,
        retry_at_s=None if pause_s is None else ended_at_s + pause_s,
        digest="",
        ready_at_s=None,
    )
