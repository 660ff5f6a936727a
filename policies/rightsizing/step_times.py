"""Step times out of what a log shows: when which step was done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMark:
    """``step`` was done at ``at_s`` (Unix seconds)."""

    at_s: float
    step: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds for each step, of the steps done between two times (Unix seconds)."""

    start_s: float
    end_s: float
    seconds: float


def step_times(marks: Iterable[StepMark], sample_s: float) -> list[StepTime]:
    """Of consecutive marks, together until they took ``sample_s`` seconds: neighbours share no step. A counter that
    starts over, or a clock that goes back, begins anew. What has not taken so long yet is left out."""
    result: list[StepTime] = []
    start: StepMark | None = None
    last: StepMark | None = None
    for mark in marks:
        if last is None or start is None or mark.step < last.step or mark.at_s < last.at_s:
            start = mark
        elif mark.step > start.step and mark.at_s - start.at_s >= sample_s:
            result.append(StepTime(start.at_s, mark.at_s, (mark.at_s - start.at_s) / (mark.step - start.step)))
            start = mark
        last = mark
    return result


def before_and_after(
    times: Sequence[StepTime], applied_s: float, effective_s: float
) -> tuple[list[StepTime], list[StepTime]]:
    """Those that ended before a change was begun, and those that began once it was in effect."""
    return [each for each in times if each.end_s <= applied_s], [each for each in times if each.start_s >= effective_s]


def longest_gap_s(times: Sequence[StepTime]) -> float:
    """The longest time that an observation took; 0 without any."""
    return max((each.end_s - each.start_s for each in times), default=0.0)
