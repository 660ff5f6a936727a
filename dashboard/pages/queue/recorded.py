"""What components did to a workload, by the endpoint's audit log: asked for when its reader opens it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kopt.core.recorded_actions import RecordedAction
from kopt.core.scheduling.queued import Queued
from kopt.dashboard.data.access import ALL_NAMESPACES, Holds, pods_in
from kopt.dashboard.data.feed import FAILURES, Connections, Feed, Fixed
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


class _Records:
    def __init__(self, connections: Connections) -> None:
        self._client, self._clock = connections.client, connections.clock
        self._kept: dict[tuple[str, str], tuple[float, Recorded]] = {}

    async def of(self, queued: Sequence[Queued]) -> Recorded:
        key = queued[0].namespace, queued[0].name
        due_s, recorded = self._kept.get(key, (0.0, Recorded()))
        if self._clock() < due_s:
            return recorded
        recorded = await self._asked(queued)
        while len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = self._clock() + (_FRESH_PROBLEM_S if recorded.problem else _FRESH_S), recorded
        return recorded

    async def _asked(self, queued: Sequence[Queued]) -> Recorded:
        objects = [named for each in queued for named in ((each.kind, each.name), ("Workload", each.workload))]
        wanted = {named for named in objects[:_MOST_OBJECTS] if all(named)}
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return Recorded(await actions_on(self._client, queued[0].namespace, wanted))
        except (*FAILURES, TimeoutError):
            return Recorded(problem=_AWAY)


def _open(connections: Connections) -> Fixed[RecordedOf]:
    records = _Records(connections)
    return Fixed(lambda: records.of)


async def _none(_: Sequence[Queued]) -> Recorded:
    return Recorded()


def _restrict(recorded_of: RecordedOf, holds: Holds) -> RecordedOf:
    """It is asked about workloads that the queue shows; what it says of those of other namespaces names none."""
    if holds(pods_in(ALL_NAMESPACES)):
        return recorded_of

    async def of(queued: Sequence[Queued]) -> Recorded:
        return masked(await recorded_of(queued), lambda namespace: namespace != queued[0].namespace)

    return of


RECORDED: Feed[RecordedOf] = Feed("recorded actions", lambda: _none, _open, _restrict)
