"""The page of jobs: how their states followed each other, may they be killed now, and what that would cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.checkpoint import Estimate, JobState
from kopt.dashboard.sources import Jobs
from kopt.dashboard.wording import amount, clock, span
from kopt.serving.checkpoint_answers import FollowedJobView, StateChange

SHOWN = 60
CHANGES_SHOWN = 12
SPANS_H = (1, 6, 24, 168)
DEFAULT_SPAN_H = 6
WIDTH = 1000.0
_NARROWEST = 2.5
"""Of a write or a failure, in the picture's units: what lasts seconds must be seen in a picture of days."""
WORDS = {
    JobState.STARTING: "starting", JobState.DATA: "reading data", JobState.LOADING: "loading a checkpoint",
    JobState.TRAIN: "training", JobState.EVAL: "evaluating", JobState.CKPT_WRITING: "writing a checkpoint",
    JobState.CKPT_DONE: "checkpoint done", JobState.CKPT_FAILED: "checkpoint failed", JobState.FINISHED: "finished",
    JobState.CRASHED: "crashed", JobState.OOM: "out of memory", JobState.STALLED: "silent",
    JobState.UNKNOWN: "not known",
}  # fmt: skip
LEGEND = (
    (JobState.TRAIN, "training"), (JobState.EVAL, "evaluating"), (JobState.CKPT_WRITING, "writing a checkpoint"),
    (JobState.CKPT_DONE, "checkpoint done"), (JobState.STARTING, "starting, loading, data"),
    (JobState.CRASHED, "failed"), (JobState.STALLED, "silent"), (JobState.FINISHED, "finished"),
)  # fmt: skip
_SHORT = frozenset({JobState.CKPT_WRITING, JobState.CKPT_DONE, JobState.CKPT_FAILED, JobState.CRASHED, JobState.OOM})


@dataclass(frozen=True)
class Piece:
    """A state's part of the timeline, in its units; ``words`` are told when it is pointed at."""

    state: str
    x: float
    width: float
    safe: bool
    words: str


@dataclass(frozen=True)
class JobCard:
    """One job in words. ``pieces`` run from ``from_s`` to ``to_s`` (Unix seconds); the newest ``changes`` first."""

    view: FollowedJobView
    state: str
    risk: str
    durable: str
    coming: str
    pieces: tuple[Piece, ...]
    from_s: float
    to_s: float
    changes: tuple[StateChange, ...]


@dataclass(frozen=True)
class JobsPage:
    """``cards`` of the ``found`` among the ``known``; ``safe`` may be killed now; ``risk`` of all of them together."""

    cards: tuple[JobCard, ...]
    found: int
    known: int
    safe: int
    risk: str
    problem: str = ""


def jobs_page(jobs: Jobs, text: str = "", hours: float = DEFAULT_SPAN_H) -> JobsPage:
    """What the page shows of the jobs whose name holds ``text``, over the last ``hours``."""
    found = [one for one in jobs.found if text.casefold() in one.job.casefold()]
    cards = tuple(_card(one, jobs.now_s, hours) for one in found[:SHOWN])
    risks = [one.status.work_at_risk_gpu_seconds for one in found]
    total = sum(one.value for one in risks if one is not None)
    safe = sum(one.status.safe for one in found)
    return JobsPage(cards, len(found), len(jobs.found), safe, _gpu_time(total), jobs.problem)


def _card(one: FollowedJobView, now_s: float, hours: float) -> JobCard:
    status = one.status
    risk = status.work_at_risk_gpu_seconds
    begun_s = max(one.changes[0].at_s if one.changes else now_s, now_s - hours * 3600)
    return JobCard(
        one, WORDS[status.state], "not known: nothing tells the time" if risk is None else _between(risk),
        _durable(one), _coming(one), _pieces(one.changes, begun_s, now_s), begun_s, now_s,
        one.changes[: -CHANGES_SHOWN - 1 : -1],
    )  # fmt: skip


def _durable(one: FollowedJobView) -> str:
    status = one.status
    if not status.evidence:
        return "none seen"
    step = "of an unknown step" if status.last_durable_step is None else f"of step {status.last_durable_step:,}"
    ago = status.seconds_since_durable
    return step if ago is None else f"{step}, {span(ago)} ago"


def _coming(one: FollowedJobView) -> str:
    found = one.status.next_checkpoint_seconds
    if found is None:
        return ""
    if found.value <= 0:
        return "any moment"
    return f"in about {span(found.value)} ({span(found.low)} to {span(found.high)})"


def _pieces(changes: Sequence[StateChange], begun_s: float, now_s: float) -> tuple[Piece, ...]:
    """States between ``begun_s`` and now; drawn in this order, so that short ones stand above the long."""
    scale = WIDTH / max(now_s - begun_s, 1e-6)
    ends = [one.at_s for one in changes[1:]] + [now_s] * bool(changes)
    found = []
    for one, end_s in zip(changes, ends, strict=True):
        start_s, end_s = max(one.at_s, begun_s), min(max(end_s, one.at_s), now_s)
        if end_s < begun_s or start_s > now_s:
            continue
        least = _NARROWEST if one.state in _SHORT else 0.0
        width = max((end_s - start_s) * scale, least)
        x = min((start_s - begun_s) * scale, WIDTH - width)
        if width > 0:
            found.append(Piece(one.state.value, round(x, 2), round(width, 2), one.safe, _words(one, end_s)))
    return tuple(sorted(found, key=lambda piece: -piece.width))


def _words(one: StateChange, end_s: float) -> str:
    safe = "safe to kill" if one.safe else "not safe to kill"
    line = "" if one.line is None else f"\nline {one.line:,}: {one.text}"
    return f"{WORDS[one.state]}, {safe}\n{clock(one.at_s)}, {span(max(0.0, end_s - one.at_s))}{line}"


def _between(one: Estimate) -> str:
    size, word = _scale(one.value)
    return f"{amount(one.value / size)} {word} ({amount(one.low / size)} to {amount(one.high / size)})"


def _gpu_time(gpu_seconds: float) -> str:
    size, word = _scale(gpu_seconds)
    return f"{amount(gpu_seconds / size)} {word}"


def _scale(gpu_seconds: float) -> tuple[float, str]:
    for size, word in ((3600.0, "GPU-hours"), (60.0, "GPU-minutes")):
        if gpu_seconds >= 2 * size:
            return size, word
    return 1.0, "GPU-seconds"
