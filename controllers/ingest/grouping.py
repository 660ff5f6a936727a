"""One query for many services: reads that are due at the same time are gathered by engine and names of labels.

Where a grouped query fails, or is of no use for one of its sources, the sources are asked about singly, so that what is
wrong with one of them costs the others nothing but time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kopt.cluster.client.prometheus import PrometheusError
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.prometheus import Buckets

LARGEST_GROUP = 250
"""Services in one query: its text stays below 100 KiB, and its answer far below what is read."""
MOST_BUCKETS = 24
"""A longer span is read singly: a back-fill of many services at once would be too large an answer."""
_GATHER_S = 0.05
"""All sources wake at the end of a bucket, within milliseconds."""
Read = Callable[[DemandSource, int, int], Awaitable[Buckets]]
ReadGroup = Callable[[Sequence[DemandSource], int, int], Awaitable[list[Buckets | PrometheusError]]]
"""The buckets of each source, or what is wrong with it. Raises PrometheusError where the query as a whole fails."""
_Key = tuple[str, tuple[str, ...], int, int]
_Requests = list[tuple[DemandSource, "asyncio.Future[Buckets]"]]


class GroupedReads:
    """``single`` reads a source by a query of its own; ``slots`` limits how many queries are under way."""

    def __init__(self, single: Read, group: ReadGroup, slots: asyncio.Semaphore, gather_s: float = _GATHER_S) -> None:
        self._single, self._group, self._slots, self._gather_s = single, group, slots, gather_s
        self._requests: dict[_Key, _Requests] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def takes(source: DemandSource, first: int, last: int) -> bool:
        """Whether this source and span can share a query with others."""
        return bool(source.engine and source.labels) and last - first < MOST_BUCKETS

    async def read(self, source: DemandSource, first: int, last: int) -> Buckets:
        """The buckets of ``source``. Raises PrometheusError."""
        key = source.engine.casefold(), tuple([name for name, _ in source.labels]), first, last
        requests = self._requests.setdefault(key, [])
        if not requests:
            # Kept, as the loop itself holds tasks only weakly.
            task = asyncio.create_task(self._gathered(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        result: asyncio.Future[Buckets] = asyncio.get_running_loop().create_future()
        requests.append((source, result))
        return await result

    async def _gathered(self, key: _Key) -> None:
        await asyncio.sleep(self._gather_s)
        requests = self._requests.pop(key)
        parts = [requests[i : i + LARGEST_GROUP] for i in range(0, len(requests), LARGEST_GROUP)]
        await asyncio.gather(*(self._read_part(part, *key[2:]) for part in parts))

    async def _read_part(self, part: _Requests, first: int, last: int) -> None:
        try:
            await self._ask(part, first, last)
        except Exception as error:  # noqa: BLE001 - edge of a task: those who wait have to learn of it
            for _, result in part:
                if not result.done():
                    result.set_exception(error)

    async def _ask(self, part: _Requests, first: int, last: int) -> None:
        sources = [source for source, _ in part]
        try:
            if len(part) == 1:
                raise PrometheusError("Alone", "a query of its own is simpler")
            async with self._slots:
                answers = await self._group(sources, first, last)
        except PrometheusError as error:
            if error.reason in ("Unreachable", "NoToken"):
                raise
            await asyncio.gather(*(self._ask_singly(source, result, first, last) for source, result in part))
            return
        for (_, result), answer in zip(part, answers, strict=True):
            _settle(result, answer)

    async def _ask_singly(self, source: DemandSource, result: "asyncio.Future[Buckets]", first: int, last: int) -> None:
        try:
            async with self._slots:
                answer: Buckets | PrometheusError = await self._single(source, first, last)
        except PrometheusError as error:
            answer = error
        _settle(result, answer)


def _settle(result: "asyncio.Future[Buckets]", answer: Buckets | PrometheusError) -> None:
    if result.done():
        return  # it is not followed any more
    if isinstance(answer, PrometheusError):
        result.set_exception(answer)
    else:
        result.set_result(answer)
