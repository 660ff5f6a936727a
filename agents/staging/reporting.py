"""How far a run is: to whoever listens, and in a file that a controller reads."""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kopt.agents.staging.folder import write_whole
from kopt.agents.staging.troubles import unsecret
from kopt.core.staging import Phase, Progress, StagingError

Listener = Callable[[Progress], None]
_SPAN_S = 10.0
"""Over how long speed is a mean."""


@dataclass
class Counts:
    """What ``Progress`` counts, while it grows."""

    objects: int = 0
    objects_done: int = 0
    bytes: int = 0
    bytes_done: int = 0
    bytes_kept: int = 0


@dataclass
class Report:
    """The state of one run. ``files`` are written whole; one that cannot be written stops nothing."""

    source: str
    files: tuple[Path, ...] = ()
    listener: Listener = lambda progress: None
    clock: Callable[[], float] = time.time
    counts: Counts = field(default_factory=Counts)
    phase: Phase = Phase.LISTING

    def __post_init__(self) -> None:
        self._trail: list[tuple[float, int]] = []

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.tell()

    def failed(self, error: StagingError) -> None:
        """Told once."""
        if self.phase is Phase.FAILED:
            return
        self.phase = Phase.FAILED
        self._tell(self._progress(error))

    def tell(self) -> None:
        self._tell(self._progress(None))

    def _progress(self, error: StagingError | None) -> Progress:
        counts, now = self.counts, self.clock()
        speed = self._speed(now)
        left = (counts.bytes - counts.bytes_done) / speed if speed > 0 and self.phase is Phase.FETCHING else None
        reason, message = (error.trouble, unsecret(str(error))) if error else (None, "")
        return Progress(
            self.phase, self.source, counts.objects, counts.objects_done, counts.bytes, counts.bytes_done,
            counts.bytes_kept, speed, left, reason, message, now,
        )  # fmt: skip

    def _speed(self, now: float) -> float:
        fetched = self.counts.bytes_done - self.counts.bytes_kept
        self._trail = [one for one in self._trail if now - one[0] <= _SPAN_S] + [(now, fetched)]
        (then, before), span = self._trail[0], now - self._trail[0][0]
        return max(0.0, (fetched - before) / span) if span > 0 and then < now else 0.0

    def _tell(self, progress: Progress) -> None:
        content = json.dumps(progress.to_dict()).encode()
        for one in self.files:
            with contextlib.suppress(OSError):
                write_whole(one, [content], durable=False)
        self.listener(progress)
