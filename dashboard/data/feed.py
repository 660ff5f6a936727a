"""How pages get their data: a feed is refreshed in the background, and a page reads what came last at once.

A page brings its own feeds (``Page.feeds``); ``live.LiveSource`` runs those of all pages.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from kopt.dashboard.data.access import Holds, Right
from kopt.dashboard.data.histories import Histories
from kopt.dashboard.data.records import NO_RECORDS, Records
from kopt.dashboard.data.served import Served
from kopt.dashboard.data.sources import Cluster
from kopt.models.registry.registry import MetricRow, RegisteredModel
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.common import AnswerError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FAILURES = (EndpointFailure, AnswerError, RequestRefused)
"""What an endpoint that is away, or broken, raises."""


class Versions(Protocol):
    """The part of ``models.registry.Registry`` that the pages use; every method may block."""

    def list(self, name: str) -> tuple[RegisteredModel, ...]: ...

    def compare(self, name: str, versions: Sequence[str] = ...) -> tuple[MetricRow, ...]: ...


@dataclass(frozen=True)
class Connections:
    """Where feeds get their data. ``patience_s`` is how long a page may wait for an answer that it asked for itself;
    ``cluster_name`` is what the endpoint calls the cluster, where it answers for several."""

    histories: Histories
    client: AsyncPredictionClient
    registry: Versions | None
    cluster: Cluster | None
    served: Served
    url: str
    home: Path
    clock: Callable[[], float]
    patience_s: float
    records: Records = NO_RECORDS
    cluster_name: str = ""


class Reader(Protocol[T_co]):
    """A feed at work."""

    async def refresh(self) -> None:
        """Fetch what is new. What is unreachable is a problem in the data, not an exception."""

    async def latest(self) -> T_co:
        """What came last; never waits for the network."""


async def _queue_changed(cluster: Cluster) -> None:
    await cluster.changed()


@dataclass(frozen=True)
class Feed(Generic[T]):
    """One kind of data. ``empty`` is what pages show while there is none, and where it is of no use to them.

    ``restrict`` leaves out what its reader may not see; it asks for rights and for nothing else, so that they can be
    looked up beforehand. With ``has_changed``, given what came before and what came now, it is refreshed as soon as
    ``news`` of the cluster comes, at most every ``between_s``, and open pages hear of it.
    """

    name: str
    empty: Callable[[], T]
    open: Callable[[Connections], Reader[T]]
    restrict: Callable[[T, Holds], T]
    has_changed: Callable[[T, T], bool] | None = None
    news: Callable[[Cluster], Awaitable[None]] = _queue_changed
    between_s: float = 1.0


class Source(Protocol):
    """Where the pages get their content. It raises nothing for a platform that is down: the data says so."""

    async def latest(self, feed: Feed[T]) -> T:
        """What came last; immediate."""

    async def next_change(self, feed: Feed[T], since: int) -> int:
        """How often a feed has changed, once that is another number than ``since``."""


class Restricted:
    """A source as somebody sees it. ``may`` says which of some rights they have."""

    def __init__(self, source: Source, may: Callable[[Collection[Right]], Awaitable[Collection[Right]]]) -> None:
        self._source, self._may = source, may

    async def latest(self, feed: Feed[T]) -> T:
        data = await self._source.latest(feed)
        needed: set[Right] = set()

        def noted(right: Right) -> bool:
            needed.add(right)
            return True

        feed.restrict(data, noted)
        held = await self._may(needed) if needed else ()
        return feed.restrict(data, lambda right: right in held)

    async def next_change(self, feed: Feed[T], since: int) -> int:
        return await self._source.next_change(feed, since)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Data with a sentence for the page's banner where it could not be refreshed."""

    problem: str = ""


A = TypeVar("A", bound=Answer)


class Polled(Generic[A]):
    """Asks at most every ``every_s``; what came before stays, with the problem, where there is no answer."""

    def __init__(
        self, empty: A, ask: Callable[[], Awaitable[A]], clock: Callable[[], float], every_s: float = 0.0
    ) -> None:
        self._latest, self._ask, self._clock, self._every_s = empty, ask, clock, every_s
        self.due_s = 0.0

    async def refresh(self) -> None:
        if self._clock() < self.due_s:
            return
        try:
            self._latest = await self._ask()
            self.due_s = self._clock() + self._every_s
        except FAILURES as error:
            self._latest = replace(self._latest, problem=sentence(error))

    async def latest(self) -> A:
        return self._latest


class Background:
    """Reads in a task of its own, so that the rest of its feed, and what is refreshed together with it as the cluster
    changes, does not wait for a slow server. ``read`` gives the seconds after which it is due again."""

    def __init__(self, read: Callable[[], Awaitable[float]], clock: Callable[[], float]) -> None:
        self._read, self._clock, self._due_s = read, clock, 0.0
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Unless it reads already, or is not due."""
        if (self.task is None or self.task.done()) and self._clock() >= self._due_s:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        self._due_s = self._clock() + await self._read()


class Fixed(Generic[T]):
    """Data that needs no refresh, computed anew for each page where ``value`` does so."""

    def __init__(self, value: Callable[[], T]) -> None:
        self._value = value

    async def refresh(self) -> None:
        pass

    async def latest(self) -> T:
        return self._value()


def sentence(error: Exception) -> str:
    """What a failure says to a reader of the pages."""
    return error.reason.message if isinstance(error, EndpointFailure) else f"{error}"


AnyFeed = Feed[Any]
