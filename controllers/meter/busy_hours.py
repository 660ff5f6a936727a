"""Counts of busy GPUs by hour and pool, in a database: writing an hour again changes nothing."""

import json
from collections.abc import Iterator, Mapping

from kopt.policies.efficiency.busy_counts import BusyCounts
from kopt.serving.base.database.opening import Location, open_database

KEEP_S = 400 * 86_400
"""As long as the meter keeps intervals by default."""
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

    def __init__(self, where: Location) -> None:
        self._database = open_database(where, _SCHEMA)

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
            yield int(start_s), str(pool), BusyCounts(tuple(json.loads(counts)))
