"""Step times out of what a log shows: when which step was done."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class StepMark:
    """``step`` was done at ``at_s`` (Unix seconds)."""

    at_s: float
    step: int


class Marks:
    """The marks of one workload, each step once, the newest ``keep_s`` seconds of them."""

    def __init__(self, keep_s: float, most: int = 100_000) -> None:
        self._keep_s, self._most = keep_s, most
        self._marks: deque[StepMark] = deque(maxlen=most)

    def add(self, mark: StepMark) -> None:
        if self._marks and mark.step == self._marks[-1].step:
            return
        self._marks.append(mark)
        while mark.at_s - self._marks[0].at_s > self._keep_s:
            self._marks.popleft()

    def times(self, sample_s: float) -> list["StepTime"]:
        return step_times(self._marks, sample_s)

    @property
    def last(self) -> StepMark | None:
        """None before the first step."""
        return self._marks[-1] if self._marks else None

    @property
    def last_s(self) -> float | None:
        """When the last step was done; None before the first."""
        return self._marks[-1].at_s if self._marks else None

    def again_s(self, since_s: float, gap_s: float) -> float | None:
        """When a step was first done after the program had started again since then: its counter went back, the log
        began, or no step was done for ``gap_s``; None where it has not."""
        for last, mark in pairwise([None, *self._marks]):
            if mark is not None and mark.at_s > since_s and _is_again(last, mark, gap_s):
                return mark.at_s
        return None

    def __len__(self) -> int:
        return len(self._marks)


def _is_again(last: StepMark | None, mark: StepMark, gap_s: float) -> bool:
    return last is None or mark.step < last.step or mark.at_s - last.at_s > gap_s


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
