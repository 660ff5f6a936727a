"""Sends runs to the prediction endpoint, once each and again until they are accepted."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kopt.cluster.client.resources import Key
from kopt.cluster.runtime.backoff import Backoff
from kopt.core.workload.run_time import JobRun

_LOG = logging.getLogger(__name__)
Send = Callable[[Sequence[JobRun]], Awaitable[int]]
"""Gives runs to the endpoint; how many were new to it. Raises SendError."""
Source = tuple[str, Key]
"""Kind and key of the object that shows a run."""
BATCH = 1_000
_LONGEST_PAUSE_S = 60.0


class SendError(RuntimeError):
    """The endpoint did not take the runs; they are sent again. ``refused``: trying again does not help."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Reporter:
    """What objects show goes in with ``observe``; ``step`` sends what is new. ``clock`` tells Unix seconds."""

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._current: dict[Source, JobRun] = {}
        self._pending: dict[str, JobRun] = {}
        self._not_begun: set[Source] = set()
        self._begun_s: dict[str, float] = {}
        self._backoff = Backoff(0.5, _LONGEST_PAUSE_S)
        self.errors = 0
        self.sent = 0
        """Runs that the endpoint accepted, starts and ends counted by themselves."""

    @property
    def pending(self) -> int:
        """Runs that are still to be sent."""
        return len(self._pending)

    @property
    def running(self) -> int:
        """Runs that go on, as the cluster shows them."""
        return sum(run.ended_s is None for run in self._current.values())

    def observe(self, source: Source, run: JobRun | None, *, has_begun: bool = True) -> None:
        """What an object shows now; None where it shows none, or is gone.

        A run that goes on and is not shown any more was interrupted: its workload was evicted, or deleted. A run that
        was seen before it had begun starts when it is first seen to have.
        """
        before = self._current.get(source)
        if run is None:
            self._not_begun.discard(source)
        elif not has_begun and (before is None or before.job != run.job):
            self._not_begun.add(source)
            run = None
        else:
            run = self._from_its_start(source, run)
        self._current.pop(source, None)
        if before is not None and before.ended_s is None and (run is None or run.job != before.job):
            stopped_s = max(before.started_s, self._clock())
            self._begun_s.pop(before.job, None)
            self._pending[before.job] = replace(before, ended_s=stopped_s, interrupted=True)
        if run is not None:
            self._current[source] = run
            if run != before:
                self._pending[run.job] = run

    def _from_its_start(self, source: Source, run: JobRun) -> JobRun:
        if source in self._not_begun:
            self._not_begun.discard(source)
            self._begun_s[run.job] = self._clock()
        begun_s = self._begun_s.get(run.job, run.started_s)
        if run.ended_s is not None:
            self._begun_s.pop(run.job, None)
            begun_s = min(begun_s, run.ended_s)
        return replace(run, started_s=max(run.started_s, begun_s))

    def send_all(self) -> None:
        """Everything that is shown again: another replica may have sent it, and may not."""
        self._pending |= {run.job: run for run in self._current.values()}

    async def step(self) -> float | None:
        """Send what is pending; seconds until it is tried again, None for when something changes."""
        while self._pending:
            batch = list(self._pending.values())[:BATCH]
            try:
                await self._send(batch)
            except SendError as error:
                self.errors += 1
                _LOG.warning("%d runs were not sent: %s", len(self._pending), error)
                if not error.refused:
                    return self._backoff.next_s()
            else:
                self.sent += len(batch)
                self._backoff.reset()
            for run in batch:
                # What changed while it was being sent is sent again.
                if self._pending.get(run.job) == run:
                    del self._pending[run.job]
        return None
