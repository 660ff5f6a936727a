"""GPU workloads that wait and run, for the pages: kept by watches, with the answers of ``kopt why``."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.cli.local.pages.watch_problems import is_ready, missing, problems
from kopt.cluster.client.api import Forbidden, Kube, Unauthorized
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, UNFINISHED_PODS, Object, Resource
from kopt.cluster.runtime.informer import Change, Informer, InformerSettings
from kopt.controllers.overview.diagnosis.questions import Predictions
from kopt.controllers.overview.kept import KEPT, Kept
from kopt.controllers.overview.queue_standings import NEEDED, queue_standings
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queue_standing import QueueTreeState
from kopt.core.scheduling.queued import QueueState

_OLDEST_S = 60.0
"""After so long lines are ordered anew even though no object has changed: work at risk goes stale."""
_REST = 10.0
"""Pauses between two orderings, in multiples of what one takes: thousands of workloads take seconds."""


_MOST_EXPLAINED = 40
"""Of what waits, before anybody opens a page; what else one shows is explained then."""


class QueueWatch:
    """Pods, nodes, Jobs, Kueue's objects, queues and PodGroups of KAI's and Volcano's. ``overview`` gives what else is
    read of the cluster, as of now; ``predictions`` knows run times."""

    def __init__(
        self,
        kube: Kube,
        overview: Callable[[], Overview],
        settings: InformerSettings | None = None,
        predictions: Predictions | None = None,
    ) -> None:
        self._overview, self._predictions = overview, predictions
        self._informers = {
            resource: Informer[Object](
                kube, resource, field_selector=UNFINISHED_PODS if resource == PODS else "", keep=keep, settings=settings
            )
            for resource, keep in KEPT.items()
        }
        self._changes, self._changed = 0, asyncio.Event()
        self._news: list[asyncio.Event] = []
        for informer in self._informers.values():
            informer.subscribe(self._count)
        self._versions: tuple[Any, ...] = ()
        self._kept: Kept | None = None
        self._due_s = 0.0

    def _count(self, change: Change[Object]) -> None:
        # A node that reports that it lives is the same as before.
        if change.old != change.new:
            self._changes += 1
            self._changed.set()
            for event in self._news:
                event.set()

    def news(self) -> asyncio.Event:
        """An event of one's own that is set whenever something changes."""
        self._news.append(event := asyncio.Event())
        return event

    @property
    def informers(self) -> Mapping[Resource, Informer[Object]]:
        """Of the kinds that are watched."""
        return self._informers

    async def changed(self) -> None:
        """Return when something has changed since the last time, and ``state`` would read it."""
        await self._changed.wait()
        self._changed.clear()
        await asyncio.sleep(max(0.0, self._due_s - time.monotonic()))

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def state(self) -> QueueState:
        """Of now. What is unreachable is a problem in it, not an exception."""
        overview, informers = self._overview(), tuple(self._informers.values())
        absent = missing(informers)
        state = QueueState(
            cluster=True,
            ready=is_ready(informers) and overview.ready,
            now_s=overview.now_s,
            missing=absent,
            problems=problems(informers),
        )
        if not state.ready:
            return state
        versions = self._changes, absent, overview.pools, overview.ledger, overview.staged
        kept = self._kept
        is_old = kept is None or versions != self._versions or overview.now_s - kept.overview.now_s > _OLDEST_S
        began_s = time.monotonic()
        if kept is None or (is_old and began_s >= self._due_s):
            has_kueue = KUEUE_WORKLOADS.full_name not in absent
            kept = await asyncio.to_thread(self._read, overview, self._documents(), has_kueue)
            self._kept, self._versions = kept, versions
            self._due_s = time.monotonic() + _REST * (time.monotonic() - began_s)
        return replace(state, queued=kept.queued, explain=kept.explain)

    async def standings(self) -> QueueTreeState:
        """The queues of Kueue with what runs and waits in them, without reservations."""
        needed = tuple(self._informers[kind] for kind in NEEDED)
        state = QueueTreeState(
            cluster=True, ready=is_ready(needed), now_s=self._overview().now_s, problems=problems(needed)
        )
        if not state.ready:
            return state
        read = await asyncio.to_thread(queue_standings, self._documents())
        return replace(state, queues=read.queues, local_queues=read.local_queues, skipped=read.skipped)

    def _documents(self) -> Mapping[Resource, Sequence[Object]]:
        return {resource: tuple(informer.objects.values()) for resource, informer in self._informers.items()}

    def _read(self, overview: Overview, documents: Mapping[Resource, Sequence[Object]], has_kueue: bool) -> Kept:
        """With the first that wait explained: a page that is opened has nothing to compute. Blocks."""
        unread = [
            informer.resource.plural
            for informer in self._informers.values()
            if isinstance(informer.error, Forbidden | Unauthorized)
        ]
        kept = Kept(documents, overview, has_kueue=has_kueue, unread=unread, predictions=self._predictions)
        pending = [queued for queued in kept.queued if queued.position is not None]
        kept.explain(pending[:_MOST_EXPLAINED])
        return kept
