"""What a job's own repetitions say of its lines, where their words leave doubt.

A line about a step comes again and again, with a number that grows. A line about a save comes seldom, and the writer
pauses before it (it was said when all was done) or after it (it was said when writing began). Both are learned from the
log itself, so that they hold for trainers and languages that nobody has seen.
"""

import re
import zlib
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

_NUMBER = re.compile(r"\d{1,12}")
_MOST, _MOST_NUMBERS, _LOOKED_AT, _MOST_TOLD = 96, 8, 200, 16
_RUN, _GIVEN_UP = 12, 300
"""Times in a row that a number must have grown, and lines after which that is no longer looked for."""
_LATE, _LATE_THOUGH_BEGINNING = 2, 4
"""Pauses before a line, and hardly any after it, that show that it is said at the end."""
_GAPS, _REGULAR = 3, 3
_SILENT_AFTER = 2
_ABOUT, _SURE, _CLEAR = 0.5, 0.85, 0.8


class Hint(StrEnum):
    """What repetition says of a line."""

    NOTHING = ""
    STEP = "step"
    BEGIN = "begin"
    END = "end"


@dataclass(slots=True)
class Refrain:
    """Lines of one template. ``rising``: places of the numbers that have grown since ``run`` lines."""

    number: int = 0
    heard: int = 0
    again: int = 0
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

    def count(self, text: str) -> None:
        """Takes note of the numbers of one more line."""
        if self.run >= _RUN or self.heard > _GIVEN_UP:
            return
        found = [int(one) for one in _NUMBER.findall(text[:_LOOKED_AT])[:_MOST_NUMBERS]]
        before, self.numbers = self.numbers, found
        grown = [n for n in self.rising if n < len(found) and n < len(before) and found[n] > before[n]]
        self.run = self.run + 1 if grown else 0
        self.rising = grown or list(range(len(found)))

    @property
    def regular(self) -> bool:
        """Whether as many lines about steps came between each two of the last ones."""
        gaps = [after - before for before, after in pairwise(self.counts)]
        return len(self.counts) >= _REGULAR and min(gaps) > 1 and max(gaps) - min(gaps) <= 1

    @property
    def pauses_after(self) -> bool:
        """Whether the writer was mostly silent for long after such lines: something more was done without a word."""
        return self.paused_after >= _SILENT_AFTER and self.paused_after > self.ran_after

    @property
    def counts_steps(self) -> bool:
        return self.run >= _RUN and 2 * self.again >= self.heard


Heard = tuple[int, float | None, bool]
"""The template of a writer's last line, when it came, and whether it was about a write."""


@dataclass(slots=True)
class Refrains:
    """All of a job. Times in seconds; ``gaps_s`` are between lines of one template that follow each other."""

    known: dict[int, Refrain] = field(default_factory=dict)
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    pause_s: float | None = None
    numbered: int = 0
    last: dict[str, Heard] = field(default_factory=dict)
    since: dict[str, list[int]] = field(default_factory=dict)

    def hear(
        self, template: str, text: str, writer: str, at_s: float | None, *, write: bool, step: bool = False
    ) -> Refrain:
        """Takes note of a line. ``at_s``: when it came, None where that is not known; ``write``: its words are about
        one."""
        key = zlib.crc32(template.encode("utf-8", "replace"))
        found = self.known.get(key)
        if found is None:
            self._make_room()
            found = self.known[key] = Refrain(self.numbered)
            self.numbered += 1
        found.heard += 1
        before = self.last.get(writer)
        if before is not None:
            if before[0] == key:
                found.count(text)
            if write and before[0] in self.known:
                self.known[before[0]].written_next += 1
            if self._after(before, key, found, at_s):
                for name in self.since.get(writer, ()):
                    if name in self.known and name != before[0]:
                        self.known[name].paused_after += 1
        self.last[writer] = (key, at_s, write)
        self._note_order(key, writer, found, write=write, step=step or found.counts_steps)
        return found

    def _note_order(self, key: int, writer: str, found: Refrain, *, write: bool, step: bool) -> None:
        """Which lines others about the same write come after."""
        if step and not write:
            self.since.pop(writer, None)
            return
        told = self.since.setdefault(writer, [])
        if write:
            for name in told:
                if name in self.known:
                    self.known[name].written_after += 1
            told.clear()
        if found.paused_before and len(told) < _MOST_TOLD:
            told.append(key)

    def _after(self, before: Heard, key: int, found: Refrain, at_s: float | None) -> bool:
        """Whether the writer paused in between."""
        name, came_s, was_write = before
        previous = self.known.get(name)
        found.written_before += was_write
        found.again += name == key
        if at_s is None or came_s is None:
            return False
        gap_s = at_s - came_s
        if name == key:
            self._note_gap(gap_s)
            return False
        if self.pause_s is None:
            return False
        paused = self.is_pause(gap_s)
        found.paused_before += paused
        found.ran_before += not paused
        if previous is not None:
            previous.paused_after += paused
            previous.ran_after += not paused
        return paused

    def _note_gap(self, gap_s: float) -> None:
        self.gaps_s.append(gap_s)
        ordered = sorted(self.gaps_s)
        if len(ordered) >= _GAPS:
            self.pause_s = max(3 * ordered[len(ordered) // 2], 1.5 * ordered[-1 - len(ordered) // 16]) + 0.002

    def is_pause(self, gap_s: float) -> bool:
        """Whether the writer was silent for longer than between two steps."""
        return self.pause_s is not None and gap_s > self.pause_s

    def _make_room(self) -> None:
        if len(self.known) < _MOST:
            return
        rare = sorted(self.known, key=lambda one: self.known[one].heard)[: _MOST // 4]
        for one in rare:
            del self.known[one]


def hint(found: Refrain, begins: float, goes_on: float, write: float, *, opened: bool) -> Hint:
    """What repetition says of a line whose words are a beginning, a part, or anything of a write with these shares."""
    if found.counts_steps and write < _SURE:
        return Hint.STEP
    before, after = found.paused_before, found.paused_after
    leads = after >= _LATE and found.written_next >= after > 2 * found.ran_after
    if leads and after > 3 * before:
        return Hint.BEGIN
    if write < _ABOUT and not (opened and found.written_before == found.heard):
        return Hint.NOTHING
    late = _LATE_THOUGH_BEGINNING if max(begins, goes_on) >= _CLEAR else _LATE
    if before >= late and before > 3 * after and before >= 2 * found.ran_before and not found.written_after:
        return Hint.END
    if write >= _ABOUT and after >= _LATE and after > 3 * before and after >= 2 * found.ran_after:
        return Hint.BEGIN
    return Hint.NOTHING
