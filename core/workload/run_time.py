"""Runs of jobs: when each started, when it ended, and what is asked about one that has not."""

import math
from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from kopt.core.notebook import span_chart, table
from kopt.core.reason import Reason
from kopt.core.units import format_span

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""The quantiles that are answered."""
_MEDIAN = LEVELS.index(0.5)
_CHARTED = tuple(LEVELS.index(level) for level in (0.05, 0.25, 0.5, 0.75, 0.95))
MAX_GPUS = 1_000_000
MAX_SECONDS = 1e10


class RunTimeError(ValueError):
    """A run or a question that cannot be; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """What is known of a job before it starts. ``name`` is the job's type (what is run again and again), not the
    name of a single object; ``name`` and ``user`` may be empty."""

    queue: str
    gpus: int
    name: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.gpus <= MAX_GPUS:
            raise RunTimeError(f"a job on {self.gpus:,} GPUs; from 0 to {MAX_GPUS:,} are understood")


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run; ``ended_s`` is None while it goes on. Times are Unix seconds, or a trace's own. Raises RunTimeError.

    ``interrupted``: it was preempted or evicted at ``ended_s``, so how long it would have run is not known.
    ``submitted_s``: since when it had waited, and ``pool``: the GPUs that it ran on, by their ResourceFlavor or node
    pool; None and empty where that was not recorded.
    """

    job: str
    kind: JobKind
    started_s: float
    ended_s: float | None = None
    interrupted: bool = False
    submitted_s: float | None = None
    pool: str = ""

    def __post_init__(self) -> None:
        times = [time_s for time_s in (self.submitted_s, self.started_s, self.ended_s) if time_s is not None]
        if not all(math.isfinite(time_s) and abs(time_s) <= MAX_SECONDS for time_s in times):
            raise RunTimeError(f"job {self.job!r}: started at {self.started_s} and ended at {self.ended_s}")
        if self.ended_s is not None and self.ended_s < self.started_s:
            raise RunTimeError(f"job {self.job!r} ended at {self.ended_s:g}, before it started at {self.started_s:g}")
        if self.submitted_s is not None and self.started_s < self.submitted_s:
            raise RunTimeError(
                f"job {self.job!r} started at {self.started_s:g}, before it was submitted at {self.submitted_s:g}"
            )

    @property
    def duration_seconds(self) -> float | None:
        """None while it goes on, and where it was interrupted."""
        return None if self.ended_s is None or self.interrupted else self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class StepProgress:
    """What a training log shows: ``step`` of ``steps`` done at ``at_s``, and what each of the last steps took."""

    step: int
    steps: int
    at_s: float
    step_seconds: tuple[float, ...]
    """Of recent steps, oldest first; at least one."""

    def __post_init__(self) -> None:
        if not 0 <= self.step <= self.steps or self.steps < 1:
            raise RunTimeError(f"step {self.step:,} of {self.steps:,} is no progress")
        if not self.step_seconds or not all(math.isfinite(took) and took > 0 for took in self.step_seconds):
            raise RunTimeError("the times of steps must be positive, and at least one is needed")


@dataclass(frozen=True, slots=True)
class RunTimeQuestion:
    """How long will such a job run? ``started_s`` where it runs already; ``at_s`` is when it is asked."""

    kind: JobKind
    at_s: float
    started_s: float | None = None
    progress: StepProgress | None = None
    job: str = ""
    """The job's id, so that it is not taken for a sibling of itself."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and abs(self.at_s) <= MAX_SECONDS):
            raise RunTimeError(f"asked at {self.at_s}, which is no time")
        if self.started_s is not None and not self.started_s <= self.at_s:
            raise RunTimeError(f"the job starts at {self.started_s}, after it is asked about ({self.at_s:g})")


@dataclass(frozen=True)
class RunTimeAnswer:
    """Quantiles at ``LEVELS`` of the whole run and of what is left of it, in seconds; both None in a refusal."""

    run_seconds: tuple[float, ...] | None
    remaining_seconds: tuple[float, ...] | None
    reasons: tuple[Reason, ...]
    level: str
    """Whose last runs it is relative to: ``name``, ``class``, ``queue``, ``gpus`` or ``all``."""
    finished: int
    """So many of them had ended."""
    by_steps: bool = False
    by_recent: bool = False
    """By the last runs alone, without the model."""

    def _repr_html_(self) -> str:
        """For notebooks: quantiles of the run and of what is left of it, as a table and a chart each; or why there are
        none."""
        why = " ".join(reason.message for reason in self.reasons)
        if self.run_seconds is None or self.remaining_seconds is None:
            return f"<p>{escape(why)}</p>"
        answers = {"whole run": self.run_seconds}
        if self.remaining_seconds != self.run_seconds:
            answers["from now on"] = self.remaining_seconds
        rows = [
            (name, *map(format_span, seconds), span_chart(name, *(seconds[at] for at in _CHARTED)))
            for name, seconds in answers.items()
        ]
        basis = "by the steps of its log" if self.by_steps else f"by {self.finished:,} runs that ended ({self.level})"
        return table(f"How long it runs, {basis}", ("", *(f"p{level:.0%}"[:-1] for level in LEVELS), ""), rows, why)


@dataclass(frozen=True)
class RunTimeQuantiles:
    """``seconds[i]`` is exceeded with probability 1 − ``levels[i]``: of what runs the time that is left, of what has
    not begun its whole run time. ``like``: a key of workloads whose run times err together, as those of one queue and
    size do; None where there is none.

    Raises ValueError for levels that are not inside (0, 1) and rising, or seconds that are negative or falling.
    """

    levels: tuple[float, ...]
    seconds: tuple[float, ...]
    like: Hashable = None

    def __post_init__(self) -> None:
        if not self.levels or len(self.levels) != len(self.seconds):
            raise ValueError(f"{len(self.levels)} levels and {len(self.seconds)} times are no quantiles")
        if not (self.levels[0] > 0 and self.levels[-1] < 1 and all(a < b for a, b in pairwise(self.levels))):
            raise ValueError(f"the levels {self.levels} do not rise between 0 and 1")
        if not (self.seconds[0] >= 0 and all(a <= b for a, b in pairwise(self.seconds))):
            raise ValueError(f"the times {self.seconds} are negative or fall")

    @property
    def median_s(self) -> float:
        """Half take no longer. It is asked of thousands at once, most often with ``LEVELS``."""
        return self.seconds[_MEDIAN] if self.levels is LEVELS else self.at(0.5)

    def at(self, level: float) -> float:
        """Seconds at a level between 0 and 1, linear between the quantiles; the outermost ones beyond them: what is
        not known of a tail is not made up."""
        index = bisect_right(self.levels, level)
        if index == 0:
            return self.seconds[0]
        if index == len(self.levels):
            return self.seconds[-1]
        low, high = self.levels[index - 1], self.levels[index]
        share = (level - low) / (high - low)
        return self.seconds[index - 1] + share * (self.seconds[index] - self.seconds[index - 1])
