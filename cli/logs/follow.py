"""``--follow``: files as they grow, through rotation and truncation, as ``tail -F`` reads them."""

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kopt.cli.progress import print_status
from kopt.formats.joblog import LineSplitter

if TYPE_CHECKING:
    from kopt.cli.logs.view import LogPrinter
    from kopt.models.checkpoint.session import Session

POLL_EVERY_S = 0.25
_PIECE = 1 << 18
_QUARTER_S = 900.0
_ZONES_S = 15 * 3600.0


class Tail:
    """The lines of a file as they come. ``complete`` once what was there at first is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        self.modified_at_s: float | None = None
        self._file: BinaryIO | None = None
        self._splitter = LineSplitter()
        self._missed = False

    def read(self) -> list[str]:
        """Lines since the last time; none where nothing came. Raises OSError where the file may not be read."""
        if self._file is None and not self._open():
            self.complete = True
            return []
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            print_status(f"kopt: {self.path} was truncated; reading from its start")
            self._file.seek(0)
            return self._ended()
        piece = self._file.read(_PIECE)
        if piece:
            return [line.text for line in self._splitter.feed(piece)]
        self.complete = True
        if self._replaced():
            self._file.close()
            self._file = None
            return self._ended()
        return []

    def close(self) -> list[str]:
        """The line that was begun and not ended."""
        if self._file is not None:
            self._file.close()
        return self._ended()

    def _open(self) -> bool:
        try:
            self._file = self.path.open("rb")
        except FileNotFoundError:
            if not self._missed:
                print_status(f"kopt: waiting for {self.path}")
            self._missed = True
            return False
        self._missed = False
        self.modified_at_s = os.fstat(self._file.fileno()).st_mtime
        return True

    def _replaced(self) -> bool:
        """Whether another file stands under the name; one that is only gone may still be written to."""
        assert self._file is not None
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False
        held = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (held.st_dev, held.st_ino)

    def _ended(self) -> list[str]:
        result = [line.text for line in self._splitter.close()]
        self._splitter = LineSplitter()
        return result


@dataclass
class _Job:
    """A followed log. ``ahead_s``: by how much the log's clock is ahead of this machine's."""

    name: str
    tail: Tail
    session: "Session"
    live: bool = False
    ahead_s: float = 0.0
    texts: list[str] = field(default_factory=list)

    def now_s(self, clock: Callable[[], float]) -> float:
        return clock() + self.ahead_s

    def go_live(self, clock: Callable[[], float]) -> None:
        """What was there is read: from now on lines come now, in the log's own clock where it has one."""
        self.live = True
        last_s = self.session.machine.last_at_s
        if last_s is None:
            return
        ahead_s = last_s - (self.tail.modified_at_s or clock())
        # Clocks of one machine differ by their zones; a time without its day by anything.
        self.ahead_s = round(ahead_s / _QUARTER_S) * _QUARTER_S if abs(ahead_s) < _ZONES_S else ahead_s


def followed(
    files: Sequence[tuple[str, Path]],
    sessions: "Sequence[Session]",
    printer: "LogPrinter",
    *,
    standard_input: bool = False,
    clock: Callable[[], float] = time.time,
    keep_going: Callable[[], bool] = lambda: True,
) -> None:
    """Until Ctrl-C, the end of standard input, or ``going`` is false; then what holds at the end."""
    if standard_input:
        _standard_input(sessions[0], printer, clock)
        return
    jobs = [_Job(name, Tail(path), session) for (name, path), session in zip(files, sessions, strict=True)]
    try:
        while keep_going():
            news = [_poll(job, printer, clock) for job in jobs]
            if not any(news):
                printer.flush()
                time.sleep(POLL_EVERY_S)
    except KeyboardInterrupt:
        pass
    for job in jobs:
        _show(job, printer, job.tail.close(), clock)
        printer.begin(job.name, str(job.tail.path))
        printer.end(job.session.status(job.now_s(clock) if job.session.live else None))


def _poll(job: _Job, printer: "LogPrinter", clock: Callable[[], float]) -> bool:
    """Whether there was something new."""
    texts = job.tail.read()
    _show(job, printer, texts, clock)
    if job.tail.complete and not job.live:
        job.go_live(clock)
    if not texts and job.session.live:
        printer.begin(job.name, str(job.tail.path))
        printer.passed(job.session.status(job.now_s(clock)))
    return bool(texts)


def _show(job: _Job, printer: "LogPrinter", texts: Sequence[str], clock: Callable[[], float]) -> None:
    from kopt.sdk.classify_log import read

    if not texts:
        return
    printer.begin(job.name, str(job.tail.path))
    now_s = job.now_s(clock)
    arrivals_s = [now_s] * len(texts) if job.live else None
    printer.show(read(job.session, texts, arrivals_s, changes=printer.changes))


def _standard_input(session: "Session", printer: "LogPrinter", clock: Callable[[], float]) -> None:
    from kopt.sdk.classify_log import read

    splitter, source = LineSplitter(), sys.stdin.fileno()
    printer.begin("-", "-")
    try:
        while True:
            if not select.select([source], [], [], 1.0)[0]:
                printer.passed(session.status(clock()))
                continue
            piece = os.read(source, _PIECE)
            texts = [line.text for line in (splitter.feed(piece) if piece else splitter.close())]
            printer.show(read(session, texts, [clock()] * len(texts), changes=printer.changes))
            printer.flush()
            if not piece:
                break
    except KeyboardInterrupt:
        pass
    printer.end(session.status(clock() if session.lines else None))
