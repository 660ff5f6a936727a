"""When a checkpoint write has ended: by the messages of its end, by activity after it, or by time.

A saver is taken to be synchronous until a word ("async") or an end after further training shows otherwise. If a job
reports the ends of its writes, only such a report ends one; otherwise the next step of the same writer does. With
arrival times the first such end also needs a pause, because a write that stops training makes one.
"""

from dataclasses import dataclass

from kopt.core.workload.checkpoint import LineLabel
from kopt.models.checkpoint.classified_line import LABELS, ClassifiedLine
from kopt.models.checkpoint.line_facts import continues_aside, counts_of, epoch_of, metrics_of
from kopt.models.checkpoint.reading import ABOUT_WRITES, ACTIVITY, CERTAIN, write_share
from kopt.models.checkpoint.templates import LineTemplate, LineTemplates
from kopt.models.checkpoint.timing import JobClock, TrainingProgress
from kopt.models.checkpoint.write_statistics import QUARANTINE_S, SaveProgress, WriteStatistics
from kopt.models.checkpoint.writes import OpenWrite, Writes

TRUSTED = 2
"""Reported ends that turned out to be ends, after which the next one is accepted at once."""
_SETTLED_S = 2.0
"""Silence after a reported end that confirms it."""
_IDLE_LINES = 8
_STEPS_AFTER_FILES = 3
_OVERDUE_LINES = 200
_SPEAKS_OF_WRITES = 0.2
_END, _END_AGAIN = LABELS.index(LineLabel.CKPT_END), 0.25
"""How certain it must be that a message which reported an end before reports one."""
_MAY_END = ABOUT_WRITES | {LineLabel.OTHER}


@dataclass(slots=True)
class EndDetector:
    """Decides about open writes by what earlier writes of the job have shown."""

    writes: Writes
    templates: LineTemplates
    clock: JobClock
    progress: TrainingProgress

    @property
    def _statistics(self) -> WriteStatistics:
        return self.writes.statistics

    def learned_label(self, line: ClassifiedLine, label: LineLabel, template: int) -> LineLabel:
        """The label by what the message was in earlier writes of the job.

        A message that reported the end of one reports that of the next; one that twice was the last about an
        asynchronous write is its end.
        """
        write, statistics = self.writes.open.get(line.writer), self._statistics
        if self._ends_again(line, label, template):
            return LineLabel.CKPT_END
        if write is None or label not in _MAY_END:
            return label
        if statistics.late_end >= 0:
            # Handed over before: what another process or thread does with it ends later, with a line of its own.
            late = write.activity > 0 and statistics.late_end == template
            return LineLabel.CKPT_END if late else LineLabel.CKPT_PROGRESS if label is LineLabel.CKPT_END else label
        if not write.activity or label is not LineLabel.CKPT_PROGRESS:
            return label
        learned = statistics.last_template_count >= TRUSTED and statistics.last_template == template
        return LineLabel.CKPT_END if learned else label

    def _ends_again(self, line: ClassifiedLine, label: LineLabel, template: int) -> bool:
        """Whether the message reported the end of an earlier save, and all that was said of that one has been said."""
        statistics = self._statistics
        if label not in ABOUT_WRITES or template != statistics.end_template or line.shares[_END] < _END_AGAIN:
            return False
        if statistics.asynchronous or statistics.late_end >= 0:
            return False
        return statistics.save_progress is not SaveProgress.MORE

    def learns_late_end(self, line: ClassifiedLine, template: LineTemplate) -> bool:
        """Whether a line about a save aside, after training went on since a save ended, shows that it ended only now.

        It comes no more often than saves do, and soon: what begins the next save comes as late as that one does.
        """
        durable, statistics = self.writes.durable, self._statistics
        if durable is None or durable.line is None or self.writes.open or not statistics.saved_step_lines:
            return False
        if not self.progress.stepped_since_end or template.lines > len(set(statistics.saved_step_lines)):
            return False
        saved = [0, *statistics.saved_step_lines]
        soon = 2 * (self.progress.step_lines - saved[-1]) <= saved[-1] - saved[-2]
        if not soon or write_share(line) < _SPEAKS_OF_WRITES or not continues_aside(line.text):
            return False
        statistics.asynchronous, statistics.late_end = True, template.number
        return True

    def confirms_end(self, line: ClassifiedLine, label: LineLabel) -> OpenWrite | None:
        """The writer's write, if the line shows that the end reported before it was that of the whole checkpoint.

        "Saved …" can be logged for each part. If no more follows about the write, it was the end.
        """
        write = self.writes.open.get(line.writer)
        if write is None or write.ending is None:
            return None
        if label in (LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END, LineLabel.ERROR):
            if label is not LineLabel.ERROR and not write.more_expected:
                self._statistics.early_ends += 1
                self._statistics.end_template = -1
            write.ending = None
            return None
        return None if write.more_expected and label not in ACTIVITY else write

    def drop_idle(self, line: ClassifiedLine, label: LineLabel) -> None:
        """Before training has begun, a write that no further line is about was none; nothing is safe then anyway."""
        write = self.writes.open.get(line.writer)
        if write is None or self.progress.step_lines or self.writes.durable or label in ABOUT_WRITES:
            return
        write.idle_lines += bool(line.text.strip())
        if write.idle_lines > _IDLE_LINES:
            del self.writes.open[line.writer]

    def accepts_at_once(self, write: OpenWrite) -> bool:
        """Whether a reported end of the write needs no confirmation by later lines."""
        statistics = self._statistics
        trusted = statistics.reported_ends >= TRUSTED and not statistics.early_ends
        return trusted and not write.pauses_after and not write.more_expected

    def doubtful(self, write: OpenWrite) -> bool:
        """Whether a write that only other activity ended may have been no checkpoint at all."""
        return write.certainty < CERTAIN

    def ended_by_activity(self, line: ClassifiedLine, write: OpenWrite) -> bool:
        """Whether activity of its writer means that the write has ended; marks a write that must have failed."""
        statistics = self._statistics
        passed = None if line.at_s is None or write.at_s is None else line.at_s - write.at_s
        aside = write.asynchronous or statistics.asynchronous
        complete = not aside and statistics.save_progress is SaveProgress.COMPLETE
        if aside or (statistics.reports_ends and not complete):
            # This job reports its ends. A write whose end is never reported has failed silently.
            longest = statistics.longest_write_s
            write.failed = write.activity > _OVERDUE_LINES or (
                passed is not None and longest is not None and passed > max(QUARANTINE_S, 10 * longest)
            )
            return False
        if line.live and passed is not None and write.activity == 1:
            statistics.pauses += self.templates.is_pause(passed)
        if not write.begun and not complete and write.activity < _STEPS_AFTER_FILES:
            # Only files of it were named: more may come.
            return False
        if not line.live or passed is None or statistics.pauses or self.clock.first_step_at_s is None:
            return True
        return passed > statistics.quarantine_s

    def ended_by_silence(self, write: OpenWrite, now_s: float) -> bool:
        """Whether enough time has passed after a reported end."""
        if write.ending is None or write.pauses_after:
            return False
        return now_s - (write.ending[2] or now_s) > _SETTLED_S

    def expired(self, write: OpenWrite, now_s: float) -> bool:
        """Whether a write whose end nothing showed must have ended by now."""
        statistics = self._statistics
        waits = write.asynchronous or statistics.asynchronous or write.failed or not write.activity or not write.begun
        if waits or statistics.reports_ends or write.at_s is None or self.doubtful(write):
            return False
        return now_s - write.at_s > statistics.quarantine_s

    def repeats(self, line: ClassifiedLine, label: LineLabel, step: int | None, write: OpenWrite) -> bool:
        """Whether a line is a progress bar drawn again, or a last message about the epoch that was saved."""
        epoch = epoch_of(line.text)
        if label is not LineLabel.TRAIN_STEP:
            return label is LineLabel.END and epoch is not None and epoch == self.progress.epoch
        same_epoch = epoch is not None and step == epoch == self.progress.epoch
        if step is None or not (step == write.last_step or same_epoch):
            return False
        # A speed may be called steps, too, and an epoch has many batches: another number may have grown.
        drawn_again = counts_of(line.text) <= counts_of(write.step_text)
        if not drawn_again or self._statistics.save_progress is not SaveProgress.COMPLETE:
            return drawn_again
        # All that an earlier save of this job said has been said: with another loss it is no bar that is drawn again.
        return metrics_of(line.text) <= metrics_of(write.step_text)

    def learn_from_late_end(self, step: int | None) -> None:
        """A reported end after the next step was taken for one shows that training continues during writes."""
        statistics, durable = self._statistics, self.writes.durable
        if not statistics.implied_ends or statistics.reported_ends:
            return
        same = durable is not None and step is not None and step == durable.step
        late = statistics.unannounced_ends
        statistics.asynchronous = statistics.asynchronous or same or (late > 1 and 2 * late > statistics.implied_ends)
