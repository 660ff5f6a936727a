"""Where a job is, line by line: labelled lines → states, with what this job's own writes have shown.

The state machine passes each line on to what it changes: ``write_transitions`` for lines about writes, ``activity`` for
those about training. ``end_detection`` decides when a write has ended, ``writes`` keeps the open writes and the durable
checkpoint, ``timing`` the times and the progress of training.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.activity import ActivityTransitions
from kopt.models.checkpoint.classified_line import ClassifiedLine
from kopt.models.checkpoint.classifier.tokens import template, without_paths
from kopt.models.checkpoint.current_state import STATE_OF, CurrentState
from kopt.models.checkpoint.end_detection import EndDetector
from kopt.models.checkpoint.log_writers import LogWriters
from kopt.models.checkpoint.reading import ABOUT_WRITES, ACTIVITY, read, speaks_of_step, write_share
from kopt.models.checkpoint.serialization import added_to, fill, plain, templates_from, templates_to, write_from
from kopt.models.checkpoint.templates import LineTemplate, LineTemplates
from kopt.models.checkpoint.timing import JobClock, TrainingProgress
from kopt.models.checkpoint.write_statistics import WriteStatistics
from kopt.models.checkpoint.write_transitions import WriteTransitions
from kopt.models.checkpoint.writes import DurableCheckpoint, OpenWrite, Writes

_NAMES_FILES = 0.2
"""From which share of a write on a line's files do not tell it from lines of the same words."""


class StateMachine:
    """One job's log so far. ``advance`` takes the next line and returns its label; ``state`` is the job's then."""

    def __init__(self) -> None:
        self._last: tuple[LineTemplate, LineLabel] | None = None
        self._clock, self._progress, self._writers = JobClock(), TrainingProgress(), LogWriters()
        self._writes, self._templates = Writes(), LineTemplates()
        self._ends = EndDetector(self._writes, self._templates, self._clock, self._progress)
        self._current = CurrentState()
        shared = self._clock, self._progress
        self._transitions = WriteTransitions(self._current, self._writes, self._ends, *shared)
        self._activity = ActivityTransitions(self._current, self._writes, self._ends, self._transitions, *shared)

    @property
    def state(self) -> JobState:
        return self._current.state

    @property
    def confidence(self) -> float:
        """How certain the label of the last line is."""
        return self._current.confidence

    @property
    def evidence(self) -> tuple[int, str]:
        """Number and text of the line that the state rests on; 0 and "" if there is none."""
        return self._current.line, self._current.line_text

    @property
    def durable(self) -> DurableCheckpoint | None:
        return self._writes.durable

    @property
    def open_writes(self) -> Mapping[str, OpenWrite]:
        """Checkpoints that are being written, by writer, the oldest first."""
        return MappingProxyType(self._writes.open)

    @property
    def writing(self) -> bool:
        return bool(self._writes.open)

    @property
    def statistics(self) -> WriteStatistics:
        return self._writes.statistics

    @property
    def step(self) -> int | None:
        """The last step that the log named."""
        return self._progress.step

    @property
    def routine(self) -> bool:
        """Whether the last line is one that this job prints in the middle of training, again and again."""
        if self._last is not None:
            template, label = self._last
            self._templates.routine = template.is_routine(step=label is LineLabel.TRAIN_STEP)
        return self._templates.routine

    @property
    def active_since_end(self) -> bool:
        """Whether a line has shown since the end of the last save that the job does something else."""
        return self._progress.active_since_end

    @property
    def step_lines(self) -> int:
        """Lines about steps so far."""
        return self._progress.step_lines

    @property
    def began_at_s(self) -> float | None:
        return self._clock.began_at_s

    @property
    def first_step_at_s(self) -> float | None:
        return self._clock.first_step_at_s

    @property
    def last_at_s(self) -> float | None:
        return self._clock.last_at_s

    @property
    def processes(self) -> int:
        """How many processes write the log, as far as it shows."""
        return self._writers.processes

    def admit_writer(self, name: str) -> str:
        """The writer's name, or "" for a new writer beyond the limit of writers."""
        return self._writers.admit(name)

    def advance(self, line: ClassifiedLine) -> LineLabel:
        self._clock.observe(line.at_s)
        line = self._with_writer(line)
        line_template = self._observe_template(line)
        write, statistics = self._writes.open.get(line.writer), self.statistics
        reading = read(line, line_template, write, statistics, trained=self._progress.step_lines > 0)
        label = reading.label
        if not reading.premature_end:
            label = self._ends.learned_label(line, label, line_template.number)
        if line_template.begins_writes and label not in ABOUT_WRITES and label not in (LineLabel.ERROR, LineLabel.OOM):
            # The same words began earlier writes of this job, whatever they mean after other lines.
            label = LineLabel.CKPT_BEGIN
        self._current.confidence = reading.confidence
        statistics.early_ends += reading.premature_end
        confirmed = self._ends.confirms_end(line, label)
        if confirmed is not None:
            self._transitions.end_as_reported(confirmed)
        self._ends.drop_idle(line, label)
        if self._ends.learns_late_end(line, line_template):
            label = LineLabel.CKPT_END
            self._current.enter(JobState.CKPT_DONE)
        else:
            label = self._apply(line, label, line_template)
        self._last = line_template, label
        if confirmed and not self.writing and self._current.state not in (JobState.CKPT_WRITING, JobState.CKPT_FAILED):
            self._current.enter(JobState.CKPT_DONE)
        return label

    def settle(self, now_s: float) -> None:
        """Accounts for time without a line: a write whose end nothing showed may have ended."""
        for writer, write in list(self._writes.open.items()):
            if self._ends.ended_by_silence(write, now_s):
                self._transitions.end_as_reported(write)
            elif self._ends.expired(write, now_s):
                self._writes.expire(writer)
                self._current.state = JobState.CKPT_WRITING if self.writing else self._current.before

    def record_durable(self, name: str, step: int | None, began_s: float, ended_s: float) -> bool:
        """A complete checkpoint in the folder, written from ``began_s`` to ``ended_s``; returns whether it is new."""
        if not self._writes.record_files(name, step, began_s, ended_s):
            return False
        if not self.writing and self._current.state is JobState.CKPT_WRITING:
            self._current.state = self._current.before
        return True

    def was_at(self, step: int, began_s: float, ended_s: float) -> bool:
        """Whether the log shows that training was at this step at some moment between these times.

        Of a bar that counts the batches of an epoch, files tell which step it is at: from then on it is known.
        """
        if self.statistics.was_at(step, began_s, ended_s):
            return True
        first_epoch = self.statistics.first_epoch(step, began_s, ended_s)
        if first_epoch is None:
            return False
        self._progress.first_epoch = first_epoch
        return True

    def claim_durable(self, step: int | None, at_s: float) -> bool:
        """A checkpoint that the job's pods report by annotation; returns whether it is newer than the last one."""
        return self._writes.record_claim(step, at_s)

    def clamp_clock(self, now_s: float) -> None:
        """Moves times after ``now_s`` back to it: times in the lines may be those of another zone."""
        self._clock.clamp(now_s)
        self._writes.clamp(now_s)

    def to_dict(self, redact: Callable[[str], str] = str) -> dict[str, Any]:
        """All that is needed to go on elsewhere, as JSON; ``redact`` is applied to lines that are evidence."""
        self._templates.routine = self.routine
        writes = [plain(write) for write in self._writes.open.values()]
        durable = plain(self.durable) if self.durable else None
        for item in writes if durable is None else [durable, *writes]:
            item["text"] = redact(item["text"])
        return {
            **plain(self._clock),
            **plain(self._progress),
            **plain(self._writers),
            "state": self._current.state,
            "_before": self._current.before,
            "line": self._current.line,
            "line_text": redact(self._current.line_text),
            "confidence": self._current.confidence,
            "durable": durable,
            "open": dict(zip(self._writes.open, writes, strict=True)),
            "habits": plain(self.statistics),
            "refrains": templates_to(self._templates),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "StateMachine":
        """Raises KeyError, TypeError, AttributeError or ValueError for what ``to_dict`` did not write."""
        machine = cls()
        parts = (machine._clock, machine._progress, machine._writers)
        added = added_to(machine._clock) | added_to(machine._progress) | added_to(machine._writers)
        if set(document) | added != set(machine.to_dict()):
            raise ValueError("a state machine of another version")
        for part in parts:
            fill(part, {name: document[name] for name in plain(part) if name in document})
        current = machine._current
        current.state, current.before = JobState(document["state"]), JobState(document["_before"])
        current.line, current.line_text = document["line"], document["line_text"]
        current.confidence = document["confidence"]
        machine._writes.durable = DurableCheckpoint(**document["durable"]) if document["durable"] else None
        machine._writes.open = {writer: write_from(item) for writer, item in document["open"].items()}
        fill(machine.statistics, document["habits"])
        templates_from(machine._templates, document["refrains"])
        return machine

    def _with_writer(self, line: ClassifiedLine) -> ClassifiedLine:
        """The line with its writer's name; the writes of a job that turns out to have several keep theirs."""
        single = not self._writers.several
        writer = self._writers.observe(line.writer)
        if single and self._writers.several:
            self._writes.rename_writer("", self._writers.first)
        return line if writer == line.writer else replace(line, writer=writer)

    def _observe_template(self, line: ClassifiedLine) -> LineTemplate:
        about_write = write_share(line) >= 0.5
        key, at_s = line.template or template(line.text), line.at_s if line.live else None
        if write_share(line) >= _NAMES_FILES:
            key = without_paths(key)
        step = speaks_of_step(line)
        result = self._templates.observe(key, line.text, line.writer, at_s, write=about_write, step=step)
        if about_write:
            result.counts = [*result.counts[-2:], self._progress.step_lines]
            self.statistics.record_line(self._progress.step_lines, result.number)
        return result

    def _apply(self, line: ClassifiedLine, label: LineLabel, line_template: LineTemplate) -> LineLabel:
        if label is LineLabel.CKPT_END:
            self._transitions.report_end(line, line_template)
        elif label in (LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS):
            label = self._transitions.continue_write(line, label, line_template)
        elif label in ACTIVITY:
            self._activity.observe(line, label)
        elif label in (LineLabel.ERROR, LineLabel.OOM):
            self._transitions.fail(line, label)
        elif label in STATE_OF:
            self._current.show(STATE_OF[label], line, writing=self.writing)
        elif self._current.state in (JobState.CKPT_DONE, JobState.CKPT_FAILED):
            self._current.show(self._current.before, line, writing=self.writing, keeps_evidence=True)
        return label
