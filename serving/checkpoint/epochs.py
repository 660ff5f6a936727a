"""Epochs of followed jobs, read as their lines arrive: numbers and times, and nothing of the text.

Of a job's processes some print epochs, and a restart begins a new source, so each source has a reader. What a reader
has to know goes with the job's document; epochs have rows of their own, which stay for as long as costs do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.formats.joblog.epochs import Epoch, EpochReader

MOST_READERS = 8
"""Of ranks that all print the same, so many are read."""
MOST_EPOCHS = 2_000
"""Of one source; what comes after counts to the last."""
_SILENT_S = 900.0
"""A source from which nothing came for so long gives way to a new one."""


@dataclass(frozen=True)
class SourceEpoch:
    """An epoch, and which of the job's sources named it."""

    source: str
    epoch: Epoch


class JobEpochs:
    """The readers of one job."""

    def __init__(self) -> None:
        self._readers: dict[str, EpochReader] = {}
        self._stored: frozenset[SourceEpoch] = frozenset()

    def read(self, source: str, text: str, at_s: float) -> None:
        """One line that arrived at ``at_s`` (Unix seconds)."""
        reader = self._readers.get(source)
        if reader is None:
            reader = EpochReader(MOST_EPOCHS)
            reader.read(text, at_s)
            # Of sources that name no epoch, which are most, nothing is kept.
            if not reader.epochs() or not self._has_room(at_s):
                return
            self._readers[source] = reader
            return
        reader.read(text, at_s)

    def _has_room(self, now_s: float) -> bool:
        if len(self._readers) < MOST_READERS:
            return True
        ends_s = {source: reader.epochs()[-1].end_s for source, reader in self._readers.items()}
        oldest = min(ends_s, key=lambda source: ends_s[source])
        if ends_s[oldest] > now_s - _SILENT_S:
            return False
        del self._readers[oldest]
        return True

    def _all(self) -> tuple[SourceEpoch, ...]:
        return tuple(
            SourceEpoch(source, epoch) for source, reader in self._readers.items() for epoch in reader.epochs()
        )

    def changed(self) -> tuple[SourceEpoch, ...]:
        """Those that are new, or went on, since ``stored``."""
        return tuple(each for each in self._all() if each not in self._stored)

    def stored(self) -> None:
        """What has changed is kept elsewhere: all but the last epochs, which may go on, are forgotten."""
        for reader in self._readers.values():
            reader.drop_ended()
        self._stored = frozenset(self._all())

    def to_dict(self) -> dict[str, Any]:
        return {source: reader.to_dict() for source, reader in self._readers.items()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "JobEpochs":
        """Raises ValueError for what ``to_dict`` did not write."""
        epochs = cls()
        epochs._readers = {
            str(source): EpochReader.from_dict(reader, MOST_EPOCHS) for source, reader in document.items()
        }
        return epochs
