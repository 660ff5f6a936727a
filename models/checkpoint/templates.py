"""What the repetitions in a job's log say about its lines where their words leave doubt.

A line about a step comes again and again, with a number that grows. A line about a save is rare, and the writer pauses
before it (it was logged when the write was done) or after it (it was logged when the write began). Both are learned
from the log itself, so that they hold for unknown trainers and languages.
"""

import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

_NUMBER = re.compile(r"\d{1,12}")
_MOST, _MOST_NUMBERS, _MOST_CHARACTERS, _MOST_LATE_KEYS = 96, 8, 200, 16
_ROUTINE_LINES, _ROUTINE_ENDS = 3, 2
_LEADS_OFTEN, _LEADS_OFTEN_ELSE = 3, 12
"""One line in so many of a template comes before a write: of those about steps, and of all others."""
_RUN, _MOST_LINES = 12, 300
"""Times in a row that a number must have grown, and lines after which growing numbers are not looked for."""
_LATE, _LATE_THOUGH_BEGINNING = 2, 4
"""Pauses before a line, and hardly any after it, that show that it is logged at the end."""
_GAPS, _REGULAR = 3, 3
_SILENT_AFTER, _BEGUN_OFTEN = 2, 2
_ABOUT, _SURE, _CLEAR = 0.5, 0.85, 0.8


class Hint(StrEnum):
    """What repetition says about a line."""

    NOTHING = ""
    STEP = "step"
    BEGIN = "begin"
    END = "end"


@dataclass(slots=True)
class LineTemplate:
    """Lines that differ in their numbers only. ``rising``: which numbers grew in each of the last ``run`` lines.

    ``repeats``: lines directly after another of the template; ``paused_*`` and ``ran_*``: lines with and without a
    pause; ``written_*``: lines with a line about a write before them, directly after them, or before the next step;
    ``begun``: lines with which a write began; ``leading``: lines after which one about a write came before the next
    step, or at once.
    """

    number: int = 0
    lines: int = 0
    repeats: int = 0
    run: int = 0
    rising: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    paused_before: int = 0
    paused_after: int = 0
    ran_before: int = 0
    ran_after: int = 0
    written_before: int = 0
    written_next: int = 0
    written_after: int = 0
    counts: list[int] = field(default_factory=list)
    leading: int = 0
    begun: int = 0

    def observe_numbers(self, text: str) -> None:
        """Compares the numbers of a line with those of the one before."""
        if self.run >= _RUN or self.lines > _MOST_LINES:
            return
        numbers = [int(digits) for digits in _NUMBER.findall(text[:_MOST_CHARACTERS])[:_MOST_NUMBERS]]
        before, self.numbers = self.numbers, numbers
        grown = [n for n in self.rising if n < len(numbers) and n < len(before) and numbers[n] > before[n]]
        self.run = self.run + 1 if grown else 0
        self.rising = grown or list(range(len(numbers)))

    @property
    def regular(self) -> bool:
        """Whether equally many lines about steps came between each two of the last ones."""
        gaps = [after - before for before, after in pairwise(self.counts)]
        return len(self.counts) >= _REGULAR and min(gaps) > 1 and max(gaps) - min(gaps) <= 1

    @property
    def pauses_after(self) -> bool:
        """Whether the writer was mostly silent for long after such lines: something more was done silently."""
        return self.paused_after >= _SILENT_AFTER and self.paused_after > self.ran_after

    def is_routine(self, *, step: bool) -> bool:
        """Whether such lines come in the middle of training, or end a write: hardly ever does a write follow them."""
        if self.counts:
            return self.lines >= _ROUTINE_ENDS and not self.leading
        often = _LEADS_OFTEN if step else _LEADS_OFTEN_ELSE
        return self.lines >= _ROUTINE_LINES and self.leading * often <= self.lines

    @property
    def begins_writes(self) -> bool:
        """Whether most such lines were read as the beginning of a write."""
        return self.begun >= _BEGUN_OFTEN and 2 * self.begun >= self.lines

    @property
    def only_in_writes(self) -> bool:
        """Whether such lines came directly after lines about a write, or after each other, and never otherwise."""
        return self.written_before > 0 and self.written_before + self.repeats >= self.lines

    @property
    def counts_steps(self) -> bool:
        return self.run >= _RUN and 2 * self.repeats >= self.lines


LastLine = tuple[int, float | None, bool]
"""The template of a writer's last line, when it came, and whether it was about a write."""


@dataclass(slots=True)
class LineTemplates:
    """All templates of a job's log, by the hash of their text. Times in seconds.

    ``gaps_s``: times between consecutive lines of one template; ``created`` counts all templates so far;
    ``late_keys``: by writer, the templates of lines that came after a pause since the last step; ``recent_keys``: the
    templates of all lines since then, and of the step's own; ``routine``: whether the last line was of a routine one.
    """

    by_key: dict[int, LineTemplate] = field(default_factory=dict)
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    pause_s: float | None = None
    created: int = 0
    last_lines: dict[str, LastLine] = field(default_factory=dict)
    late_keys: dict[str, list[int]] = field(default_factory=dict)
    recent_keys: dict[str, list[int]] = field(default_factory=dict)
    routine: bool = False

    def observe(
        self, template: str, text: str, writer: str, at_s: float | None, *, write: bool, step: bool = False
    ) -> LineTemplate:
        """Records a line and returns its template. ``at_s``: its arrival, if known; ``write``, ``step``: what its
        words are about."""
        key = zlib.crc32(template.encode("utf-8", "replace"))
        result = self.by_key.get(key)
        if result is None:
            self._drop_rare()
            result = self.by_key[key] = LineTemplate(self.created)
            self.created += 1
        result.lines += 1
        before = self.last_lines.get(writer)
        if before is not None:
            if before[0] == key:
                result.observe_numbers(text)
            if write and before[0] in self.by_key:
                self.by_key[before[0]].written_next += 1
            if self._follows_pause(before, key, result, at_s):
                earlier = [late_key for late_key in self.late_keys.get(writer, ()) if late_key != before[0]]
                for late in self._kept(earlier):
                    late.paused_after += 1
        self.last_lines[writer] = (key, at_s, write)
        self._record_order(key, writer, result, write=write, step=step or result.counts_steps)
        return result

    def _record_order(self, key: int, writer: str, result: LineTemplate, *, write: bool, step: bool) -> None:
        """After which lines other lines about the same write come."""
        if step and not write:
            self.recent_keys[writer] = [key]
            self.late_keys.pop(writer, None)
            return
        recent_keys = self.recent_keys.setdefault(writer, [])
        if write:
            for recent in self._kept(recent_keys):
                recent.leading += 1
            recent_keys.clear()
        if len(recent_keys) < _MOST_LATE_KEYS:
            recent_keys.append(key)
        late_keys = self.late_keys.setdefault(writer, [])
        if write:
            for late in self._kept(late_keys):
                late.written_after += 1
            late_keys.clear()
        if result.paused_before and len(late_keys) < _MOST_LATE_KEYS:
            late_keys.append(key)

    def _kept(self, keys: Iterable[int]) -> Iterator[LineTemplate]:
        """The templates of these keys that have not been dropped, one for each key."""
        return (self.by_key[key] for key in keys if key in self.by_key)

    def _follows_pause(self, before: LastLine, key: int, result: LineTemplate, at_s: float | None) -> bool:
        """Whether the writer paused between its last line and this one."""
        previous_key, previous_at_s, was_write = before
        previous = self.by_key.get(previous_key)
        result.written_before += was_write
        result.repeats += previous_key == key
        if at_s is None or previous_at_s is None:
            return False
        gap_s = at_s - previous_at_s
        if previous_key == key:
            self._record_gap(gap_s)
            return False
        if self.pause_s is None:
            return False
        paused = self.is_pause(gap_s)
        result.paused_before += paused
        result.ran_before += not paused
        if previous is not None:
            previous.paused_after += paused
            previous.ran_after += not paused
        return paused

    def _record_gap(self, gap_s: float) -> None:
        self.gaps_s.append(gap_s)
        ordered = sorted(self.gaps_s)
        if len(ordered) >= _GAPS:
            self.pause_s = max(3 * ordered[len(ordered) // 2], 1.5 * ordered[-1 - len(ordered) // 16]) + 0.002

    def is_pause(self, gap_s: float) -> bool:
        """Whether the writer was silent for longer than between two steps."""
        return self.pause_s is not None and gap_s > self.pause_s

    def _drop_rare(self) -> None:
        """Makes room for another template."""
        if len(self.by_key) < _MOST:
            return
        # What is about writes is rare and must be recognised.
        order = sorted(self.by_key, key=lambda key: (self.by_key[key].counts != [], self.by_key[key].lines))
        rare = order[: _MOST // 4]
        for key in rare:
            del self.by_key[key]


def hint(result: LineTemplate, begins: float, continues: float, write: float, *, opened: bool) -> Hint:
    """What repetition says about a line whose words have these shares: a beginning, a part, and any line of a write."""
    if result.counts_steps and write < _SURE:
        return Hint.STEP
    before, after = result.paused_before, result.paused_after
    leads = after >= _LATE and result.written_next >= after > 2 * result.ran_after
    if leads and after > 3 * before:
        return Hint.BEGIN
    if write < _ABOUT and not (opened and result.written_before == result.lines):
        return Hint.NOTHING
    late = _LATE_THOUGH_BEGINNING if max(begins, continues) >= _CLEAR else _LATE
    if before >= late and before > 3 * after and before >= 2 * result.ran_before and not result.written_after:
        return Hint.END
    if write >= _ABOUT and after >= _LATE and after > 3 * before and after >= 2 * result.ran_after:
        return Hint.BEGIN
    return Hint.NOTHING
