"""Ends of writes as a challenger read them in logs, beside those that the jobs' checkpoint folders show.

Compared is when a write was taken to be over with when its files last changed. A write of which the log says nothing is
no answer and does not count; one that is taken to be over while its files still change is what a job would be stopped
in. Callers are not misled meanwhile: what a folder shows wins over what was read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.workload.checkpoint import JobState
from kopt.models.registry.aliases import CHALLENGER
from kopt.serving.checkpoint.job import FollowedJob
from kopt.serving.measured.comparisons import Comparisons, Interval

_CLOCK_S = 2.0
"""Clocks of nodes and of file servers differ by so much."""
_LATEST_S = 30.0
"""What is said later is about something else than this write."""
_PROMISED = 0.98
"""Of the ends that are read, as many have to hold."""
_LEAST_S = 1e-3
_MOST_ENDED = 10_000


@dataclass(frozen=True)
class ReadEnd:
    """A write of a whole checkpoint, from ``began_s`` to ``ended_s`` by its files; ``read_s`` is when the log was taken
    to say that it is over. All Unix seconds."""

    name: str
    began_s: float
    ended_s: float
    read_s: float

    def interval(self, model: ModelVersion) -> Interval:
        """The write takes no longer than was read."""
        took_s = max(self.read_s - self.began_s, _LEAST_S)
        return Interval(model, took_s, _LEAST_S, took_s + _CLOCK_S, _PROMISED)

    @property
    def took_s(self) -> float:
        return max(self.ended_s - self.began_s, _LEAST_S)


def read_ends(job: FollowedJob, now_s: float, since_s: float) -> Iterator[ReadEnd]:
    """Writes that began after ``since_s``, are over by what the folders show, and whose end was read in the log."""
    done = [change.at_s for change in job.changes if change.state == JobState.CKPT_DONE and change.line is not None]
    for by, watch in job.folders.items():
        unit = watch.view(now_s, job.own_folders).durable
        if unit is None or unit.first_s < since_s:
            continue
        near = (at_s for at_s in done if unit.first_s - _CLOCK_S <= at_s <= unit.last_s + _LATEST_S)
        if (read_s := next(near, None)) is not None:
            yield ReadEnd(f"{by}/{unit.name}@{unit.last_s:.0f}", unit.first_s, unit.last_s, read_s)


class ReadEnds:
    """Of one endpoint: keeps comparisons, and says when they stop the trial. ``record`` and ``refresh`` block on the
    database."""

    def __init__(self, comparisons: Comparisons) -> None:
        self._comparisons = comparisons
        self._since_s: dict[ModelVersion, float] = {}
        self._ended: dict[tuple[str, str], None] = {}

    def record(self, owner: str, name: str, job: FollowedJob, model: ModelVersion, now_s: float) -> None:
        """Compare what is new of a job that this version follows. What began before its trial was read by another."""
        since_s = self._since_s.setdefault(model, now_s)
        for end in read_ends(job, now_s, since_s):
            subject = f"{name}: {end.name}"
            if (owner, subject) in self._ended:
                continue
            self._comparisons.record(owner, subject, "s", end.took_s, {CHALLENGER: end.interval(model)})
            self._ended[owner, subject] = None
            while len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    def refresh(self) -> None:
        self._comparisons.refresh()

    def report(self, owner: str | None) -> list[dict[str, Any]]:
        return self._comparisons.report(owner)

    def drift(self, role: str) -> Reason | None:
        """Why what was read cannot be trusted: too many writes went on after they were taken to be over."""
        missed = self._comparisons.drift(role)
        if missed is None:
            return None
        count, coverage = int(missed.numbers["matched"]), float(missed.numbers["coverage"])
        early = round((1 - coverage) * count)
        text = (
            f"{early} of the last {count} writes went on, by their files, after the log was taken to say that they "
            "were over: the champion reads all logs."
        )
        return Reason("ENDS_READ_EARLY", text, {"early": early, "compared": count})

    def close(self) -> None:
        self._comparisons.close()
