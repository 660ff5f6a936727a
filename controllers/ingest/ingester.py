"""Follows each source by itself: after every bucket, what is new or was restated is pushed to the endpoint.

A source that fails is tried again after growing pauses, behind all others. Pushing again is harmless, so that two
replicas that both believe to lead do no harm, and a new leader begins by filling in what is there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.runtime.backoff import Backoff
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.grouping import GroupedReads, Read, ReadGroup
from kopt.controllers.ingest.prometheus import Buckets
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.common import GRID_S, AnswerError
from kopt.serving.contract.live_answers import PushedDemand

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 5.0
_EARLY_S = 0.02
"""A timer may wake a little too early by the clock, and what it then reads is the bucket before."""
Push = Callable[[str, Sequence[float], Sequence[float | None]], Awaitable[PushedDemand]]
"""Service, starts and values. Raises EndpointFailure, AnswerError or RequestRefused."""


@dataclass(frozen=True)
class IngestSettings:
    """``at_once`` queries or pushes are under way at a time; sources that failed share ``failed_at_once``."""

    backfill_s: float = 14 * 86_400.0
    """How much is read of a source that is new; the endpoint keeps two weeks."""
    reread_s: float = 1_800.0
    """How much before the newest bucket is read again, for samples that came late or were restated."""
    settle_s: float = 2.0
    """After a bucket's end until it is read: the last scrape has to arrive."""
    longest_pause_s: float = 300.0
    at_once: int = 8
    failed_at_once: int = 2


class SourceState(StrEnum):
    """How a source does."""

    UNREAD = "unread"
    """It was not read yet."""
    CURRENT = "current"
    SILENT = "silent"
    """It answers, but has no value for the newest bucket."""
    FAILING = "failing"


@dataclass
class Followed:
    """One source and what is known of it. ``pushed`` are the buckets that may still be restated."""

    source: DemandSource
    state: SourceState = SourceState.UNREAD
    pushed: Buckets = field(default_factory=dict)
    newest: int | None = None
    """The newest bucket with a value that the endpoint has."""
    read_to: int | None = None
    stored_buckets: int = 0
    """Buckets that the endpoint has."""
    changed: int = 0
    """Buckets that were new to the endpoint, or restated, in the last pass."""
    failures: int = 0
    """In a row."""
    error: str = ""
    reason: str = ""


Report = Callable[[Followed], None]


class Ingester:
    """``report`` is called after every pass over a source. Without ``read_group`` each source is a query."""

    def __init__(
        self,
        read: Read,
        push: Push,
        settings: IngestSettings | None = None,
        report: Report = lambda _: None,
        clock: Callable[[], float] = time.time,
        read_group: ReadGroup | None = None,
    ) -> None:
        self._read, self._push, self._report, self._clock = read, push, report, clock
        self._settings = settings or IngestSettings()
        self._slots = asyncio.Semaphore(self._settings.at_once)
        self._failed_slots = asyncio.Semaphore(self._settings.failed_at_once)
        self._grouped = None if read_group is None else GroupedReads(read, read_group, self._slots)
        self._tasks: dict[str, tuple[Followed, asyncio.Task[None]]] = {}

    @property
    def followed(self) -> tuple[Followed, ...]:
        return tuple(followed for followed, _ in self._tasks.values())

    def follow(self, sources: Iterable[DemandSource]) -> None:
        """Follows these sources, one of each series, and no others, until ``stop``."""
        wanted = {source.series: source for source in sources}
        for series, (followed, task) in list(self._tasks.items()):
            if wanted.get(series) != followed.source:
                task.cancel()
                del self._tasks[series]
        for series, source in wanted.items():
            if series not in self._tasks:
                followed = Followed(source)
                self._tasks[series] = followed, asyncio.create_task(self._keep_up(followed), name=series)

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def once(self, sources: Iterable[DemandSource]) -> list[Followed]:
        """One pass over each source."""

        async def attempt(source: DemandSource) -> Followed:
            followed = Followed(source)
            await self._attempt(followed)
            return followed

        return list(await asyncio.gather(*(attempt(source) for source in sources)))

    async def _keep_up(self, followed: Followed) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, self._settings.longest_pause_s)
        while True:
            await self._attempt(followed)
            wait_s = self._next_bucket_s(followed)
            if followed.state is SourceState.CURRENT:
                backoff.reset()
            else:
                # A value that is late is asked for again, but the next bucket is not missed for it.
                pause_s = backoff.next_s()
                wait_s = pause_s if followed.state is SourceState.FAILING else min(wait_s, pause_s)
            await asyncio.sleep(wait_s)

    async def _attempt(self, followed: Followed) -> None:
        """One pass; whatever happens to it is said in ``followed`` and costs no other source anything."""
        try:
            if await self._pass(followed):
                _LOG.warning("demand of %s: the endpoint has lost its history; pushing again", followed.source.series)
                followed.pushed, followed.read_to = {}, None
                await self._pass(followed)
        except (PrometheusError, EndpointFailure, AnswerError, RequestRefused) as error:
            self._failed(followed, _reason(error), str(error))
        except Exception as error:  # noqa: BLE001 - edge of a task: a bug must not end what others rely on
            _LOG.exception("demand of %s: this is a bug", followed.source.series)
            self._failed(followed, "Bug", type(error).__name__)
        else:
            self._succeeded(followed)
        self._report(followed)

    async def _pass(self, followed: Followed) -> bool:
        """Whether the endpoint turned out to have lost what it had."""
        first, last = self._span(followed)
        failing = followed.state is SourceState.FAILING
        slots = self._failed_slots if failing else self._slots
        if self._grouped is not None and not failing and self._grouped.takes(followed.source, first, last):
            buckets = await self._grouped.read(followed.source, first, last)
            async with slots:
                lost = await self._push_new(followed, buckets)
        else:
            # In one slot: two weeks of every source at once would not fit into the memory.
            async with slots:
                buckets = await self._read(followed.source, first, last)
                lost = await self._push_new(followed, buckets)
        followed.pushed = {b: value for b, value in buckets.items() if b > last - _buckets(self._settings.reread_s)}
        followed.read_to = last
        followed.newest = max(buckets, default=followed.newest)
        followed.state = SourceState.CURRENT if last in buckets else SourceState.SILENT
        return lost

    def _span(self, followed: Followed) -> tuple[int, int]:
        """The first and the last bucket to read."""
        last = self._last_ended()
        # Not the oldest one that is kept: it could have been dropped by the time it arrives.
        first = min(last, last - _buckets(self._settings.backfill_s) + 2)
        if followed.read_to is not None:
            # From before the last pass, which an outage may have put long ago.
            first = max(first, min(followed.read_to, last) - _buckets(self._settings.reread_s) + 1)
        return first, last

    async def _push_new(self, followed: Followed, buckets: Buckets) -> bool:
        """Whether the endpoint has much less than it had."""
        new = {bucket: value for bucket, value in sorted(buckets.items()) if followed.pushed.get(bucket) != value}
        followed.changed = 0
        if not new:
            return False
        pushed = await self._push(followed.source.series, [bucket * GRID_S for bucket in new], list(new.values()))
        followed.changed = pushed.changed
        previous, followed.stored_buckets = followed.stored_buckets, pushed.buckets
        return pushed.buckets < previous // 2

    def _failed(self, followed: Followed, reason: str, error: str) -> None:
        if followed.reason != reason:
            _LOG.warning("demand of %s: %s: %s; trying again", followed.source.series, reason, error)
        followed.state, followed.reason, followed.error = SourceState.FAILING, reason, error
        followed.failures += 1

    def _succeeded(self, followed: Followed) -> None:
        if followed.failures:
            _LOG.info("demand of %s: measured again after %d failures", followed.source.series, followed.failures)
        followed.failures, followed.reason, followed.error = 0, "", ""

    def _last_ended(self) -> int:
        return int((self._clock() - self._settings.settle_s) // GRID_S) - 1

    def _next_bucket_s(self, followed: Followed) -> float:
        """Seconds until the bucket after the last one that was read can be.

        Not after the last one that has ended by now: it may have ended while an earlier one was read.
        """
        last = self._last_ended() if followed.read_to is None else followed.read_to
        return max(0.0, (last + 2) * GRID_S + self._settings.settle_s - self._clock()) + _EARLY_S


def _buckets(span_s: float) -> int:
    return max(1, int(span_s // GRID_S))


def _reason(error: Exception) -> str:
    """One word, for metrics."""
    if isinstance(error, PrometheusError):
        return error.reason
    return "EndpointRefused" if isinstance(error, RequestRefused) else "EndpointFailed"
