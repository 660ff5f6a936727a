"""A recording → between which lines a checkpoint was being written, and which step is durable when."""

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from benchmarks.checkpoint_corpus.recording import KILLED, FileEvent, Happened, Recording
from kopt.data.joblogs.labelled import Write
from kopt.formats.joblog import LineSplitter

# A saver may think between two files of one checkpoint, and a rename may follow the last of them.
PAUSE_S = 0.4
# A checkpoint that is named by its step is hardly ever written a second time: it was still being written.
STEP_PAUSE_S = 2.0


@dataclass(frozen=True)
class Lines:
    """A log: its lines with the seconds at which each had ended."""

    texts: tuple[str, ...]
    arrivals_s: tuple[float, ...]

    def arrived_before(self, at_s: float) -> int:
        """The number of the last line that had arrived before then; 0 if none had."""
        return bisect.bisect_left(self.arrivals_s, at_s)


@dataclass
class _Unit:
    """Files of one checkpoint, and when they were last touched."""

    start_s: float
    last_s: float
    open_files: set[str] = field(default_factory=set)
    is_checkpoint: bool = False
    step: int | None = None
    failed: bool = False

    def is_over_before(self, event: FileEvent, pause_s: float) -> bool:
        """Whether this begins another writing of it: it rested, or had failed and is tried again."""
        again = self.failed and event.happened is Happened.WRITTEN
        longest_s = pause_s if self.step is None else max(pause_s, STEP_PAUSE_S)
        return not self.open_files and (again or event.at_s - self.last_s > longest_s)

    def touch(self, event: FileEvent) -> None:
        self.last_s = event.at_s
        if event.happened is Happened.WRITTEN:
            self.open_files.add(event.path)
        else:
            self.open_files.discard(event.path)

    def as_write(self, name: str) -> Iterator[Write]:
        if self.is_checkpoint:
            yield Write(name, self.start_s, self.last_s, self.step, not self.failed)


def lines_of(recording: Recording) -> Lines:
    splitter, texts, arrivals = LineSplitter(), list[str](), list[float]()
    for at_s, piece in recording.pieces:
        for line in splitter.feed(piece):
            texts.append(line.text)
            arrivals.append(at_s)
    for line in splitter.close():
        texts.append(line.text)
        arrivals.append(recording.pieces[-1][0])
    return Lines(tuple(texts), tuple(arrivals))


def writes_of(events: Iterable[FileEvent], unit: re.Pattern[str], pause_s: float = PAUSE_S) -> list[Write]:
    """``unit`` finds the checkpoint that a path belongs to: group ``unit``, with its step as ``step`` if it tells one.

    Files that match nothing are no checkpoints, unless one is moved to a checkpoint's name later. A checkpoint that
    rests for longer than ``pause_s`` (``STEP_PAUSE_S`` where its name tells a step) with no file open is complete;
    touched again later it is written again, as ``last.ckpt`` is.
    """
    return sorted(_writes(events, unit, pause_s), key=lambda write: write.start_s)


def _writes(events: Iterable[FileEvent], unit: re.Pattern[str], pause_s: float) -> Iterator[Write]:
    units: dict[str, _Unit] = {}
    for event in events:
        if event.happened is Happened.FAILED:
            _fail(units, event)
            continue
        found = unit.search(event.path)
        name = found["unit"] if found else event.path.partition("/")[0]
        known = units.get(name)
        if event.happened is Happened.GONE:
            if known:
                # Under another name it may still be open, and tells of its end there.
                known.open_files.discard(event.path)
            continue
        if known and known.is_over_before(event, pause_s):
            yield from known.as_write(name)
            known = None
        known = known or _Unit(event.at_s, event.at_s)
        units[name] = known
        known.touch(event)
        if found:
            known.is_checkpoint, known.step = True, int(found["step"]) if found.groupdict().get("step") else None
        moved = units.pop(event.was, None) if event.was and event.was != name else None
        if moved:
            known.start_s = min(known.start_s, moved.start_s)
    for name, left in units.items():
        yield from left.as_write(name)


def _fail(units: dict[str, _Unit], event: FileEvent) -> None:
    """A file could not be written, or a program was killed with files open."""
    for one in units.values():
        if one.open_files if event.path == KILLED else event.path in one.open_files:
            one.failed = True
