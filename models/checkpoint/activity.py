"""What lines about training and evaluation change: where training is, and which writes are over by then."""

from dataclasses import dataclass

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.classified_line import ClassifiedLine
from kopt.models.checkpoint.current_state import STATE_OF, CurrentState
from kopt.models.checkpoint.end_detection import EndDetector
from kopt.models.checkpoint.line_facts import epoch_bar_of, epoch_of, step_of_progress
from kopt.models.checkpoint.timing import JobClock, TrainingProgress
from kopt.models.checkpoint.write_statistics import steps_of_bar
from kopt.models.checkpoint.write_transitions import WriteTransitions
from kopt.models.checkpoint.writes import OpenWrite, Writes

_STEP_TEXT = 300


@dataclass(slots=True)
class ActivityTransitions:
    """Changes ``progress``, ``writes`` and ``current`` by lines about training, evaluation and the job's end."""

    current: CurrentState
    writes: Writes
    ends: EndDetector
    transitions: WriteTransitions
    clock: JobClock
    progress: TrainingProgress

    def observe(self, line: ClassifiedLine, label: LineLabel) -> None:
        """A line about a step, an evaluation or the end of training."""
        step = self._step_of(line) if label is LineLabel.TRAIN_STEP else None
        others_ended = label is LineLabel.TRAIN_STEP and self._end_silent_writers(line, label, step)
        write = self.writes.open.get(line.writer)
        repeated = write is not None and self.ends.repeats(line, label, step, write)
        if step is not None:
            self.progress.step, self.progress.step_text = step, line.text[:_STEP_TEXT]
            self.progress.epoch = epoch_of(line.text) or self.progress.epoch
        if write is not None and not repeated and self._end_by_activity(line, label, write):
            return
        self._record_step(line, label, after_write=write is not None or others_ended)
        self.progress.active_since_end = self.progress.active_since_end or not self.writes.open
        if others_ended and not self.writes.open:
            self.current.before = STATE_OF[label]
            return
        self.current.show(STATE_OF[label], line, writing=bool(self.writes.open))

    def _step_of(self, line: ClassifiedLine) -> int | None:
        bar = epoch_bar_of(line.text)
        if bar is None:
            return step_of_progress(line.text)
        if line.live and line.at_s is not None:
            self.writes.statistics.record_bar(bar, line.at_s)
        first_epoch = self.progress.first_epoch
        return step_of_progress(line.text) if first_epoch is None else steps_of_bar(bar, first_epoch)

    def _end_by_activity(self, line: ClassifiedLine, label: LineLabel, write: OpenWrite) -> bool:
        """Ends the writer's open write if activity shows that it is over; returns whether the line is dealt with."""
        write.activity += 1
        if write.failed:
            del self.writes.open[line.writer]
            self.current.before = STATE_OF[label]
            self.current.state = JobState.CKPT_WRITING if self.writes.open else JobState.CKPT_FAILED
            return True
        doubtful = self.ends.doubtful(write)
        if not ((doubtful and not write.begun) or self.ends.ended_by_activity(line, write)):
            return False
        if doubtful:
            del self.writes.open[line.writer]
            self._record_step(line, label, after_write=True)
            self.current.show(STATE_OF[label], line, writing=bool(self.writes.open))
            return True
        self.current.before = STATE_OF[label]
        self.transitions.close(write, line.reference, reported=False)
        self.progress.active_since_end = True
        self._record_step(line, label, after_write=True)
        return True

    def _end_silent_writers(self, line: ClassifiedLine, label: LineLabel, step: int | None) -> bool:
        """A step ends the writes of processes that never log one: no process trains while another saves for it.

        Returns whether any of them was taken to be a checkpoint that is durable now.
        """
        before = self.writes.durable
        durable_line = before.line if before else None
        for writer, write in list(self.writes.open.items()):
            steps = writer == line.writer or writer in self.progress.steppers
            if steps or self.ends.repeats(line, label, step, write):
                continue
            write.activity += 1
            asynchronous = write.asynchronous or self.writes.statistics.asynchronous
            if write.ending is not None and not asynchronous:
                self.transitions.end_as_reported(write)
                continue
            # If another process has reported an end since this write began, it was that of the whole checkpoint.
            over = not asynchronous and durable_line is not None and durable_line > write.line
            doubtful = self.ends.doubtful(write)
            if write.failed or over or (doubtful and not write.begun):
                del self.writes.open[writer]
            elif self.ends.ended_by_activity(line, write):
                if doubtful:
                    del self.writes.open[writer]
                else:
                    self.transitions.close(write, line.reference, reported=False)
        return self.writes.durable is not before

    def _record_step(self, line: ClassifiedLine, label: LineLabel, *, after_write: bool) -> None:
        if label is not LineLabel.TRAIN_STEP:
            self.clock.stepped_at_s = None
            return
        progress = self.progress
        progress.stepped_since_end = progress.stepped_since_end or not after_write
        progress.steppers[line.writer] = progress.steppers.get(line.writer, 0) + 1
        progress.step_lines += 1
        if line.at_s is None:
            return
        if progress.step is not None:
            self.writes.statistics.record_step(progress.step, line.at_s)
        gap_s = self.clock.observe_step(line.at_s, after_write=after_write)
        # A bar ends no line: a runtime sends many of its states at once, and then none for as long as they took.
        if gap_s is not None and (gap_s > 0 or progress.first_epoch is None):
            self.writes.statistics.step_gaps_s.append(gap_s)
