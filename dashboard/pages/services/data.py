"""Earlier forecasts of a service beside what came, asked for when its page is opened."""

import asyncio
from collections.abc import Awaitable, Callable

from kopt.core.prediction import ModelVersion
from kopt.dashboard.data.access import Holds
from kopt.dashboard.data.feed import Connections, Feed, Fixed
from kopt.dashboard.data.sources import Endpoint, Service
from kopt.dashboard.pages.services.replay import PAST_KEPT, Past, Replays

PastOf = Callable[[Service, Endpoint], Awaitable[Past]]
"""Earlier forecasts of one service by the endpoint's model."""


class _PastForecasts:
    """Replays, each kept until the history or the model changes."""

    def __init__(self, connections: Connections) -> None:
        self._replays, self._patience_s = Replays(connections.client), connections.patience_s
        self._lock = asyncio.Lock()
        self._tasks: dict[str, tuple[tuple[float, ModelVersion | None], asyncio.Task[Past]]] = {}

    async def of(self, service: Service, endpoint: Endpoint) -> Past:
        """Replayed forecasts; what takes longer than a reader's patience is finished in the background."""
        key = (float(service.series.times_s[-1]), endpoint.model)
        kept = self._tasks.get(service.name)
        if kept is None or kept[0] != key or (kept[1].done() and _failed(kept[1])):
            while len(self._tasks) >= PAST_KEPT:
                self._tasks.pop(next(iter(self._tasks)))[1].cancel()
            kept = (key, asyncio.create_task(self._replay(service, endpoint)))
            self._tasks[service.name] = kept
        done, _ = await asyncio.wait([kept[1]], timeout=self._patience_s)
        if not done:
            return Past(problem="The model is being asked about the last two days.", pending=True)
        return kept[1].result()

    async def _replay(self, service: Service, endpoint: Endpoint) -> Past:
        if endpoint.problem:
            return Past(problem="The endpoint does not answer, so earlier forecasts cannot be asked for.")
        # One at a time: the pages must not crowd out the endpoint's other callers.
        async with self._lock:
            return await self._replays.of(service.series, endpoint.model)


def _failed(task: "asyncio.Task[Past]") -> bool:
    return task.cancelled() or task.exception() is not None or bool(task.result().problem)


def _open(connections: Connections) -> Fixed[PastOf]:
    forecasts = _PastForecasts(connections)
    return Fixed(lambda: forecasts.of)


async def _none(service: Service, endpoint: Endpoint) -> Past:
    return Past()


def _unrestricted(past_of: PastOf, _: Holds) -> PastOf:
    """It is asked about services that the snapshot shows, and knows no others."""
    return past_of


PAST: Feed[PastOf] = Feed("past forecasts", lambda: _none, _open, _unrestricted)
