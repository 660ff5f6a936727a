"""A job's log so far → may it be killed now, what would be lost, and when would be better.

Everything comes from the state machine: statistics of the job's earlier writes, and how long it has been silent.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from kopt.core.workload.checkpoint import Estimate, Evidence, JobState, JobStatus
from kopt.models.checkpoint.save_rhythm import EARLY
from kopt.models.checkpoint.state_machine import StateMachine

RESTART_S = Estimate(120.0, 30.0, 600.0)
"""Until a job that starts again trains, where its own start was not seen."""
_STALLED_S = 600.0
_LONGEST_TEXT = 400
_SHOWN_S = 15.0
"""A look at the files comes every 5 s: after so long it has shown a save that has begun."""
_NOT_TRAINING = (JobState.UNKNOWN, JobState.STARTING, JobState.DATA, JobState.LOADING, JobState.STALLED)
_LATELY, _LONGER, _VARIES = 4, 1.2, 0.25
_EARLY = 0.02
"""Of the steps between two saves: how early a save that is due counts as possibly begun."""


def evaluate(
    machine: StateMachine,
    now_s: float | None = None,
    gpus: int = 1,
    *,
    live: bool = False,
    files: bool = False,
    alone: bool = False,
) -> JobStatus:
    """The job's status at ``now_s`` (its last line's time where None). ``live``: ``now_s`` is the clock of arrivals.

    ``files``: somebody looks at the files of its checkpoints, too, and sees the last one whole. ``alone``: they need no
    log. Volumes that no other job writes into hold saves at regular times, of the same files, and the next is not due.
    """
    now_s = machine.last_at_s if now_s is None else now_s
    doubt = _doubt(machine, now_s, live=live, files=files, alone=alone)
    state = machine.state
    if alone and state in _NOT_TRAINING:
        # The log of such a job may never say so.
        state = JobState.TRAIN
    elif live and _silence_s(machine, now_s) > max(_STALLED_S, 20 * _longest_gap_s(machine)):
        state = JobState.STALLED
    durable = machine.durable
    since = _passed(durable.at_s if durable else machine.began_at_s, now_s)
    risk = _at_risk(since, _restart_s(machine), gpus)
    line, line_text = machine.evidence
    return JobStatus(
        state=state,
        safe=not doubt,
        evidence=durable is not None,
        confidence=round(machine.confidence, 4),
        step=machine.step,
        last_durable_step=durable.step if durable else None,
        last_durable_at_s=durable.at_s if durable else None,
        seconds_since_durable=since if durable else None,
        work_at_risk_gpu_seconds=risk,
        next_safe_seconds=_next_safe(machine, now_s, safe=not doubt),
        next_checkpoint_seconds=_next_checkpoint(machine, now_s),
        evidence_line=line or None,
        evidence_text=line_text[:_LONGEST_TEXT],
        reason=doubt or _why_safe(machine, alone=alone),
        writers=machine.processes,
        last_durable_claimed=durable is not None and durable.claimed,
        durable_evidence=durable.evidence if durable else None,
    )


def is_safe(machine: StateMachine, *, live: bool = False, files: bool = False, alone: bool = False) -> bool:
    """Whether ``evaluate`` would say so right after the last line."""
    return not _doubt(machine, None, live=live, files=files, alone=alone)


def _doubt(machine: StateMachine, now_s: float | None, *, live: bool, files: bool, alone: bool) -> str:
    """Why it is not safe, as a sentence; "" if it is."""
    durable = machine.durable
    if machine.writing:
        write = next(iter(machine.open_writes.values()))
        step = "" if write.step is None else f" of step {write.step}"
        aside = " beside the training" if write.asynchronous or machine.statistics.asynchronous else ""
        return f"A checkpoint{step} is being written{aside} since line {write.line}, and nothing has shown its end."
    if durable is None:
        return "No durable checkpoint has been seen: everything since the start would be lost."
    quiet = alone and _quiet(machine, now_s)
    if machine.state is JobState.UNKNOWN and not alone:
        return "The log has not said yet where the job is."
    if durable.line is not None and not files and not machine.statistics.repeated:
        return (
            "Text alone cannot tell yet: no earlier save of this job went as the last one did. "
            "Another save or a look at the files can."
        )
    if durable.line is not None and not machine.active_since_end and not files:
        # Many say "saved" of the first of several parts, or before they save: training goes on when all is written.
        return "The log has just reported the end of a save, and not yet that the training goes on."
    if machine.state is JobState.FINISHED and not files:
        return "The log says that training is over; the job ends by itself, and may still write its last checkpoint."
    if machine.state in _NOT_TRAINING and not files and not alone:
        return "The log does not say that the job trains."
    if not machine.routine and not quiet:
        return "The last line is not one that this job prints again and again between saves: a save may begin with it."
    due = _save_due(machine, now_s)
    if due is not None:
        return f"A save is due at step {due}, as this job has saved so far; it may have begun."
    if _lines_due(machine):
        return "A save is due after so many lines of steps, as this job has saved so far; it may have begun."
    if live and _time_due(machine, now_s):
        return "A save is due, as this job has saved so far, and it tells of saves only when they are over."
    if live and _unforeseeable(machine):
        return (
            "This job saves at no regular step or time, and tells of a save only after it: one may begin at any moment."
        )
    silence = _silence_s(machine, now_s)
    if live and not quiet and silence > 3 * _longest_gap_s(machine) + 0.05:
        usual = _longest_gap_s(machine)
        return f"Silent for {silence:.0f} s, where a line came every {usual:.1f} s: it may be saving without a word."
    return ""


def _quiet(machine: StateMachine, now_s: float | None) -> bool:
    """Whether the last line is so old that files would show a save that began with it."""
    return machine.last_at_s is None or _silence_s(machine, now_s) >= _SHOWN_S


def _why_safe(machine: StateMachine, *, alone: bool) -> str:
    durable = machine.durable
    if durable is None:
        return ""
    step = "" if durable.step is None else f" of step {durable.step}"
    if alone and durable.line is None and not durable.claimed:
        return (
            f"The files of the checkpoint{step} are complete, in volumes that this job alone writes; its saves were "
            "alike, and the next is not due."
        )
    if durable.claimed:
        return f"The job's pods say by annotation that the checkpoint{step} is durable, and no write is open."
    if durable.line is None:
        return f"The files of the checkpoint{step} are complete, and no write is open."
    return f"The checkpoint{step} is durable since line {durable.line}, and no write is open."


def _saves_unannounced(machine: StateMachine) -> bool:
    """Whether writes of this job may begin without a message."""
    return machine.statistics.unannounced_ends > 0


def _unforeseeable(machine: StateMachine) -> bool:
    """Whether saves begin without a message, and neither steps nor times say when: those of a model that got better."""
    statistics = machine.statistics
    if not _saves_unannounced(machine) or len(statistics.saved_at_s) < 4:
        return False
    return not (_regular(statistics.saved_steps) or _regular(statistics.saved_at_s))


def _regular(values: Sequence[float]) -> bool:
    """Whether the last of them came at about the same distance."""
    gaps = [after - before for before, after in pairwise(values)][-_LATELY:]
    return len(gaps) >= 2 and max(gaps) <= (1 + _VARIES) * min(gaps)


def _save_due(machine: StateMachine, now_s: float | None) -> int | None:
    """The step of a save that may have begun before the log shows it: reports come late, bars are drawn rarely."""
    steps = machine.statistics.saved_steps
    if not steps or machine.step is None:
        return None
    interval = steps[0] if len(steps) == 1 else steps[-1] - steps[-2]
    regular = len(steps) < 3 or interval == steps[-2] - steps[-3]
    if interval <= 1 or not regular or machine.step <= steps[-1]:
        return None
    # The log may not have shown the last ones.
    due = steps[-1] + interval * -(-(machine.step - steps[-1]) // interval)
    return due if _step_by(machine, now_s) >= due - _EARLY * interval else None


def _lines_due(machine: StateMachine) -> bool:
    """The same by the number of lines about steps, if the job does not number its steps or reports saves late."""
    counts = machine.statistics.saved_step_lines
    if len(counts) < 2 or (machine.step is not None and not _saves_unannounced(machine)):
        return False
    interval = counts[-1] - counts[-2]
    return interval > 1 and machine.step_lines == counts[-1] + interval


def _time_due(machine: StateMachine, now_s: float | None) -> bool:
    """The same by time, if the job reports saves late: a write lasts at most as long as the silence before it.

    Files show a save only after a look at them, where no step announces it.
    """
    statistics, durable = machine.statistics, machine.durable
    gaps = [after - before for before, after in pairwise(statistics.saved_at_s) if after > before][-_LATELY:]
    if not _saves_unannounced(machine) or len(gaps) < 2 or now_s is None:
        return False
    early = [_LONGER * silence for silence in statistics.silences_s]
    if durable is not None and durable.evidence is Evidence.FILES and not _regular(statistics.saved_steps):
        early += [_SHOWN_S, EARLY * min(gaps)]
    since = now_s - statistics.saved_at_s[-1]
    return bool(early) and min(gaps) - max(early) <= since <= 2 * max(gaps)


def _step_by(machine: StateMachine, now_s: float | None) -> float:
    """The step that training has reached by then at its recent speed."""
    recent = machine.statistics.recent_steps
    step = float(machine.step or 0)
    now_s = machine.last_at_s if now_s is None else now_s
    if len(recent) < 2 or now_s is None:
        return step
    (first, began_s), (last, ended_s) = recent[0], recent[-1]
    if last <= first or ended_s <= began_s:
        return step
    return step + max(0.0, now_s - ended_s) * (last - first) / (ended_s - began_s)


def _longest_gap_s(machine: StateMachine) -> float:
    return max(machine.statistics.step_gaps_s, default=_STALLED_S)


def _silence_s(machine: StateMachine, now_s: float | None) -> float:
    return _passed(machine.last_at_s, now_s) or 0.0


def _passed(since_s: float | None, now_s: float | None) -> float | None:
    return None if since_s is None or now_s is None else max(0.0, now_s - since_s)


def _restart_s(machine: StateMachine) -> Estimate:
    """How long until a job that starts again trains; its own start is the best estimate."""
    start_s = _passed(machine.began_at_s, machine.first_step_at_s)
    return Estimate(start_s, start_s / 2, 2 * start_s + 30.0) if start_s else RESTART_S


def _at_risk(since_s: float | None, restart: Estimate, gpus: int) -> Estimate | None:
    if since_s is None:
        return None
    return Estimate(*(gpus * (since_s + value) for value in (restart.value, restart.low, restart.high)))


def _next_safe(machine: StateMachine, now_s: float | None, *, safe: bool) -> Estimate | None:
    if safe:
        return Estimate(0.0, 0.0, 0.0)
    if machine.durable is None and not machine.writing:
        return None
    took = machine.statistics.durations_s
    began = [open_write.at_s for open_write in machine.open_writes.values() if open_write.at_s is not None]
    elapsed = _passed(min(began, default=None), now_s)
    if not took or elapsed is None:
        return None
    return _ordered(*(max(0.0, value - elapsed) for value in (median(took), min(took), 2 * max(took))))


def _next_checkpoint(machine: StateMachine, now_s: float | None) -> Estimate | None:
    """Until the next checkpoint is durable, by the gaps between this job's saves."""
    statistics = machine.statistics
    gaps = [after - before for before, after in pairwise(statistics.saved_at_s) if after > before]
    if len(gaps) < 2 or now_s is None:
        return None
    elapsed = max(0.0, now_s - statistics.saved_at_s[-1])
    took = list(statistics.durations_s) or [0.0]
    likely, soonest, latest = median(gaps) + median(took), min(gaps) + min(took), max(gaps) + max(took)
    return _ordered(max(0.0, likely - elapsed), max(0.0, soonest - elapsed), max(0.0, latest - elapsed))


def _ordered(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, min(value, low), max(value, high))
