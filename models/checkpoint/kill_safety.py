"""A job's log so far → may it be killed now, what would be lost, and when would be better.

All of it is read off the machine: what this job's own saves have taught, and how long it has been silent.
"""

from itertools import pairwise
from statistics import median

from kopt.core.checkpoint import Estimate, JobState, JobStatus
from kopt.models.checkpoint.machine import Machine

RESTART_S = Estimate(120.0, 30.0, 600.0)
"""Until a job that starts again trains, where its own start was not seen."""
_STALLED_S = 600.0
_LONGEST_TEXT = 400
_LATELY, _LONGER = 4, 1.2
_EARLY = 0.02
"""Of the steps between two saves: how much before one is due it is reckoned with."""


def judge(machine: Machine, now_s: float | None = None, gpus: int = 1, *, live: bool = False) -> JobStatus:
    """The job's status at ``now_s`` (its last line's time where None). ``live``: ``now_s`` is the clock of arrivals."""
    now_s = machine.last_at_s if now_s is None else now_s
    doubt = _doubt(machine, now_s, live=live)
    state = machine.state
    if live and _silence_s(machine, now_s) > max(_STALLED_S, 20 * _longest_gap_s(machine)):
        state = JobState.STALLED
    durable = machine.durable
    since = _passed(durable.at_s if durable else machine.began_at_s, now_s)
    risk = _at_risk(since, _restart_s(machine), gpus)
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
        evidence_line=machine.line or None,
        evidence_text=machine.line_text[:_LONGEST_TEXT],
        reason=doubt or _why_safe(machine),
        writers=machine.processes,
    )


def is_safe(machine: Machine) -> bool:
    """What ``judge`` says of the moment after the last line."""
    return not _doubt(machine, None, live=False)


def _doubt(machine: Machine, now_s: float | None, *, live: bool) -> str:
    """Why it is not safe, as a sentence; "" if it is."""
    durable = machine.durable
    if machine.open:
        known = next(iter(machine.open.values()))
        step = "" if known.step is None else f" of step {known.step}"
        aside = " beside the training" if known.aside or machine.habits.aside else ""
        return f"A checkpoint{step} is being written{aside} since line {known.line}, and nothing has shown its end."
    if durable is None:
        return "No durable checkpoint has been seen: everything since the start would be lost."
    if machine.state is JobState.UNKNOWN:
        return "The log has not said yet where the job is."
    due = _save_due(machine, now_s)
    if due is not None:
        return f"A save is due at step {due}, as this job has saved so far; it may have begun."
    if _lines_due(machine):
        return "A save is due after so many lines of steps, as this job has saved so far; it may have begun."
    if live and _time_due(machine, now_s):
        return "A save is due, as this job has saved so far, and it tells of saves only when they are over."
    silence = _silence_s(machine, now_s)
    if live and silence > 3 * _longest_gap_s(machine) + 0.05:
        usual = _longest_gap_s(machine)
        return f"Silent for {silence:.0f} s, where a line came every {usual:.1f} s: it may be saving without a word."
    return ""


def _why_safe(machine: Machine) -> str:
    durable = machine.durable
    if durable is None:
        return ""
    step = "" if durable.step is None else f" of step {durable.step}"
    return f"The checkpoint{step} is durable since line {durable.line}, and no write is open."


def _tells_late(machine: Machine) -> bool:
    """Whether writes of this job may begin without a word."""
    return machine.habits.ends_alone > 0


def _save_due(machine: Machine, now_s: float | None) -> int | None:
    """The step of a save that may have begun before the log says so: savers speak late, and bars are drawn seldom."""
    steps = machine.habits.saved_steps
    if not steps or machine.step is None:
        return None
    interval = steps[0] if len(steps) == 1 else steps[-1] - steps[-2]
    regular = len(steps) < 3 or interval == steps[-2] - steps[-3]
    due = steps[-1] + interval
    if interval <= 1 or not regular or not steps[-1] < machine.step <= due:
        return None
    return due if _step_by(machine, now_s) >= due - _EARLY * interval else None


def _lines_due(machine: Machine) -> bool:
    """The same, by the number of lines about steps, of a job that does not number its steps or tells late."""
    counts = machine.habits.saved_counts
    if len(counts) < 2 or (machine.step is not None and not _tells_late(machine)):
        return False
    interval = counts[-1] - counts[-2]
    return interval > 1 and machine.step_lines == counts[-1] + interval


def _time_due(machine: Machine, now_s: float | None) -> bool:
    """The same, by time, of a job that tells late: a write takes at most as long as the silence that it ended."""
    habits = machine.habits
    gaps = [after - before for before, after in pairwise(habits.saved_at_s) if after > before][-_LATELY:]
    if not _tells_late(machine) or not habits.quiet_s or len(gaps) < 2 or now_s is None:
        return False
    since = now_s - habits.saved_at_s[-1]
    return min(gaps) - _LONGER * max(habits.quiet_s) <= since <= 2 * max(gaps)


def _step_by(machine: Machine, now_s: float | None) -> float:
    """Where training will be by then, as fast as it went."""
    seen = machine.habits.steps_seen
    step = float(machine.step or 0)
    now_s = machine.last_at_s if now_s is None else now_s
    if len(seen) < 2 or now_s is None:
        return step
    (first, began_s), (last, ended_s) = seen[0], seen[-1]
    if last <= first or ended_s <= began_s:
        return step
    return step + max(0.0, now_s - ended_s) * (last - first) / (ended_s - began_s)


def _longest_gap_s(machine: Machine) -> float:
    return max(machine.habits.step_gaps_s, default=_STALLED_S)


def _silence_s(machine: Machine, now_s: float | None) -> float:
    return _passed(machine.last_at_s, now_s) or 0.0


def _passed(since_s: float | None, now_s: float | None) -> float | None:
    return None if since_s is None or now_s is None else max(0.0, now_s - since_s)


def _restart_s(machine: Machine) -> Estimate:
    """How long until a job that starts again trains; its own start says it best."""
    seen = _passed(machine.began_at_s, machine.first_step_at_s)
    return Estimate(seen, seen / 2, 2 * seen + 30.0) if seen else RESTART_S


def _at_risk(since_s: float | None, restart: Estimate, gpus: int) -> Estimate | None:
    if since_s is None:
        return None
    return Estimate(*(gpus * (since_s + one) for one in (restart.value, restart.low, restart.high)))


def _next_safe(machine: Machine, now_s: float | None, *, safe: bool) -> Estimate | None:
    if safe:
        return Estimate(0.0, 0.0, 0.0)
    if machine.durable is None and not machine.open:
        return None
    took = machine.habits.durations_s
    began = [one.at_s for one in machine.open.values() if one.at_s is not None]
    elapsed = _passed(min(began, default=None), now_s)
    if not took or elapsed is None:
        return None
    return _ordered(*(max(0.0, one - elapsed) for one in (median(took), min(took), 2 * max(took))))


def _next_checkpoint(machine: Machine, now_s: float | None) -> Estimate | None:
    """Until the next checkpoint is durable, by the gaps between this job's saves."""
    habits = machine.habits
    gaps = [after - before for before, after in pairwise(habits.saved_at_s) if after > before]
    if len(gaps) < 2 or now_s is None:
        return None
    elapsed = max(0.0, now_s - habits.saved_at_s[-1])
    took = list(habits.durations_s) or [0.0]
    likely, soonest, latest = median(gaps) + median(took), min(gaps) + min(took), max(gaps) + max(took)
    return _ordered(max(0.0, likely - elapsed), max(0.0, soonest - elapsed), max(0.0, latest - elapsed))


def _ordered(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, min(value, low), max(value, high))
