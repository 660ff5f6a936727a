"""What is seen of a run: the status that the checkpoint predictor would give, late, in part and with mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.core.workload.checkpoint import Estimate, JobState, JobStatus, Member
from kopt.policies.preemption.model import RunningGang
from kopt.policies.preemption.state import Rhythm
from kopt.simulator.preemption.runs import Run

DAY_S = 86_400.0
_LOOKS_BACK = 10


@dataclass(frozen=True)
class Sight:
    """How well logs are understood.

    What defaults are measured are the checkpoint predictor's, on excerpts of trainers whose families it never saw
    (``python -m benchmarks checkpoint``, docs/benchmarks/checkpoints.md); the others are assumptions.
    """

    observable: float = 0.7
    """Share of jobs whose log or files tell of checkpoints at all; nothing is ever known of the others. Assumed."""
    delay_s: float = 5.0
    """Mean time until an event is known. Assumed."""
    done_understood: float = 0.91
    """Share of writes whose end is understood; after the others a job is not known to be safe until the next one.
    Measured as "completions seen within a line"."""
    false_done: float = 0.08
    """Share of writes after which a checkpoint is believed in that was not made. Measured as "ends that were none", of
    all reported; nine in ten writes are reported, so per write it is a little less."""
    held: float = 0.04
    """Share of time in which a job is wrongly taken to be writing. Measured as "other lines wrongly held"."""
    safe_in_write: float = 0.0
    """Share of writes that are not noticed: the job is called safe within them. Measured as "writes with a safe line"
    (0 of 49)."""
    restart_error: float = 0.3
    """Relative error of the restart cost, at most. Assumed."""


def observe(run: Run, now_s: float, sight: Sight) -> Member:
    """The status of a run as it is known at ``now_s``."""
    gpus = MilliGpu(run.job.gpus * WHOLE_GPU)
    if not run.habits.observable:
        return Member(gpus)
    at_s = max(run.started_s, now_s - run.habits.delay_s)
    number = run.last_begun(at_s)
    if number >= 0 and at_s < run.ends_s[number] and run.habits.draw(3, run.number, number) >= sight.safe_in_write:
        return Member(gpus, _writing(run, number, at_s, sight), at_s)
    if run.habits.draw(5, run.number, int(at_s // 60)) < sight.held:
        status = JobStatus(JobState.CKPT_WRITING, evidence=True, confidence=0.9)
        return Member(gpus, status, at_s)
    return Member(gpus, _training(run, number, at_s, sight), at_s)


def _writing(run: Run, number: int, at_s: float, sight: Sight) -> JobStatus:
    remaining_s = max(1.0, (run.ends_s[number] - at_s) * (0.7 + 0.6 * run.habits.draw(4, run.number, number)))
    believed = believed_durables(run, at_s, sight)
    return JobStatus(
        JobState.CKPT_WRITING,
        evidence=bool(believed),
        confidence=0.9,
        seconds_since_durable=at_s - believed[-1] if believed else None,
        work_at_risk_gpu_seconds=_risk(run, at_s - believed[-1], sight) if believed else None,
        next_safe_seconds=Estimate(remaining_s, remaining_s / 2, 2 * remaining_s),
        next_checkpoint_seconds=next_checkpoint(believed, at_s),
    )


def _training(run: Run, number: int, at_s: float, sight: Sight) -> JobStatus:
    believed = believed_durables(run, at_s, sight)
    if not believed:
        return JobStatus(JobState.TRAIN, confidence=0.9, reason="no checkpoint seen yet")
    safe = number < 0 or _understood(run, number, sight) or believed[-1] > run.ends_s[number]
    return JobStatus(
        JobState.TRAIN,
        safe=safe,
        evidence=True,
        confidence=0.9,
        seconds_since_durable=at_s - believed[-1],
        work_at_risk_gpu_seconds=_risk(run, at_s - believed[-1], sight),
        next_checkpoint_seconds=next_checkpoint(believed, at_s),
        reason="" if safe else "the end of a write was not seen",
    )


def _risk(run: Run, since_s: float, sight: Sight) -> Estimate:
    error = 1 + sight.restart_error * (2 * run.habits.draw(6) - 1)
    value = run.job.gpus * (since_s + error * run.habits.restart_s)
    return Estimate(value, 0.7 * value, 1.5 * value)


def next_checkpoint(believed_s: Sequence[float], at_s: float) -> Estimate | None:
    """Until the next checkpoint as the predictor reckons it (``models/checkpoint/kill_safety.py``), not as it will be.

    From the gaps between those it believes in, which spread as the recorded corpus' do and are torn by its mistakes.
    """
    gaps = [after - before for before, after in pairwise(believed_s) if after > before]
    if len(gaps) < 2:
        return None
    elapsed = at_s - believed_s[-1]
    return Estimate(*(max(0.0, gap - elapsed) for gap in (median(gaps), min(gaps), max(gaps))))


def _understood(run: Run, number: int, sight: Sight) -> bool:
    return run.habits.draw(1, run.number, number) < sight.done_understood


def believed_durables(run: Run, at_s: float, sight: Sight) -> list[float]:
    """When checkpoints became durable, as far as it is known at ``at_s``; some of them are mistakes. Oldest first."""
    last = run.last_begun(at_s)
    result = [run.ready_s] if run.number and at_s >= run.ready_s else []
    for number in range(max(0, last - _LOOKS_BACK), last + 1):
        end_s = run.ends_s[number]
        if end_s <= at_s and _understood(run, number, sight):
            result.append(end_s)
        if run.habits.draw(2, run.number, number) < sight.false_done:
            wrong_s = end_s + run.habits.draw(7, run.number, number) * 0.8 * run.habits.interval_s
            result += [wrong_s] if wrong_s <= at_s else []
    return sorted(result)


def gang(run: Run, now_s: float, sight: Sight) -> RunningGang:
    """A run as the policy sees it."""
    killed = sum(now_s - at_s < DAY_S for at_s in run.killed_s)
    return RunningGang(name(run), "", 0, (observe(run, now_s, sight),), run.started_s, preemptions=killed)


def rhythm(run: Run, now_s: float, sight: Sight) -> Rhythm:
    """What `observe` would have learned of a run, had it been called all along."""
    durables = believed_durables(run, now_s - run.habits.delay_s, sight) if run.habits.observable else []
    spans = [after - before for before, after in pairwise(durables)]
    last = durables[-1] if durables else None
    return Rhythm(name(run), run.started_s, now_s, last, tuple(spans[-9:]), last)


def name(run: Run) -> str:
    return f"{run.index:06d}"
