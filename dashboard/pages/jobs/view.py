"""The page of jobs: how their states followed each other, may they be killed now, and what that would cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.workload.checkpoint import Estimate, JobState
from kopt.dashboard.formatting import amount, clock, span
from kopt.dashboard.pages.jobs.data import Jobs
from kopt.serving.contract.checkpoint_answers import ChangeOut, JobOut

MOST_JOBS = 60
MOST_CHANGES = 12
SPANS_H = (1, 6, 24, 168)
DEFAULT_SPAN_H = 6
WIDTH = 1000.0
_NARROWEST = 2.5
"""Of a write or a failure, in the picture's units: what lasts seconds must be seen in a picture of days."""
STATE_LABELS = {
    JobState.STARTING: "starting",
    JobState.DATA: "reading data",
    JobState.LOADING: "loading a checkpoint",
    JobState.TRAIN: "training",
    JobState.EVAL: "evaluating",
    JobState.CKPT_WRITING: "writing a checkpoint",
    JobState.CKPT_DONE: "checkpoint done",
    JobState.CKPT_FAILED: "checkpoint failed",
    JobState.FINISHED: "finished",
    JobState.CRASHED: "crashed",
    JobState.OOM: "out of memory",
    JobState.STALLED: "silent",
    JobState.UNKNOWN: "not known",
}
LEGEND = (
    (JobState.TRAIN, "training"),
    (JobState.EVAL, "evaluating"),
    (JobState.CKPT_WRITING, "writing a checkpoint"),
    (JobState.CKPT_DONE, "checkpoint done"),
    (JobState.STARTING, "starting, loading, data"),
    (JobState.CRASHED, "failed"),
    (JobState.STALLED, "silent"),
    (JobState.FINISHED, "finished"),
)
STALE_S = 300.0
"""A report older than this says nothing about now: the agent may have ended, and a write may have begun."""
_ENDED = frozenset({JobState.FINISHED, JobState.CRASHED, JobState.OOM})
_SHORT = frozenset({JobState.CKPT_WRITING, JobState.CKPT_DONE, JobState.CKPT_FAILED, JobState.CRASHED, JobState.OOM})


@dataclass(frozen=True)
class Piece:
    """A state's part of the timeline, in its units; ``tooltip`` is shown when it is pointed at."""

    state: str
    x: float
    width: float
    safe: bool
    tooltip: str


@dataclass(frozen=True)
class JobCard:
    """One job in words. ``pieces`` run from ``from_s`` to ``to_s`` (Unix seconds); the newest ``changes`` first.

    ``stale``: how old the last report is, where it is too old to know whether the job is ``safe`` to kill now.
    ``clockless``: the log has no times; those shown are of its reports.
    """

    view: JobOut
    state: str
    stale: str
    safe: bool
    clockless: bool
    risk: str
    durable: str
    coming: str
    pieces: tuple[Piece, ...]
    from_s: float
    to_s: float
    changes: tuple[ChangeOut, ...]


@dataclass(frozen=True)
class JobsPage:
    """``cards`` of the ``matching`` among the ``total``; ``safe`` may be killed now; ``stale`` were not heard of
    lately; ``risk`` of all of them together."""

    cards: tuple[JobCard, ...]
    matching: int
    total: int
    safe: int
    stale: int
    risk: str
    problem: str = ""


def jobs_page(jobs: Jobs, text: str = "", hours: float = DEFAULT_SPAN_H) -> JobsPage:
    """What the page shows of the jobs whose name holds ``text``, over the last ``hours``."""
    followed_jobs = [followed_job for followed_job in jobs.jobs if text.casefold() in followed_job.job.casefold()]
    cards = tuple(_card(followed_job, jobs.now_s, hours) for followed_job in followed_jobs[:MOST_JOBS])
    risks = [followed_job.status.work_at_risk_gpu_seconds for followed_job in followed_jobs]
    total = sum(estimate.value for estimate in risks if estimate is not None)
    stale = [bool(_stale(followed_job, jobs.now_s)) for followed_job in followed_jobs]
    safe = sum(job.status.safe and not is_stale for job, is_stale in zip(followed_jobs, stale, strict=True))
    return JobsPage(cards, len(followed_jobs), len(jobs.jobs), safe, sum(stale), _gpu_time(total), jobs.problem)


def _stale(followed_job: JobOut, now_s: float) -> str:
    """How old the last report is, if it says nothing about now any more; of what has ended every report does."""
    age_s = now_s - followed_job.heard_at
    return span(age_s) if age_s > STALE_S and followed_job.status.state not in _ENDED else ""


def _card(followed_job: JobOut, now_s: float, hours: float) -> JobCard:
    status, stale = followed_job.status, _stale(followed_job, now_s)
    risk = status.work_at_risk_gpu_seconds
    begun_s = max(followed_job.changes[0].at if followed_job.changes else now_s, now_s - hours * 3600)
    return JobCard(
        followed_job,
        STATE_LABELS[status.state],
        stale,
        status.safe and not stale,
        risk is None and status.last_durable_at_s is None,
        "unknown: the log has no timestamps" if risk is None else _between(risk),
        _durable(followed_job, now_s),
        "" if stale else _coming(followed_job),
        _pieces(followed_job.changes, begun_s, now_s, followed_job.heard_at if stale else now_s),
        begun_s,
        now_s,
        followed_job.changes[: -MOST_CHANGES - 1 : -1],
    )


def _durable(followed_job: JobOut, now_s: float) -> str:
    status = followed_job.status
    durable_at_s = status.last_durable_at_s
    if not status.evidence or durable_at_s is None:
        return status.durable_text
    # The status counts to the last line, and that may be long ago.
    return f"{status.durable_text}, {span(max(0.0, now_s - durable_at_s))} ago"


def _coming(followed_job: JobOut) -> str:
    estimate = followed_job.status.next_checkpoint_seconds
    if estimate is None:
        return ""
    if estimate.value <= 0:
        return "any moment"
    return f"in about {span(estimate.value)} ({span(estimate.low)} to {span(estimate.high)})"


def _pieces(changes: Sequence[ChangeOut], begun_s: float, now_s: float, observed_until_s: float) -> tuple[Piece, ...]:
    """States between ``begun_s`` and now, the last until ``observed_until_s``; drawn in this order, so that short ones
    stand above the long."""
    scale = WIDTH / max(now_s - begun_s, 1e-6)
    ends = [change.at for change in changes[1:]] + [observed_until_s] * bool(changes)
    pieces = []
    for state_change, end_s in zip(changes, ends, strict=True):
        start_s, end_s = max(state_change.at, begun_s), min(max(end_s, state_change.at), now_s)
        if end_s < begun_s or start_s > now_s:
            continue
        least = _NARROWEST if state_change.state in _SHORT else 0.0
        width = max((end_s - start_s) * scale, least)
        x = min((start_s - begun_s) * scale, WIDTH - width)
        if width > 0:
            pieces.append(
                Piece(
                    state_change.state,
                    round(x, 2),
                    round(width, 2),
                    state_change.safe,
                    _change_text(state_change, end_s),
                )
            )
    return tuple(sorted(pieces, key=lambda piece: -piece.width))


def _change_text(state_change: ChangeOut, end_s: float) -> str:
    safe = "safe to kill" if state_change.safe else "not safe to kill"
    line = "" if state_change.line is None else f"\nline {state_change.line:,}: {state_change.text}"
    lasted = span(max(0.0, end_s - state_change.at))
    return f"{STATE_LABELS[JobState(state_change.state)]}, {safe}\n{clock(state_change.at)}, {lasted}{line}"


def _between(estimate: Estimate) -> str:
    size, word = _scale(estimate.value)
    return f"{amount(estimate.value / size)} {word} ({amount(estimate.low / size)} to {amount(estimate.high / size)})"


def _gpu_time(gpu_seconds: float) -> str:
    size, word = _scale(gpu_seconds)
    return f"{amount(gpu_seconds / size)} {word}"


def _scale(gpu_seconds: float) -> tuple[float, str]:
    for size, word in ((3600.0, "GPU-hours"), (60.0, "GPU-minutes")):
        if gpu_seconds >= 2 * size:
            return size, word
    return 1.0, "GPU-seconds"
