"""Counts of busy GPUs by hour and pool, in a database: writing an hour again changes nothing."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.errors import ApiError
from kopt.cluster.client.prometheus import Prometheus, PrometheusError, series_of
from kopt.cluster.client.resources import KUEUE_FLAVORS, NODES, Object, Resource
from kopt.cluster.workloads.kueue.pool_sizes import node_pools
from kopt.controllers.meter.claims import RESOURCE_SLICES
from kopt.core.untrusted import decode
from kopt.policies.efficiency.busy_counts import (
    DAY_S,
    EVERY_S,
    HOUR_S,
    KEEP_S,
    QUERY,
    SETTLED_S,
    BusyCounts,
    by_pool,
    counts_by_node,
    hours_until,
)
from kopt.policies.efficiency.groups import GONE
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.database.opening import Location, open_database

_LOG = logging.getLogger(__name__)
_BACK_S = 15 * DAY_S
"""How far back hours are looked for: as long as Prometheus keeps series unless configured otherwise."""
_FAILED_S = 60.0
_LARGEST_BYTES = 64 << 20
"""A node has up to 21 series of twelve numbers an hour, 6 KiB."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS busy_hours (
    start_s INTEGER NOT NULL, pool TEXT NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (start_s, pool)) WITHOUT ROWID
"""
_WRITE = (
    "INSERT INTO busy_hours (start_s, pool, counts) VALUES (?, ?, ?) "
    "ON CONFLICT (start_s, pool) DO UPDATE SET counts = excluded.counts"
)


class BusyHours:
    """Methods block, and raise DatabaseError."""

    def __init__(self, where: Location, *, read_only: bool = False) -> None:
        self._database = open_database(where, _SCHEMA, read_only=read_only)

    def close(self) -> None:
        self._database.close()

    def store(self, start_s: int, by_pool: Mapping[str, BusyCounts], now_s: float) -> None:
        """An hour, all of it or nothing; what is older than ``KEEP_S`` goes."""
        with self._database.transaction() as transaction:
            rows = ((start_s, pool, json.dumps(counts.counts)) for pool, counts in by_pool.items())
            transaction.execute_many(_WRITE, rows)
            transaction.execute("DELETE FROM busy_hours WHERE start_s < ?", (int(now_s) - KEEP_S,))

    def recorded(self, since_s: float) -> frozenset[int]:
        """When the hours that are there begin."""
        rows = self._database.query("SELECT DISTINCT start_s FROM busy_hours WHERE start_s >= ?", (int(since_s),))
        return frozenset(int(start_s) for (start_s,) in rows)

    def hours(self, since_s: float) -> Iterator[tuple[int, str, BusyCounts]]:
        """Begin, pool and counts, in the order of time."""
        rows = self._database.query(
            "SELECT start_s, pool, counts FROM busy_hours WHERE start_s >= ? ORDER BY start_s, pool", (int(since_s),)
        )
        for start_s, pool, counts in rows:
            try:
                read = BusyCounts(tuple(decode(counts)))
            except (ValueError, TypeError) as error:
                raise DatabaseError(f"the row of {start_s} in busy_hours holds no counts") from error
            yield int(start_s), str(pool), read


def due_hours(store: BusyHours, now_s: float, span_s: float) -> list[int]:
    """When those of a window begin that are not stored yet."""
    hours = hours_until(now_s, span_s)
    recorded = store.recorded(hours[0])
    return [start_s for start_s in hours if start_s not in recorded]


async def record_hours(
    store: BusyHours, server: Prometheus, due: Iterable[int], pools: Mapping[str, str], now_s: float
) -> AsyncIterator[tuple[int, bool]]:
    """Read and store hours; each with whether there was anything of it. ``pools`` are by node.

    Raises PrometheusError and DatabaseError; the hours before stay stored.
    """
    for start_s in due:
        answer = await server.over(QUERY, start_s + EVERY_S, start_s + HOUR_S, EVERY_S, _LARGEST_BYTES)
        try:
            by_node = counts_by_node(series_of(answer))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PrometheusError("BadAnswer", "these are not counts by node as Prometheus answers them") from error
        if by_node:
            await asyncio.to_thread(store.store, start_s, by_pool(by_node, pools, GONE), now_s)
        yield start_s, bool(by_node)


class BusyRecorder:
    """``step`` stores the hours that have ended, those that were missed too, while Prometheus has them."""

    def __init__(
        self, kube: Kube, store: BusyHours, server: Prometheus, clock: Callable[[], float] = time.time
    ) -> None:
        self._kube, self._store, self._server, self._clock = kube, store, server, clock
        self._empty: set[int] = set()
        """Hours of more than a day ago of which Prometheus has nothing: they are not asked for again."""
        self.errors = 0

    async def step(self) -> float:
        """In how many seconds the next hour can be read."""
        now_s = self._clock()
        try:
            due = await asyncio.to_thread(due_hours, self._store, now_s, _BACK_S)
            self._empty.intersection_update(due)
            await self._record([start_s for start_s in due if start_s not in self._empty], now_s)
        except (ApiError, DatabaseError, PrometheusError) as error:
            self.errors += 1
            _LOG.warning("how busy GPUs were is not recorded for now: %s", error)
            return _FAILED_S
        return HOUR_S - (now_s - SETTLED_S) % HOUR_S + 1.0

    async def _record(self, due: Collection[int], now_s: float) -> None:
        if not due:
            return
        flavors, nodes, slices = [await self._listed(kind) for kind in (KUEUE_FLAVORS, NODES, RESOURCE_SLICES)]
        pools = node_pools(flavors, nodes, slices)
        async for start_s, stored in record_hours(self._store, self._server, due, pools, now_s):
            if not stored and start_s < now_s - DAY_S:
                self._empty.add(start_s)

    async def _listed(self, kind: Resource) -> list[Object]:
        """None of a kind that the cluster does not have."""
        try:
            return list((await self._kube.list(await self._kube.served(kind))).items)
        except NotFound:
            return []
