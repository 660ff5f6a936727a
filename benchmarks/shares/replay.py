"""A day's jobs sent to an engine, ended when they have run, and what becomes of them written to the ledger."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.shares.clock import TraceClock
from benchmarks.shares.day import TraceJob
from benchmarks.shares.ledger import HOUR_S, Ledger

_STEP_S = 0.01
_PATIENCE_S = 20.0
"""Of the world: so long after the last event an engine may take to start a job for which there is room."""


@dataclass(frozen=True)
class JobState:
    """A job in an engine at one event. ``holds``: GPUs count as its own; ``runs``: it makes progress with them.

    ``cause`` says why it was evicted, where the engine tells it.
    """

    name: str
    holds: bool = False
    runs: bool = False
    gone: bool = False
    cause: str = ""


class Engine(Protocol):
    """Takes jobs, and reports each of their states once more when it may have changed."""

    def submit(self, job: TraceJob) -> None: ...

    def end(self, name: str) -> None:
        """The job has run: it leaves, and its GPUs are free once it is ``gone``."""
        ...

    def states(self) -> Sequence[JobState]: ...


@dataclass
class _Progress:
    job: TraceJob
    left_s: float
    since_s: float | None = None
    ended: bool = False
    state: JobState | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the engine has done what it surely will: take the job, free what it evicted, let go of what ended."""
        return self.state is not None and not self.ended and self.state.holds == self.state.runs

    @property
    def ends_s(self) -> float:
        return float("inf") if self.since_s is None else self.since_s + self.left_s


class Replay:
    """One run. ``wall`` and ``sleep`` are those of the world, or a test's.

    ``scale``: seconds of the day in one of an engine that has to act, in every arm alike. ``paced``: a controller is
    beside the engine, whose spans are shorter by as much. As long as anybody waits time then passes that many times as
    fast, and no faster, so that its graces and pauses are as long as meant in the day. One that began while somebody
    waited and goes on when nobody does takes up to ``speed / scale`` times as long of the day.
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        jobs: Sequence[TraceJob],
        *,
        speed: float,
        quiet_s: float,
        scale: float = 1.0,
        paced: bool = False,
        wall: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        each_hour: Callable[[int], None] = lambda hour: None,
    ) -> None:
        self._engine, self._ledger = engine, ledger
        self._due = sorted(jobs, key=lambda job: -job.at_s)
        self._clock = TraceClock(wall(), speed, quiet_s, scale)
        self._paced, self._wall, self._sleep = paced, wall, sleep
        self._progress: dict[str, _Progress] = {}
        self._last_s, self._each_hour = wall(), each_hour
        self.ended = 0
        self.causes: Counter[str] = Counter()
        """Of evictions."""

    def run(self, until_s: float) -> None:
        """Raises RuntimeError for a job that the engine lost."""
        hour = 0
        while self._clock.now_s < until_s:
            if self._clock.now_s >= (hour + 1) * HOUR_S:
                self._ledger.advance(self._clock.now_s)
                self._each_hour(hour)
                hour += 1
            now_s = self._clock.advance(self._wall(), min(until_s, self._next_s()))
            for state in self._engine.states():
                self._touch()
                self._take(state, now_s)
            self._end_due(now_s)
            self._submit_due(now_s)
            self._wait_or_settle()
            self._sleep(_STEP_S)
        self._ledger.advance(until_s)

    def _wait_or_settle(self) -> None:
        """Time is the world's while the engine surely has to act, however busy the machine is."""
        if not all(item.is_answered for item in self._progress.values()):
            self._clock.touch(self._wall())
        elif not self._ledger.waiting:
            self._clock.settle()
        elif self._paced or (self._ledger.has_room and self._wall() - self._last_s < _PATIENCE_S):
            self._clock.touch(self._wall())

    def _touch(self) -> None:
        self._last_s = self._wall()
        self._clock.touch(self._last_s)

    def _next_s(self) -> float:
        ends_s = min((item.ends_s for item in self._progress.values()), default=float("inf"))
        return min(ends_s, self._due[-1].at_s if self._due else float("inf"))

    def _submit_due(self, now_s: float) -> None:
        while self._due and self._due[-1].at_s <= now_s:
            job = self._due.pop()
            self._progress[job.name] = _Progress(job, job.runs_s)
            self._engine.submit(job)
            self._touch()

    def _end_due(self, now_s: float) -> None:
        for name in [name for name, item in self._progress.items() if item.ends_s <= now_s]:
            self._progress[name].since_s, self._progress[name].ended = None, True
            self._engine.end(name)
            self._touch()

    def _take(self, state: JobState, now_s: float) -> None:
        item = self._progress.get(state.name)
        if item is None:
            return
        item.state = state
        if state.name not in self._ledger.jobs:
            self._ledger.appears(state.name, item.job.queue, item.job.gpus, now_s)
        if state.gone:
            if not item.ended:
                raise RuntimeError(f"{state.name} is gone, and has {item.left_s:.0f} s to run")
            self._ledger.leaves(state.name, now_s)
            del self._progress[state.name]
            self.ended += 1
            return
        if not item.ended:
            self._run_or_stop(item, state, now_s)
        if state.holds:
            self._ledger.holds(state.name, now_s)
        elif not item.ended:
            self._ledger.lets_go(state.name, now_s)

    def _run_or_stop(self, item: _Progress, state: JobState, now_s: float) -> None:
        if state.runs and item.since_s is None:
            item.since_s = now_s
        elif not state.runs and item.since_s is not None:
            item.left_s -= now_s - item.since_s
            item.since_s = None
            self.causes[state.cause] += 1
