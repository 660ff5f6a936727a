"""What the checkpoint writes of a job so far have shown about its next ones."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import median

_KEPT = 32
QUARANTINE_S = 60.0
"""A write without a pause whose end was not seen is taken to have ended after this time, if training went on."""
_MOST_LINES = 64
_LATE_PIECES, _FIRST_EPOCH = 2, 0
_BETWEEN_SAMPLES_S = 5.0
_LONGER = 1.2
"""Times the longest time after which lines about a write still came while training went on."""


class SaveProgress(StrEnum):
    """How far the lines about the save that is being logged have come, by the lines about earlier saves."""

    UNKNOWN = ""
    MORE = "more"
    COMPLETE = "complete"


@dataclass(slots=True)
class WriteStatistics:
    """Counts and recent values over all writes of one job. Times in seconds.

    ``unannounced_ends``: ends without a beginning; ``early_ends``: messages like an end in the middle of a write;
    ``implied_ends``: writes that only other activity ended; ``last_template``: the template of the last line about a
    write that no message ended, and how often in a row it was the same; ``ways``: of each save, the lines about steps
    before it, and the templates of the lines about it, as often as each came;
    ``end_template``: that of the last line that reported the end of a save, -1 if none did;
    ``step_times``: steps and when they were logged, some seconds apart;
    ``late_end``: the template of the line that ends writes aside, after training went on, -1 if there is none;
    ``bar_times``: epochs, batches and batches of an epoch by a bar that counts batches, likewise.
    """

    reported_ends: int = 0
    unannounced_ends: int = 0
    early_ends: int = 0
    implied_ends: int = 0
    asynchronous: bool = False
    last_template: int = -1
    last_template_count: int = 0
    pauses: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    mentioned_after_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    step_gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    silences_s: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    saved_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    saved_steps: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    saved_step_lines: deque[int] = field(default_factory=lambda: deque(maxlen=4))
    ways: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=8))
    recent_steps: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=8))
    step_times: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=128))
    bar_times: deque[tuple[int, int, int, float]] = field(default_factory=lambda: deque(maxlen=128))
    late_end: int = -1
    end_template: int = -1

    def record_last_template(self, number: int) -> None:
        """Records the template of the last line about a write whose end no message reported."""
        self.last_template_count = self.last_template_count + 1 if number == self.last_template >= 0 else 1
        self.last_template = number

    def record_save(self, at_s: float | None, step: int | None) -> None:
        """Records when a durable checkpoint was begun, and of which step it is; once for all ranks that log its end."""
        if step is not None and self.saved_steps and self.saved_steps[-1] == step:
            return
        if at_s is not None:
            self.saved_at_s.append(at_s)
        if step is not None:
            self.saved_steps.append(step)

    def record_line(self, step_lines: int, template: int) -> None:
        """Records a line about a save; its other lines come before the next line about a step."""
        if not self.ways or self.ways[-1][0] != step_lines:
            self.ways.append((step_lines, str(template)))
            return
        templates = sorted([template, *map(int, self.ways[-1][1].split())])[:_MOST_LINES]
        self.ways[-1] = (step_lines, " ".join(map(str, templates)))

    @property
    def save_progress(self) -> SaveProgress:
        """Whether an earlier save had these lines and others, or had just these. Ranks may log in any order."""
        if len(self.ways) < 2:
            return SaveProgress.UNKNOWN
        *earlier, lines = (Counter(way.split()) for _, way in self.ways)
        if any(lines < others for others in earlier):
            return SaveProgress.MORE
        return SaveProgress.COMPLETE if lines in earlier else SaveProgress.UNKNOWN

    @property
    def repeated(self) -> bool:
        """Whether two saves became durable, and lines of the same templates told the last one as one before it."""
        durable = len(set(self.saved_step_lines)) > 1
        *earlier, last = (set(way.split()) for _, way in self.ways or [(0, "")])
        return durable and last in earlier

    def record_step(self, step: int, at_s: float) -> None:
        """Records when a step was logged first."""
        if not self.recent_steps or step != self.recent_steps[-1][0]:
            self.recent_steps.append((step, at_s))
        if not self.step_times or at_s - self.step_times[-1][1] >= _BETWEEN_SAMPLES_S:
            self.step_times.append((step, at_s))

    def was_at(self, step: int, began_s: float, ended_s: float) -> bool:
        """Whether the log shows that training was at this step at some moment between these times."""
        before: int | None = None
        for sample, at_s in self.step_times:
            if at_s <= began_s:
                before = sample
            if at_s >= ended_s:
                return before is not None and before <= step <= sample
        return False

    def record_bar(self, bar: tuple[int, int, int], at_s: float) -> None:
        """Records when a bar of batches was drawn."""
        if not self.bar_times or at_s - self.bar_times[-1][3] >= _BETWEEN_SAMPLES_S:
            self.bar_times.append((*bar, at_s))

    def first_epoch(self, step: int, began_s: float, ended_s: float) -> int | None:
        """The number of the first epoch by which the bar was at this step at some moment between these times.

        None where it was not. Steps are batches since the start of training. A runtime sends bars in pieces, so that
        what it sends next may have been drawn before the write.
        """
        before = [bar[:3] for bar in self.bar_times if bar[3] <= began_s][-1:]
        after = [bar[:3] for bar in self.bar_times if bar[3] >= ended_s][:_LATE_PIECES]
        if not before or not after:
            return None
        low, high = (steps_of_bar(bar, _FIRST_EPOCH) for bar in (before[-1], max(after)))
        # Had it been another number, another job's checkpoints might fit as well.
        return _FIRST_EPOCH if low <= step <= high <= low + before[-1][2] else None

    @property
    def reports_ends(self) -> bool:
        """Whether this job logs the ends of its writes, and not before they have ended."""
        return self.reported_ends > self.implied_ends and not self.early_ends

    @property
    def longest_write_s(self) -> float | None:
        return max(self.durations_s, default=None)

    @property
    def quarantine_s(self) -> float:
        """How long a write whose end nothing shows can take: at most half of the usual time between saves."""
        gaps = [after - before for before, after in pairwise(self.saved_at_s) if after > before]
        longest = max(QUARANTINE_S, 10 * (self.longest_write_s or 0.0))
        mentioned = _LONGER * max(self.mentioned_after_s, default=0.0)
        return max(mentioned, min(longest, median(gaps) / 2)) if len(gaps) >= 2 else longest


def steps_of_bar(bar: Sequence[int], first_epoch: int) -> int:
    """Batches since the start of training, by a bar's epoch, batch and batches of an epoch."""
    epoch, batch, batches = bar
    return (epoch - first_epoch) * batches + batch
