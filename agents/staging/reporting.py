"""The progress of a run: for a listener, and in a file that a controller reads."""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kopt.agents.staging.folder import write_whole
from kopt.agents.staging.troubles import unsecret
from kopt.core.staging.manifest import Phase, Progress, StagingError

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
        self._samples: list[tuple[float, int]] = []

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.publish()

    def failed(self, error: StagingError) -> None:
        """Reported once."""
        if self.phase is Phase.FAILED:
            return
        self.phase = Phase.FAILED
        self._write(self._progress(error))

    def publish(self) -> None:
        self._write(self._progress(None))

    def _progress(self, error: StagingError | None) -> Progress:
        counts, now = self.counts, self.clock()
        speed = self._speed(now)
        remaining_s = (counts.bytes - counts.bytes_done) / speed if speed > 0 and self.phase is Phase.FETCHING else None
        reason, message = (error.reason, unsecret(str(error))) if error else (None, "")
        return Progress(
            self.phase,
            self.source,
            counts.objects,
            counts.objects_done,
            counts.bytes,
            counts.bytes_done,
            counts.bytes_kept,
            speed,
            remaining_s,
            reason,
            message,
            now,
        )

    def _speed(self, now: float) -> float:
        fetched = self.counts.bytes_done - self.counts.bytes_kept
        self._samples = [item for item in self._samples if now - item[0] <= _SPAN_S] + [(now, fetched)]
        (then, before), span = self._samples[0], now - self._samples[0][0]
        return max(0.0, (fetched - before) / span) if span > 0 and then < now else 0.0

    def _write(self, progress: Progress) -> None:
        content = json.dumps(progress.to_dict()).encode()
        for file in self.files:
            with contextlib.suppress(OSError):
                write_whole(file, [content], durable=False)
        self.listener(progress)
