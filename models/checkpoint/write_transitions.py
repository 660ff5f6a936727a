"""What lines about writes change: a write begins, goes on, is reported as ended, fails, or another one follows it."""

from dataclasses import dataclass

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import ClassifiedLine, LineReference
from kopt.models.checkpoint.current_state import STATE_OF, CurrentState
from kopt.models.checkpoint.end_detection import EndDetector
from kopt.models.checkpoint.line_facts import continues_aside, step_of_checkpoint
from kopt.models.checkpoint.reading import CERTAIN, write_share
from kopt.models.checkpoint.templates import LineTemplate
from kopt.models.checkpoint.timing import JobClock, TrainingProgress
from kopt.models.checkpoint.write_statistics import SaveProgress
from kopt.models.checkpoint.writes import OpenWrite, Writes


@dataclass(slots=True)
class WriteTransitions:
    """Changes ``writes`` and ``current`` by lines about writes."""

    current: CurrentState
    writes: Writes
    ends: EndDetector
    clock: JobClock
    progress: TrainingProgress

    def close(self, write: OpenWrite, end: LineReference, *, reported: bool) -> None:
        """The write has ended and is durable."""
        self.writes.close(write, end, reported=reported)
        self.progress.stepped_since_end = self.progress.active_since_end = False
        self.current.line, self.current.line_text, _ = end
        self.current.state = JobState.CKPT_WRITING if self.writes.open else JobState.CKPT_DONE

    def end_as_reported(self, write: OpenWrite) -> None:
        """The end that was reported is that of the whole write."""
        assert write.ending is not None
        self.writes.statistics.reported_ends += 1
        self.writes.statistics.asynchronous = self.writes.statistics.asynchronous or write.activity > 0
        self.close(write, write.ending, reported=True)

    def continue_write(self, line: ClassifiedLine, label: LineLabel, line_template: LineTemplate) -> LineLabel:
        """A line with which a write begins or goes on; returns which of both."""
        # A line that only precedes writes, by repetition, may name the step of something else.
        step = step_of_checkpoint(line.text) if write_share(line) >= 0.5 else None
        asynchronous, statistics = continues_aside(line.text), self.writes.statistics
        statistics.asynchronous = statistics.asynchronous or asynchronous
        write = self.writes.open.get(line.writer)
        if label is LineLabel.CKPT_PROGRESS and write is None and self.current.state is JobState.CKPT_DONE:
            # More of the same after its end: the ends of this job are those of parts.
            statistics.early_ends += 1
            statistics.end_template = -1
        if write is not None and _begins_another(write, label, step, line_template):
            self._replace_write(line, write)
            write = None
        if write is None:
            write = self.writes.open[line.writer] = self._write_at(line, certainty=0.0)
            line_template.begun += 1
            write.template, write.step_text = line_template.number, self.progress.step_text
        elif label is LineLabel.CKPT_BEGIN:
            label = LineLabel.CKPT_PROGRESS
        if write.activity and line.at_s is not None and write.at_s is not None:
            statistics.mentioned_after_s.append(line.at_s - write.at_s)
        write.last_template = line_template.number if write.activity else -1
        write.begun = write.begun or label is LineLabel.CKPT_BEGIN
        write.certainty = max(write.certainty, 1.0 if line_template.regular else write_share(line))
        write.asynchronous = write.asynchronous or asynchronous
        write.name_step(step)
        self.current.enter(JobState.CKPT_WRITING)
        self.current.line, self.current.line_text = write.line, write.text
        return label

    def _write_at(self, line: ClassifiedLine, *, certainty: float = 1.0) -> OpenWrite:
        """A write whose first line this is, at the step that training is at."""
        step = self.progress.step
        return OpenWrite(*line.reference, step, step, False, certainty, self.progress.step_lines)

    def _replace_write(self, line: ClassifiedLine, write: OpenWrite) -> None:
        """Another write begins: the last one has ended, or has failed silently if this job reports its ends."""
        self.writes.statistics.late_end = -1
        self.writes.statistics.record_last_template(write.last_template)
        if write.failed or (write.activity and self.writes.statistics.reports_ends):
            del self.writes.open[line.writer]
        else:
            self.close(write, line.reference, reported=False)

    def report_end(self, line: ClassifiedLine, line_template: LineTemplate) -> None:
        """A line by whose words, or by what it was before, a write has ended."""
        open_writes, statistics = self.writes.open, self.writes.statistics
        statistics.end_template = line_template.number
        more_expected = statistics.save_progress is SaveProgress.MORE
        write = open_writes.get(line.writer) or (next(iter(open_writes.values())) if len(open_writes) == 1 else None)
        if write is not None and write.template == line_template.number and write.activity:
            # The same message was taken for a beginning. It is an end, and the one before was long ago.
            self.close(write, write.reference, reported=False)
            self.progress.stepped_since_end, write = True, None
        if continues_aside(line.text) and (write is None or not write.activity):
            # It sounds like an end, and says that a write that has just begun goes on beside the training.
            self.continue_write(line, LineLabel.CKPT_PROGRESS, line_template)
            return
        if write is not None:
            write.name_step(step_of_checkpoint(line.text))
            write.ending, write.pauses_after = line.reference, line_template.pauses_after
            write.more_expected = more_expected
            if self.ends.accepts_at_once(write):
                self.end_as_reported(write)
            return
        if not self.progress.stepped_since_end:
            # Another message about the same checkpoint: how long it took, or from another process.
            self.current.state = JobState.CKPT_WRITING if self.writes.open else JobState.CKPT_DONE
            self.progress.active_since_end = False
            if line_template.pauses_after or more_expected:
                self._await_more(line, more_expected=more_expected)
            return
        statistics.unannounced_ends += 1
        if line.live and self.clock.silence_s is not None:
            statistics.silences_s.append(self.clock.silence_s)
        step = step_of_checkpoint(line.text)
        self.ends.learn_from_late_end(step)
        if line_template.pauses_after or more_expected:
            self._await_more(line, more_expected=more_expected)
            return
        write = self._write_at(line)
        write.step = write.step if step is None else step
        self.current.remember()
        self.close(write, line.reference, reported=True)

    def _await_more(self, line: ClassifiedLine, *, more_expected: bool) -> None:
        """An end after which this job is usually silent, as if more were written: the next line confirms it."""
        write = self._write_at(line)
        write.name_step(step_of_checkpoint(line.text))
        write.ending, write.pauses_after, write.more_expected = line.reference, True, more_expected
        self.writes.open[line.writer] = write
        self.current.enter(JobState.CKPT_WRITING)

    def fail(self, line: ClassifiedLine, label: LineLabel) -> None:
        """An error: the open writes may have failed with it."""
        for write in self.writes.open.values():
            write.failed = write.failed or self.current.confidence >= CERTAIN
        if self.writes.open:
            self.current.state = JobState.CKPT_WRITING
            self.current.line, self.current.line_text = line.number, line.text
            return
        self.current.show(STATE_OF[label], line, writing=False)


def _begins_another(write: OpenWrite, label: LineLabel, step: int | None, line_template: LineTemplate) -> bool:
    """Whether a line about a write belongs to the next one: it names another step, or begins again after training."""
    if write.template == line_template.number and write.activity > 0:
        return True
    if step is None or write.step is None or not (write.step_named or write.activity > 0):
        return False
    if label is LineLabel.CKPT_BEGIN:
        return step != write.step
    return step > write.step and write.activity > 0
