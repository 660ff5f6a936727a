"""Checkpoints that are being written, and the last one that is durable."""

from dataclasses import dataclass, field, replace

from kopt.core.workload.checkpoint import Evidence
from kopt.models.checkpoint.classified_line import LineReference
from kopt.models.checkpoint.write_statistics import WriteStatistics

_CLAIM = "annotation"
"""Stands in place of a line's text."""


@dataclass(slots=True)
class OpenWrite:
    """A checkpoint being written by one writer.

    ``line``, ``text`` and ``at_s`` are those of its first line; ``ending``: the line that may have ended it;
    ``activity``: lines that show other activity since; ``step_text``: the last line about a step before it;
    ``more_expected``: more was said of earlier saves after the line that may have ended it;
    ``last_template``: the template of the last line about it that came after training had gone on, -1 if none did.
    """

    line: int
    text: str
    at_s: float | None
    step: int | None
    last_step: int | None
    asynchronous: bool
    certainty: float
    step_lines: int = 0
    begun: bool = False
    failed: bool = False
    activity: int = 0
    idle_lines: int = 0
    ending: LineReference | None = None
    template: int = -1
    step_named: bool = False
    pauses_after: bool = False
    step_text: str = ""
    last_template: int = -1
    more_expected: bool = False

    @property
    def reference(self) -> LineReference:
        """Its first line."""
        return self.line, self.text, self.at_s

    def name_step(self, step: int | None) -> None:
        """Uses the first step that a line about the write names; until then the step of the training is a guess."""
        if step is not None and not self.step_named:
            self.step, self.step_named = step, True


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """The last durable checkpoint: its step, when its write began (later work would be lost), and its evidence."""

    step: int | None
    at_s: float | None
    line: int | None
    text: str = ""

    @property
    def claimed(self) -> bool:
        """Whether an annotation by the job's pods is the only evidence."""
        return self.line is None and self.text == _CLAIM

    @property
    def evidence(self) -> Evidence:
        """What shows it."""
        if self.line is not None:
            return Evidence.TEXT
        return Evidence.ANNOTATION if self.claimed else Evidence.FILES


@dataclass(slots=True)
class Writes:
    """The open writes by writer, and the last durable checkpoint; ``statistics`` learn from each that ends."""

    statistics: WriteStatistics = field(default_factory=WriteStatistics)
    open: dict[str, OpenWrite] = field(default_factory=dict)
    durable: DurableCheckpoint | None = None

    def rename_writer(self, name: str, new_name: str) -> None:
        if name in self.open:
            self.open[new_name] = self.open.pop(name)

    def close(self, write: OpenWrite, end: LineReference, *, reported: bool) -> None:
        """The write has ended and is durable; ``reported``: by its own message, not only by other activity."""
        line, text, at_s = end
        self.open = {writer: open_write for writer, open_write in self.open.items() if open_write is not write}
        self.statistics.implied_ends += not reported
        # If training went on before the end was accepted, nothing shows how long the write took.
        measured = reported or write.activity <= 1
        if measured and at_s is not None and write.at_s is not None and at_s >= write.at_s and write.line != line:
            self.statistics.durations_s.append(at_s - write.at_s)
        self._record(write)
        line, text = (line, text) if reported else (write.line, write.text)
        self.durable = DurableCheckpoint(write.step, write.at_s, line, text)

    def expire(self, writer: str) -> None:
        """The write has been open for so long that it must have ended, though nothing showed when."""
        write = self.open.pop(writer)
        self._record(write)
        self.durable = DurableCheckpoint(write.step, write.at_s, write.line, write.text)

    def _record(self, write: OpenWrite) -> None:
        self.statistics.record_save(write.at_s, write.step)
        self.statistics.saved_step_lines.append(write.step_lines)

    def record_files(self, name: str, step: int | None, began_s: float, ended_s: float) -> bool:
        """A complete checkpoint in the folder, written from ``began_s`` to ``ended_s``; returns whether it is new.

        Writes that began before ``ended_s`` are over, whatever the log says.
        """
        over = [writer for writer, write in self.open.items() if write.at_s is not None and write.at_s <= ended_s]
        durable = self.durable
        if durable is not None and not over:
            # The log may have told of this save: counted twice, it would be two, one right after the other.
            by_log = step is not None and step == durable.step
            if by_log or (durable.at_s is not None and durable.at_s >= began_s):
                return False
        closed = [self.open.pop(writer) for writer in over]
        if not closed:
            # It was saved without a line in the log; so may be the next one.
            self.statistics.unannounced_ends += 1
        if step is None:
            step = next((write.step for write in closed if write.step is not None), None)
        if durable is None or durable.at_s is None or durable.at_s < began_s:
            self.durable = DurableCheckpoint(step, began_s, None, f"files: {name}")
            self.statistics.record_save(began_s, step)
        return True

    def record_claim(self, step: int | None, at_s: float) -> bool:
        """A checkpoint that the job's pods report by annotation; returns whether it is newer than the last one."""
        durable = self.durable
        if durable is not None:
            later = durable.at_s is None or at_s > durable.at_s
            if not later or (durable.at_s is None and (step is None or step <= (durable.step or 0))):
                return False
        self.durable = DurableCheckpoint(step, at_s, None, _CLAIM)
        return True

    def clamp(self, now_s: float) -> None:
        """Moves the time of the durable checkpoint back to ``now_s`` if it lies after it."""
        durable = self.durable
        if durable is not None and durable.at_s is not None:
            self.durable = replace(durable, at_s=min(durable.at_s, now_s))
