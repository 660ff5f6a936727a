"""Where a job is, line by line: what lines say → states, with what this job's own saves have taught.

A saver is synchronous until something says otherwise: a word ("async"), or an end that came after training had gone on.
Where a job says the end of its writes, nothing but that is believed to be one; where it does not, the next step of the
same writer is. With arrival times the first such end also needs a pause, as a write that stops training makes one.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from kopt.core.checkpoint import JobState, LineLabel
from kopt.models.checkpoint.facts import counts_of, epoch_of, goes_on_aside, step_of_checkpoint, step_of_progress
from kopt.models.checkpoint.reading import ABOUT_WRITES, ACTIVITY, CERTAIN, read, speaks_of_step, write_share
from kopt.models.checkpoint.refrains import Refrain, Refrains
from kopt.models.checkpoint.words import template
from kopt.models.checkpoint.writes import Durable, Habits, OpenWrite, Said

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
_TRUSTED = 2
"""Ends that were told and turned out to be ends, after which the next one is believed at once."""
_RANKS_SEEN = 3
"""Lines with the same number in front that make it a rank's."""
_SETTLED_S = 2.0
"""Silence after a told end that shows that it was one."""
_IDLE_LINES = 8
_STEP_TEXT = 300
_STEPS_AFTER_FILES = 3
QUARANTINE_S = 60.0
"""A write without a seen end and without a pause is believed to have ended after so long, if training went on."""
_OVERDUE_LINES = 200
_LONGER = 1.2
"""Times the longest time after which a write was still spoken of while training went on."""


@dataclass(slots=True)
class Machine:
    """One job's log so far. ``advance`` takes the next line and returns its label; ``state`` is the job's then."""

    state: JobState = JobState.UNKNOWN
    step: int | None = None
    durable: Durable | None = None
    habits: Habits = field(default_factory=Habits)
    refrains: Refrains = field(default_factory=Refrains)
    open: dict[str, OpenWrite] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    steppers: dict[str, int] = field(default_factory=dict)
    lone: str = ""
    several: bool = False
    line: int = 0
    line_text: str = ""
    confidence: float = 0.0
    epoch: int | None = None
    step_text: str = ""
    step_lines: int = 0
    began_at_s: float | None = None
    first_step_at_s: float | None = None
    last_at_s: float | None = None
    _silence_s: float | None = None
    _stepped_at_s: float | None = None
    _stepped_since_end: bool = True
    _before: JobState = JobState.UNKNOWN

    @property
    def writing(self) -> bool:
        return bool(self.open)

    @property
    def processes(self) -> int:
        """How many write the log, as far as it tells."""
        return max(1, sum(self._is_process(name) for name in self.writers)) if self.several else 1

    def _is_process(self, name: str) -> bool:
        """A number in front of a line may be a step's; a rank's comes again."""
        return bool(name) and (not name.isdecimal() or self.writers[name] >= _RANKS_SEEN)

    def advance(self, said: Said) -> LineLabel:
        self._silence_s = None if None in (said.at_s, self.last_at_s) else said.at_s - self.last_at_s  # type: ignore[operator]
        if said.at_s is not None:
            self.began_at_s = said.at_s if self.began_at_s is None else self.began_at_s
            self.last_at_s = said.at_s
        said = self._as_one_writer(said)
        refrain = self._hear(said)
        found = read(said, refrain, self.open.get(said.writer), self.habits, trained=self.step_lines > 0)
        label, self.confidence = self._as_last_word(said, found.label, refrain), found.confidence
        self.habits.early_ends += found.lies
        ended = self._believe_end(said, label)
        self._forget_idle(said, label)
        label = self._take(said, label, refrain)
        if ended and not self.open and self.state not in (JobState.CKPT_WRITING, JobState.CKPT_FAILED):
            self._before = self.state if self.state is not JobState.CKPT_DONE else self._before
            self.state = JobState.CKPT_DONE
        return label

    def _as_last_word(self, said: Said, label: LineLabel, refrain: Refrain) -> LineLabel:
        """What twice was the last that was said of a write, long after training went on, is how this job ends one."""
        known, habits = self.open.get(said.writer), self.habits
        if known is None or not known.activity or label is not LineLabel.CKPT_PROGRESS:
            return label
        taught = habits.last_words >= _TRUSTED and habits.last_word == refrain.number
        return LineLabel.CKPT_END if taught else label

    def _as_one_writer(self, said: Said) -> Said:
        """A job of one process names it on some lines and not on others, and not each number in front is a rank."""
        name = said.writer
        self.writers[name] = self.writers.get(name, 0) + 1
        if not self.several and self._is_process(name):
            self.lone = self.lone or name
            self.several = name != self.lone
            if self.several and "" in self.open:
                self.open[self.lone] = self.open.pop("")
        return said if self.several or not name else replace(said, writer="")

    def _hear(self, said: Said) -> Refrain:
        write = write_share(said)
        kind, at_s = said.template or template(said.text), said.at_s if said.live else None
        step = speaks_of_step(said)
        refrain = self.refrains.hear(kind, said.text, said.writer, at_s, write=write >= 0.5, step=step)
        if write >= 0.5:
            refrain.counts = [*refrain.counts[-2:], self.step_lines]
        return refrain

    def _take(self, said: Said, label: LineLabel, refrain: Refrain) -> LineLabel:
        if label is LineLabel.CKPT_END:
            self._told_end(said, refrain)
        elif label in (LineLabel.CKPT_BEGIN, LineLabel.CKPT_PROGRESS):
            label = self._write_goes_on(said, label, refrain)
        elif label in ACTIVITY:
            self._active(said, label)
        elif label in (LineLabel.ERROR, LineLabel.OOM):
            self._failed(said, label)
        elif label in _STATE_OF:
            self._rest(_STATE_OF[label], said)
        elif self.state in (JobState.CKPT_DONE, JobState.CKPT_FAILED):
            self._rest(self._before, said, keeps_evidence=True)
        return label

    def _believe_end(self, said: Said, label: LineLabel) -> bool:
        """Whether the line shows that the end which was told in front of it was the whole checkpoint's.

        "Saved …" may be said of each part. Where nothing more is said of the write, it was its end.
        """
        known = self.open.get(said.writer)
        if known is None or known.ending is None:
            return False
        if label in (LineLabel.CKPT_PROGRESS, LineLabel.CKPT_END, LineLabel.ERROR):
            self.habits.early_ends += label is not LineLabel.ERROR
            known.ending = None
            return False
        self._end(known)
        return True

    def _forget_idle(self, said: Said, label: LineLabel) -> None:
        """Before training has begun, a write that nothing more is said of was none; nothing is safe then, anyway."""
        known = self.open.get(said.writer)
        if known is None or self.step_lines or self.durable or label in ABOUT_WRITES:
            return
        known.idle_lines += bool(said.text.strip())
        if known.idle_lines > _IDLE_LINES:
            del self.open[said.writer]

    def _end(self, known: OpenWrite) -> None:
        """The end that was told is the write's."""
        assert known.ending is not None
        line, text, at_s = known.ending
        self.habits.told_ends += 1
        self.habits.aside = self.habits.aside or known.activity > 0
        self._close(line, text, at_s, known, told=True)

    def _note_state(self) -> None:
        """What the job goes back to when the write is over."""
        if self.state not in (JobState.CKPT_WRITING, JobState.CKPT_DONE, JobState.CKPT_FAILED):
            self._before = self.state

    def _rest(self, state: JobState, said: Said, *, keeps_evidence: bool = False) -> None:
        """A state that no write overrides."""
        if self.open:
            self.state = JobState.CKPT_WRITING
            return
        self.state = state
        if not keeps_evidence:
            self.line, self.line_text = said.number, said.text

    def _write_goes_on(self, said: Said, label: LineLabel, refrain: Refrain) -> LineLabel:
        # What something is written after, by what the job repeats, speaks of other things.
        step = step_of_checkpoint(said.text) if write_share(said) >= 0.5 else None
        aside = goes_on_aside(said.text)
        self.habits.aside = self.habits.aside or aside
        if label is LineLabel.CKPT_PROGRESS and said.writer not in self.open and self.state is JobState.CKPT_DONE:
            # More of the same came after its end: this job's ends are those of parts.
            self.habits.early_ends += 1
        known = self.open.get(said.writer)
        another = (
            known is not None
            and step is not None
            and known.step is not None
            and (known.named or known.activity > 0)
            and (step != known.step if label is LineLabel.CKPT_BEGIN else step > known.step and known.activity > 0)
        )
        again = known is not None and known.refrain == refrain.number and known.activity > 0
        if known is not None and (another or again):
            self._give_way(said, known)
            known = None
        if known is None:
            known = OpenWrite(
                said.number,
                said.text,
                said.at_s,
                self.step,
                self.step,
                aside,
                0.0,
                self.step_lines,
                refrain=refrain.number,
                step_text=self.step_text,
            )
            self.open[said.writer] = known
        elif label is LineLabel.CKPT_BEGIN:
            label = LineLabel.CKPT_PROGRESS
        if known.activity and said.at_s is not None and known.at_s is not None:
            self.habits.spoken_s.append(said.at_s - known.at_s)
        known.last_word = refrain.number if known.activity else -1
        known.begun = known.begun or label is LineLabel.CKPT_BEGIN
        known.certainty = max(known.certainty, 1.0 if refrain.regular else write_share(said))
        known.aside = known.aside or aside
        known.name_step(step)
        self._note_state()
        self.state = JobState.CKPT_WRITING
        self.line, self.line_text = known.line, known.text
        return label

    def _give_way(self, said: Said, known: OpenWrite) -> None:
        """Another write begins: the one before has ended, or failed without a word where ends are told."""
        self.habits.note_last_word(known.last_word)
        if known.failed or (known.activity and self.habits.tells_ends):
            del self.open[said.writer]
        else:
            self._close(said.number, said.text, said.at_s, known, told=False)

    def _told_end(self, said: Said, refrain: Refrain) -> None:
        known = self.open.get(said.writer) or (next(iter(self.open.values())) if len(self.open) == 1 else None)
        if known is not None and known.refrain == refrain.number and known.activity:
            # The same words were taken for a beginning: they are those of an end, and that one's was long ago.
            self._close(known.line, known.text, known.at_s, known, told=False)
            self._stepped_since_end, known = True, None
        if known is not None:
            known.name_step(step_of_checkpoint(said.text))
            known.ending, known.pauses_after = (said.number, said.text, said.at_s), refrain.pauses_after
            if self.habits.told_ends >= _TRUSTED and not self.habits.early_ends and not known.pauses_after:
                self._end(known)
            return
        if not self._stepped_since_end:
            # Said once more of the same checkpoint: how long it took, by another process.
            self.state = JobState.CKPT_WRITING if self.open else JobState.CKPT_DONE
            if refrain.pauses_after:
                self._wait_for_more(said)
            return
        self.habits.ends_alone += 1
        if said.live and self._silence_s is not None:
            self.habits.quiet_s.append(self._silence_s)
        step = step_of_checkpoint(said.text)
        self._note_late_end(step)
        if refrain.pauses_after:
            self._wait_for_more(said)
            return
        step = self.step if step is None else step
        known = OpenWrite(said.number, said.text, said.at_s, step, self.step, False, 1.0, self.step_lines)
        self._note_state()
        self._close(said.number, said.text, said.at_s, known, told=True)

    def _wait_for_more(self, said: Said) -> None:
        """An end that this job is silent after, as if more were written: the next line shows that it is over."""
        known = OpenWrite(said.number, said.text, said.at_s, self.step, self.step, False, 1.0, self.step_lines)
        known.name_step(step_of_checkpoint(said.text))
        known.ending, known.pauses_after = (said.number, said.text, said.at_s), True
        self.open[said.writer] = known
        self._note_state()
        self.state = JobState.CKPT_WRITING

    def _note_late_end(self, step: int | None) -> None:
        """Whether the beginning was believed to have ended with the next step: training goes on beside the writes."""
        habits, known = self.habits, self.durable
        if not habits.implied_ends or habits.told_ends:
            return
        same = known is not None and step is not None and step == known.step
        habits.aside = habits.aside or same or (habits.ends_alone > 1 and 2 * habits.ends_alone > habits.implied_ends)

    def _active(self, said: Said, label: LineLabel) -> None:
        at = step_of_progress(said.text) if label is LineLabel.TRAIN_STEP else None
        spoken_for = label is LineLabel.TRAIN_STEP and self._speak_for_silent(said, label, at)
        known = self.open.get(said.writer)
        redrawn = known is not None and self._says_nothing_new(said, label, at, known)
        if at is not None:
            self.step, self.step_text = at, said.text[:_STEP_TEXT]
            self.epoch = epoch_of(said.text) or self.epoch
        if known is not None and not redrawn:
            known.activity += 1
            if known.failed:
                del self.open[said.writer]
                self._before = _STATE_OF[label]
                self.state = JobState.CKPT_WRITING if self.open else JobState.CKPT_FAILED
                return
            doubtful = known.certainty < CERTAIN
            if (doubtful and not known.begun) or self._ends_with(said, known):
                if doubtful:
                    del self.open[said.writer]
                    self._note_step(said, label, paused=True)
                    self._rest(_STATE_OF[label], said)
                    return
                self._before = _STATE_OF[label]
                self._close(said.number, said.text, said.at_s, known, told=False)
                self._note_step(said, label, paused=True)
                return
        self._note_step(said, label, paused=known is not None or spoken_for)
        if spoken_for and not self.open:
            self._before = _STATE_OF[label]
            return
        self._rest(_STATE_OF[label], said)

    def _speak_for_silent(self, said: Said, label: LineLabel, at: int | None) -> bool:
        """A step ends the writes of processes that never say one: none trains on while another saves for it.

        Whether any was believed to be a checkpoint that is durable now.
        """
        before, told = self.durable, self.durable.line if self.durable else None
        for writer, known in list(self.open.items()):
            if writer == said.writer or writer in self.steppers or self._says_nothing_new(said, label, at, known):
                continue
            known.activity += 1
            aside = known.aside or self.habits.aside
            if known.ending is not None and not aside:
                self._end(known)
                continue
            # What another process told the end of, since this one began, was the whole of it.
            over = not aside and told is not None and told > known.line
            doubtful = known.certainty < CERTAIN
            if known.failed or over or (doubtful and not known.begun):
                del self.open[writer]
            elif self._ends_with(said, known):
                if doubtful:
                    del self.open[writer]
                else:
                    self._close(said.number, said.text, said.at_s, known, told=False)
        return self.durable is not before

    def _says_nothing_new(self, said: Said, label: LineLabel, at: int | None, known: OpenWrite) -> bool:
        """Whether a line is a bar drawn again, or a last word on the epoch that was saved."""
        epoch = epoch_of(said.text)
        if label is not LineLabel.TRAIN_STEP:
            return label is LineLabel.END and epoch is not None and epoch == self.epoch
        if at is None or not (at == known.last_step or (epoch is not None and at == epoch == self.epoch)):
            return False
        # A speed may be called steps, too, and an epoch has many batches: something else may have gone on.
        return counts_of(said.text) <= counts_of(known.step_text)

    def _note_step(self, said: Said, label: LineLabel, *, paused: bool) -> None:
        if label is not LineLabel.TRAIN_STEP:
            self._stepped_at_s = None
            return
        self._stepped_since_end = self._stepped_since_end or not paused
        self.steppers[said.writer] = self.steppers.get(said.writer, 0) + 1
        self.step_lines += 1
        habits = self.habits
        if said.at_s is None:
            return
        self.first_step_at_s = said.at_s if self.first_step_at_s is None else self.first_step_at_s
        if self.step is not None and (not habits.steps_seen or self.step != habits.steps_seen[-1][0]):
            habits.steps_seen.append((self.step, said.at_s))
        if self._stepped_at_s is not None and not paused and said.at_s >= self._stepped_at_s:
            habits.step_gaps_s.append(said.at_s - self._stepped_at_s)
        self._stepped_at_s = said.at_s

    def _ends_with(self, said: Said, known: OpenWrite) -> bool:
        """Whether activity of the writer means that its write has ended."""
        habits = self.habits
        passed = None if None in (said.at_s, known.at_s) else said.at_s - known.at_s  # type: ignore[operator]
        if known.aside or habits.aside or habits.tells_ends:
            # Ends of this job are told. One that never comes is a write that failed without a word.
            longest = habits.longest_write_s
            known.failed = known.activity > _OVERDUE_LINES or (
                passed is not None and longest is not None and passed > max(QUARANTINE_S, 10 * longest)
            )
            return False
        if said.live and passed is not None and known.activity == 1:
            habits.pauses += self.refrains.is_pause(passed)
        if not known.begun and known.activity < _STEPS_AFTER_FILES:
            # Only files of it were named: there may be more to come.
            return False
        if not said.live or passed is None or habits.pauses or self.first_step_at_s is None:
            return True
        return passed > self._quarantine_s()

    def _quarantine_s(self) -> float:
        """How long a write may take that nothing has shown the end of: at most half of the time between saves."""
        saved = self.habits.saved_at_s
        gaps = [after - before for before, after in pairwise(saved) if after > before]
        longest = max(QUARANTINE_S, 10 * (self.habits.longest_write_s or 0.0))
        spoken = _LONGER * max(self.habits.spoken_s, default=0.0)
        return max(spoken, min(longest, median(gaps) / 2)) if len(gaps) >= 2 else longest

    def settle(self, now_s: float) -> None:
        """Takes note of time that passed without a line: a write that nothing showed the end of may have ended."""
        for writer, known in list(self.open.items()):
            if known.ending is not None and now_s - (known.ending[2] or now_s) > _SETTLED_S and not known.pauses_after:
                self._end(known)
                continue
            waits = known.aside or self.habits.aside or known.failed or not known.activity or not known.begun
            if waits or self.habits.tells_ends or known.at_s is None or known.certainty < CERTAIN:
                continue
            if now_s - known.at_s > self._quarantine_s():
                self.durable = Durable(known.step, known.at_s, known.line, known.text)
                self._remember(known)
                del self.open[writer]
                self.state = self._before if not self.open else JobState.CKPT_WRITING

    def seen_whole(self, name: str, step: int | None, began_s: float, ended_s: float) -> bool:
        """A checkpoint that lies in the folder, whole, written from ``began_s`` to ``ended_s``; whether it is news.

        Writes that began before its end are over, whatever the log says or does not say.
        """
        over = [writer for writer, one in self.open.items() if one.at_s is not None and one.at_s <= ended_s]
        known = self.durable
        if known is not None and known.at_s is not None and known.at_s >= began_s and not over:
            return False
        told = [self.open.pop(writer) for writer in over]
        if not told:
            # It was saved without a word: the next one may be, too.
            self.habits.ends_alone += 1
        step = next((one.step for one in told if one.step is not None), None) if step is None else step
        if known is None or known.at_s is None or known.at_s < began_s:
            self.durable = Durable(step, began_s, None, f"files: {name}")
            self.habits.saved_at_s.append(began_s)
            if step is not None:
                self.habits.saved_steps.append(step)
        if not self.open and self.state is JobState.CKPT_WRITING:
            self.state = self._before
        return True

    def _close(self, line: int, text: str, at_s: float | None, known: OpenWrite, *, told: bool) -> None:
        """The write has ended and is durable."""
        habits = self.habits
        self.open = {writer: one for writer, one in self.open.items() if one is not known}
        habits.implied_ends += not told
        # Where training went on before an end was believed, nothing tells how long the write took.
        seen = told or known.activity <= 1
        if seen and at_s is not None and known.at_s is not None and at_s >= known.at_s and known.line != line:
            habits.durations_s.append(at_s - known.at_s)
        self._remember(known)
        self.durable = Durable(known.step, known.at_s, line if told else known.line, text if told else known.text)
        self._stepped_since_end = False
        self.line, self.line_text = line, text
        self.state = JobState.CKPT_WRITING if self.open else JobState.CKPT_DONE

    def _remember(self, known: OpenWrite) -> None:
        habits = self.habits
        if known.at_s is not None:
            habits.saved_at_s.append(known.at_s)
        habits.saved_counts.append(known.step_lines)
        if known.step is not None:
            habits.saved_steps.append(known.step)

    def _failed(self, said: Said, label: LineLabel) -> None:
        for known in self.open.values():
            known.failed = known.failed or self.confidence >= CERTAIN
        if self.open:
            self.state = JobState.CKPT_WRITING
            self.line, self.line_text = said.number, said.text
            return
        self._rest(_STATE_OF[label], said)
