"""Where a job is, line by line: labelled lines → states, with what this job's own writes have shown.

The state machine decides what each line changes; ``end_detection`` decides when a write has ended, ``writes`` keeps
the open writes and the durable checkpoint, ``timing`` the times and the progress of training.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import ClassifiedLine, LineReference
from kopt.models.checkpoint.classifier.tokens import template
from kopt.models.checkpoint.end_detection import EndDetector
from kopt.models.checkpoint.line_facts import (
    continues_aside,
    epoch_bar_of,
    epoch_of,
    step_of_checkpoint,
    step_of_progress,
)
from kopt.models.checkpoint.log_writers import LogWriters
from kopt.models.checkpoint.reading import ACTIVITY, CERTAIN, read, speaks_of_step, write_share
from kopt.models.checkpoint.serialization import added_to, fill, plain, templates_from, templates_to, write_from
from kopt.models.checkpoint.templates import LineTemplate, LineTemplates
from kopt.models.checkpoint.timing import JobClock, TrainingProgress
from kopt.models.checkpoint.write_statistics import WriteStatistics, steps_of_bar
from kopt.models.checkpoint.writes import DurableCheckpoint, OpenWrite, Writes

_STATE_OF = {
    LineLabel.STARTUP: JobState.STARTING,
    LineLabel.DATA: JobState.DATA,
    LineLabel.CKPT_LOAD: JobState.LOADING,
    LineLabel.TRAIN_STEP: JobState.TRAIN,
    LineLabel.EVAL: JobState.EVAL,
    LineLabel.OOM: JobState.OOM,
    LineLabel.ERROR: JobState.CRASHED,
    LineLabel.END: JobState.FINISHED,
}
_CHECKPOINT_STATES = (JobState.CKPT_WRITING, JobState.CKPT_DONE, JobState.CKPT_FAILED)
_STEP_TEXT = 300


class StateMachine:
    """One job's log so far. ``advance`` takes the next line and returns its label; ``state`` is the job's then."""

    def __init__(self) -> None:
        self._state = JobState.UNKNOWN
        # What the job goes back to when the write is over.
        self._state_before = JobState.UNKNOWN
        self._line, self._line_text, self._confidence = 0, "", 0.0
        self._last: tuple[LineTemplate, LineLabel] | None = None
        self._clock, self._progress, self._writers = JobClock(), TrainingProgress(), LogWriters()
        self._writes, self._templates = Writes(), LineTemplates()
        self._ends = EndDetector(self._writes, self._templates, self._clock, self._progress)

    @property
    def state(self) -> JobState:
        return self._state

    @property
    def confidence(self) -> float:
        """How certain the label of the last line is."""
        return self._confidence

    @property
    def evidence(self) -> tuple[int, str]:
        """Number and text of the line that the state rests on; 0 and "" if there is none."""
        return self._line, self._line_text

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
        label = self._ends.learned_label(line.writer, reading.label, line_template.number)
        self._confidence = reading.confidence
        statistics.early_ends += reading.premature_end
        confirmed = self._ends.confirms_end(line, label)
        if confirmed is not None:
            self._end_as_reported(confirmed)
        self._ends.drop_idle(line, label)
        if self._ends.learns_late_end(line, line_template):
            label = LineLabel.CKPT_END
            self._remember_state()
            self._state = JobState.CKPT_DONE
        else:
            label = self._apply(line, label, line_template)
        self._last = line_template, label
        if confirmed and not self.writing and self._state not in (JobState.CKPT_WRITING, JobState.CKPT_FAILED):
            self._remember_state()
            self._state = JobState.CKPT_DONE
        return label

    def settle(self, now_s: float) -> None:
        """Accounts for time without a line: a write whose end nothing showed may have ended."""
        for writer, write in list(self._writes.open.items()):
            if self._ends.ended_by_silence(write, now_s):
                self._end_as_reported(write)
            elif self._ends.expired(write, now_s):
                self._writes.expire(writer)
                self._state = JobState.CKPT_WRITING if self.writing else self._state_before

    def record_durable(self, name: str, step: int | None, began_s: float, ended_s: float) -> bool:
        """A complete checkpoint in the folder, written from ``began_s`` to ``ended_s``; returns whether it is new."""
        if not self._writes.record_files(name, step, began_s, ended_s):
            return False
        if not self.writing and self._state is JobState.CKPT_WRITING:
            self._state = self._state_before
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
            "state": self._state,
            "_before": self._state_before,
            "line": self._line,
            "line_text": redact(self._line_text),
            "confidence": self._confidence,
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
        machine._state, machine._state_before = JobState(document["state"]), JobState(document["_before"])
        machine._line, machine._line_text = document["line"], document["line_text"]
        machine._confidence = document["confidence"]
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
        step = speaks_of_step(line)
        result = self._templates.observe(key, line.text, line.writer, at_s, write=about_write, step=step)
        if about_write:
            result.counts = [*result.counts[-2:], self._progress.step_lines]
            self.statistics.record_line(self._progress.step_lines, result.number)
        return result

    def _apply(self, line: ClassifiedLine, label: LineLabel, line_template: LineTemplate) -> LineLabel:
        if label is LineLabel.CKPT_END:
            self._reported_end(line, line_template)
        elif label in (LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS):
            label = self._continue_write(line, label, line_template)
        elif label in ACTIVITY:
            self._activity(line, label)
        elif label in (LineLabel.ERROR, LineLabel.OOM):
            self._failure(line, label)
        elif label in _STATE_OF:
            self._show(_STATE_OF[label], line)
        elif self._state in (JobState.CKPT_DONE, JobState.CKPT_FAILED):
            self._show(self._state_before, line, keeps_evidence=True)
        return label

    def _show(self, state: JobState, line: ClassifiedLine, *, keeps_evidence: bool = False) -> None:
        """Enters the state, unless a write is open."""
        if self.writing:
            self._state = JobState.CKPT_WRITING
            return
        self._state = state
        if not keeps_evidence:
            self._line, self._line_text = line.number, line.text

    def _remember_state(self) -> None:
        if self._state not in _CHECKPOINT_STATES:
            self._state_before = self._state

    def _close(self, write: OpenWrite, end: LineReference, *, reported: bool) -> None:
        """The write has ended and is durable."""
        self._writes.close(write, end, reported=reported)
        self._progress.stepped_since_end = False
        self._line, self._line_text, _ = end
        self._state = JobState.CKPT_WRITING if self.writing else JobState.CKPT_DONE

    def _end_as_reported(self, write: OpenWrite) -> None:
        """The end that was reported is that of the whole write."""
        assert write.ending is not None
        self.statistics.reported_ends += 1
        self.statistics.asynchronous = self.statistics.asynchronous or write.activity > 0
        self._close(write, write.ending, reported=True)

    def _continue_write(self, line: ClassifiedLine, label: LineLabel, line_template: LineTemplate) -> LineLabel:
        # A line that only precedes writes, by repetition, may name the step of something else.
        step = step_of_checkpoint(line.text) if write_share(line) >= 0.5 else None
        asynchronous, statistics = continues_aside(line.text), self.statistics
        statistics.asynchronous = statistics.asynchronous or asynchronous
        write = self._writes.open.get(line.writer)
        if label is LineLabel.CKPT_PROGRESS and write is None and self._state is JobState.CKPT_DONE:
            # More of the same after its end: the ends of this job are those of parts.
            statistics.early_ends += 1
        if write is not None and _begins_another(write, label, step, line_template):
            self._replace_write(line, write)
            write = None
        if write is None:
            write = self._writes.open[line.writer] = self._write_at(line, certainty=0.0)
            write.template, write.step_text = line_template.number, self._progress.step_text
        elif label is LineLabel.CKPT_BEGIN:
            label = LineLabel.CKPT_PROGRESS
        if write.activity and line.at_s is not None and write.at_s is not None:
            statistics.mentioned_after_s.append(line.at_s - write.at_s)
        write.last_template = line_template.number if write.activity else -1
        write.begun = write.begun or label is LineLabel.CKPT_BEGIN
        write.certainty = max(write.certainty, 1.0 if line_template.regular else write_share(line))
        write.asynchronous = write.asynchronous or asynchronous
        write.name_step(step)
        self._remember_state()
        self._state = JobState.CKPT_WRITING
        self._line, self._line_text = write.line, write.text
        return label

    def _write_at(self, line: ClassifiedLine, *, certainty: float = 1.0) -> OpenWrite:
        """A write whose first line this is, at the step that training is at."""
        step = self.step
        return OpenWrite(*line.reference, step, step, False, certainty, self._progress.step_lines)

    def _replace_write(self, line: ClassifiedLine, write: OpenWrite) -> None:
        """Another write begins: the last one has ended, or has failed silently if this job reports its ends."""
        self.statistics.late_end = -1
        self.statistics.record_last_template(write.last_template)
        if write.failed or (write.activity and self.statistics.reports_ends):
            del self._writes.open[line.writer]
        else:
            self._close(write, line.reference, reported=False)

    def _reported_end(self, line: ClassifiedLine, line_template: LineTemplate) -> None:
        open_writes, statistics = self._writes.open, self.statistics
        write = open_writes.get(line.writer) or (next(iter(open_writes.values())) if len(open_writes) == 1 else None)
        if write is not None and write.template == line_template.number and write.activity:
            # The same message was taken for a beginning. It is an end, and the one before was long ago.
            self._close(write, write.reference, reported=False)
            self._progress.stepped_since_end, write = True, None
        if write is not None:
            write.name_step(step_of_checkpoint(line.text))
            write.ending, write.pauses_after = line.reference, line_template.pauses_after
            if self._ends.accepts_at_once(write):
                self._end_as_reported(write)
            return
        if not self._progress.stepped_since_end:
            # Another message about the same checkpoint: how long it took, or from another process.
            self._state = JobState.CKPT_WRITING if self.writing else JobState.CKPT_DONE
            if line_template.pauses_after:
                self._await_more(line)
            return
        statistics.unannounced_ends += 1
        if line.live and self._clock.silence_s is not None:
            statistics.silences_s.append(self._clock.silence_s)
        step = step_of_checkpoint(line.text)
        self._ends.learn_from_late_end(step)
        if line_template.pauses_after:
            self._await_more(line)
            return
        write = self._write_at(line)
        write.step = write.step if step is None else step
        self._remember_state()
        self._close(write, line.reference, reported=True)

    def _await_more(self, line: ClassifiedLine) -> None:
        """An end after which this job is usually silent, as if more were written: the next line confirms it."""
        write = self._write_at(line)
        write.name_step(step_of_checkpoint(line.text))
        write.ending, write.pauses_after = line.reference, True
        self._writes.open[line.writer] = write
        self._remember_state()
        self._state = JobState.CKPT_WRITING

    def _activity(self, line: ClassifiedLine, label: LineLabel) -> None:
        step = self._step_of(line) if label is LineLabel.TRAIN_STEP else None
        others_ended = label is LineLabel.TRAIN_STEP and self._end_silent_writers(line, label, step)
        write = self._writes.open.get(line.writer)
        repeated = write is not None and self._ends.repeats(line, label, step, write)
        if step is not None:
            self._progress.step, self._progress.step_text = step, line.text[:_STEP_TEXT]
            self._progress.epoch = epoch_of(line.text) or self._progress.epoch
        if write is not None and not repeated and self._end_by_activity(line, label, write):
            return
        self._record_step(line, label, after_write=write is not None or others_ended)
        if others_ended and not self.writing:
            self._state_before = _STATE_OF[label]
            return
        self._show(_STATE_OF[label], line)

    def _step_of(self, line: ClassifiedLine) -> int | None:
        bar = epoch_bar_of(line.text)
        if bar is None:
            return step_of_progress(line.text)
        if line.live and line.at_s is not None:
            self.statistics.record_bar(bar, line.at_s)
        first_epoch = self._progress.first_epoch
        return step_of_progress(line.text) if first_epoch is None else steps_of_bar(bar, first_epoch)

    def _end_by_activity(self, line: ClassifiedLine, label: LineLabel, write: OpenWrite) -> bool:
        """Ends the writer's open write if activity shows that it is over; returns whether the line is dealt with."""
        write.activity += 1
        if write.failed:
            del self._writes.open[line.writer]
            self._state_before = _STATE_OF[label]
            self._state = JobState.CKPT_WRITING if self.writing else JobState.CKPT_FAILED
            return True
        doubtful = self._ends.doubtful(write)
        if not ((doubtful and not write.begun) or self._ends.ended_by_activity(line, write)):
            return False
        if doubtful:
            del self._writes.open[line.writer]
            self._record_step(line, label, after_write=True)
            self._show(_STATE_OF[label], line)
            return True
        self._state_before = _STATE_OF[label]
        self._close(write, line.reference, reported=False)
        self._record_step(line, label, after_write=True)
        return True

    def _end_silent_writers(self, line: ClassifiedLine, label: LineLabel, step: int | None) -> bool:
        """A step ends the writes of processes that never log one: no process trains while another saves for it.

        Returns whether any of them was taken to be a checkpoint that is durable now.
        """
        before = self.durable
        durable_line = before.line if before else None
        for writer, write in list(self._writes.open.items()):
            steps = writer == line.writer or writer in self._progress.steppers
            if steps or self._ends.repeats(line, label, step, write):
                continue
            write.activity += 1
            asynchronous = write.asynchronous or self.statistics.asynchronous
            if write.ending is not None and not asynchronous:
                self._end_as_reported(write)
                continue
            # If another process has reported an end since this write began, it was that of the whole checkpoint.
            over = not asynchronous and durable_line is not None and durable_line > write.line
            doubtful = self._ends.doubtful(write)
            if write.failed or over or (doubtful and not write.begun):
                del self._writes.open[writer]
            elif self._ends.ended_by_activity(line, write):
                if doubtful:
                    del self._writes.open[writer]
                else:
                    self._close(write, line.reference, reported=False)
        return self.durable is not before

    def _record_step(self, line: ClassifiedLine, label: LineLabel, *, after_write: bool) -> None:
        if label is not LineLabel.TRAIN_STEP:
            self._clock.stepped_at_s = None
            return
        progress = self._progress
        progress.stepped_since_end = progress.stepped_since_end or not after_write
        progress.steppers[line.writer] = progress.steppers.get(line.writer, 0) + 1
        progress.step_lines += 1
        if line.at_s is None:
            return
        if progress.step is not None:
            self.statistics.record_step(progress.step, line.at_s)
        gap_s = self._clock.observe_step(line.at_s, after_write=after_write)
        # A bar ends no line: a runtime sends many of its states at once, and then none for as long as they took.
        if gap_s is not None and (gap_s > 0 or progress.first_epoch is None):
            self.statistics.step_gaps_s.append(gap_s)

    def _failure(self, line: ClassifiedLine, label: LineLabel) -> None:
        for write in self._writes.open.values():
            write.failed = write.failed or self._confidence >= CERTAIN
        if self.writing:
            self._state = JobState.CKPT_WRITING
            self._line, self._line_text = line.number, line.text
            return
        self._show(_STATE_OF[label], line)


def _begins_another(write: OpenWrite, label: LineLabel, step: int | None, line_template: LineTemplate) -> bool:
    """Whether a line about a write belongs to the next one: it names another step, or begins again after training."""
    if write.template == line_template.number and write.activity > 0:
        return True
    if step is None or write.step is None or not (write.step_named or write.activity > 0):
        return False
    if label is LineLabel.CKPT_BEGIN:
        return step != write.step
    return step > write.step and write.activity > 0
