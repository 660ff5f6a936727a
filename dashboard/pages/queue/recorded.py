"""What components did to a workload, by the endpoint's audit log: asked for when its reader opens it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from kopt.core.recorded_actions import RecordedAction
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Queued
from kopt.dashboard.data.access import ALL_NAMESPACES, Holds, pods_in
from kopt.dashboard.data.feed import FAILURES, Connections, Feed
from kopt.dashboard.data.masking import masked
from kopt.serving.client.recorded import actions_on

_PATIENCE_S = 1.0
"""The page does not wait for longer."""
_FRESH_S, _FRESH_PROBLEM_S = 10.0, 30.0
"""A page that is open asks again and again."""
_MOST_KEPT, _MOST_OBJECTS = 200, 4
_AWAY = "What was done to it is in the endpoint's audit log, which does not answer these pages now."


@dataclass(frozen=True)
class Recorded:
    """The newest first; ``problem`` is a sentence where they are not known."""

    actions: tuple[RecordedAction, ...] = ()
    problem: str = ""


RecordedOf = Callable[[Sequence[Queued]], Awaitable[Recorded]]
"""What was done to workloads of one name and namespace."""


async def _none(_: Sequence[Queued]) -> Recorded:
    return Recorded()


@dataclass(frozen=True)
class RecordedActions:
    """``namespaces`` are those that records may name, None before they are known."""

    of: RecordedOf = _none
    namespaces: frozenset[str] | None = None


class _Records:
    def __init__(self, connections: Connections) -> None:
        self._client, self._clock, self._cluster = connections.client, connections.clock, connections.cluster
        self._kept: dict[tuple[str, ...], tuple[float, Recorded]] = {}
        self._namespaces: frozenset[str] | None = None

    async def refresh(self) -> None:
        """A namespace that once had workloads stays known: records are older than what is in the queue."""
        if self._cluster is None:
            return
        queue, overview = await self._cluster.queue(), self._cluster.overview()
        if queue.ready and overview.ready:
            known = {each.namespace for each in queue.queued}
            for entry in overview.ledger:
                known |= {entry.eviction.namespace, entry.eviction.for_whom.partition("/")[0]}
            self._namespaces = (self._namespaces or frozenset()) | (known - {""})

    async def latest(self) -> RecordedActions:
        return RecordedActions(self.of, self._namespaces)

    async def of(self, queued: Sequence[Queued]) -> Recorded:
        key = queued[0].namespace, queued[0].name, *sorted(each.uid for each in queued)
        due_s, recorded = self._kept.get(key, (0.0, Recorded()))
        if self._clock() < due_s:
            return recorded
        recorded = await self._asked(queued)
        while len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = self._clock() + (_FRESH_PROBLEM_S if recorded.problem else _FRESH_S), recorded
        return recorded

    async def _asked(self, queued: Sequence[Queued]) -> Recorded:
        objects = [named for each in queued for named in _objects(each)]
        wanted = {named for named in objects[:_MOST_OBJECTS] if named[0] and named[1]}
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return Recorded(await actions_on(self._client, queued[0].namespace, wanted))
        except (*FAILURES, TimeoutError):
            return Recorded(problem=_AWAY)


def _objects(queued: Queued) -> Iterator[tuple[str, str, str]]:
    """By kind, name and uid: the job, and what Kueue has of it."""
    is_kueues = queued.system is System.KUEUE
    yield queued.kind, queued.name, queued.owner_uid or ("" if is_kueues else queued.uid)
    yield "Workload", queued.workload, queued.uid if is_kueues else ""


def _restrict(recorded: RecordedActions, holds: Holds) -> RecordedActions:
    """It is asked about workloads that the queue shows; what it says of those of other namespaces names none."""
    namespaces = recorded.namespaces
    # Every right is asked for before any answer counts, so that all of them are looked up at once.
    hidden = frozenset(name for name in sorted(namespaces or ()) if not holds(pods_in(name)))
    if holds(pods_in(ALL_NAMESPACES)):
        return recorded

    async def of(queued: Sequence[Queued]) -> Recorded:
        own = queued[0].namespace
        return masked(await recorded.of(queued), lambda name: name != own if namespaces is None else name in hidden)

    return RecordedActions(of, namespaces)


RECORDED: Feed[RecordedActions] = Feed("recorded actions", RecordedActions, _Records, _restrict)
"""What components did to objects, by the audit log that the prediction endpoint keeps."""
