"""The platform's own ``Source``: runs the feeds of all pages over KOPT_HOME, endpoint, registry and cluster."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

from kopt.dashboard.budget import CpuBudget
from kopt.dashboard.data.feed import AnyFeed, Connections, Feed, Reader, Versions
from kopt.dashboard.data.histories import Histories
from kopt.dashboard.data.records import NO_RECORDS, Records
from kopt.dashboard.data.served import Served
from kopt.dashboard.data.snapshot import SNAPSHOT, SnapshotReader
from kopt.dashboard.data.sources import Cluster
from kopt.dashboard.pages.pages import PAGES
from kopt.serving.client.client import AsyncPredictionClient

LOG = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE_S = 2.5
"""How long a page waits for replayed forecasts; later ones appear when it refreshes."""
UNWELL_REFRESH_S = 2.0
"""How often an endpoint that does not answer is asked: a page opened while it starts should not stay wrong for long."""
FEEDS: Sequence[AnyFeed] = tuple(dict.fromkeys(feed for page in PAGES for feed in page.feeds))
"""Of all pages, each once; the snapshot is every page's and is not among them."""


class LiveSource:
    """Refreshes in the background (``run``); pages read what came last and never wait for it."""

    def __init__(
        self,
        histories: Histories,
        client: AsyncPredictionClient,
        registry: Versions | None,
        *,
        url: str,
        home: Path,
        clock: Callable[[], float] = time.time,
        patience_s: float = PATIENCE_S,
        cluster: Cluster | None = None,
        records: Records = NO_RECORDS,
        cluster_name: str = "",
        budget: CpuBudget | None = None,
    ) -> None:
        """``budget``: of what the cluster's watch hears of. A large cluster that changes all the time would else have
        the pages' process for itself."""
        served = Served(client)
        self.connections = Connections(
            histories,
            client,
            registry,
            cluster,
            served,
            url,
            home,
            clock,
            patience_s,
            records,
            cluster_name,
        )
        self._snapshot = SnapshotReader(self.connections)
        self._readers: dict[AnyFeed, Reader[object]] = {feed: feed.open(self.connections) for feed in FEEDS}
        self._readers[SNAPSHOT] = self._snapshot
        self._budget = budget or CpuBudget()
        self._failing: set[AnyFeed] = set()
        self._changes, self._news = Counter[AnyFeed](), asyncio.Condition()

    async def run(self, every_s: float) -> None:
        """Refresh every feed by itself until cancelled: where one waits for a slow server the others go on. What is
        unforeseen is logged and shown; the pages live on."""
        async with asyncio.TaskGroup() as tasks:
            for feed in (SNAPSHOT, *FEEDS):
                tasks.create_task(self._repeat(feed, every_s))

    async def _repeat(self, feed: AnyFeed, every_s: float) -> None:
        is_followed = feed.has_changed is not None and self.connections.cluster is not None
        while True:
            try:
                async with self._budget.spent() if is_followed else nullcontext():
                    await self.refresh(feed)
                self._failing.discard(feed)
            except Exception:  # the background's own edge
                LOG.exception("refresh of %s failed", feed.name)
                self._failing.add(feed)
            if self._failing:
                self._snapshot.report("The pages could not refresh their data; their log says why.")
            unwell = (await self._snapshot.latest()).endpoint.problem
            await asyncio.sleep(min(every_s, UNWELL_REFRESH_S) if unwell else every_s)

    async def follow(self) -> None:
        """Refresh what the cluster's watch hears of, until cancelled."""
        if self.connections.cluster is None:
            return
        followed: dict[Any, list[AnyFeed]] = {}
        for feed in FEEDS:
            if feed.has_changed is not None:
                followed.setdefault((feed.news, feed.between_s), []).append(feed)
        async with asyncio.TaskGroup() as tasks:
            for feeds in followed.values():
                tasks.create_task(self._follow(self.connections.cluster, feeds))

    async def _follow(self, cluster: Cluster, feeds: Sequence[AnyFeed]) -> None:
        """Those of one kind of news."""
        while True:
            await feeds[0].news(cluster)
            try:
                async with self._budget.spent():
                    await self.refresh(*feeds)
            except Exception:  # the background's own edge
                LOG.exception("what has changed in the cluster could not be read")
            await asyncio.sleep(feeds[0].between_s)

    async def refresh(self, *feeds: AnyFeed) -> None:
        """Refresh these feeds, or all."""
        await asyncio.gather(*[self._refresh(feed) for feed in feeds or (SNAPSHOT, *FEEDS)])

    async def _refresh(self, feed: AnyFeed) -> None:
        reader = self._readers[feed]
        before = await reader.latest()
        await reader.refresh()
        if feed.has_changed is not None and feed.has_changed(before, await reader.latest()):
            self._changes[feed] += 1
            async with self._news:
                self._news.notify_all()

    async def next_change(self, feed: AnyFeed, since: int) -> int:
        async with self._news:
            await self._news.wait_for(lambda: self._changes[feed] != since)
        return self._changes[feed]

    def reader(self, feed: Feed[T]) -> Reader[T]:
        """The feed at work."""
        return cast(Reader[T], self._readers[feed])

    async def latest(self, feed: Feed[T]) -> T:
        return await self.reader(feed).latest()
