"""Live demand: the last two weeks of buckets of each service, as they were pushed to the endpoint.

One record per service on SQLite under KOPT_HOME, or in the Redis of the online store, which all replicas share. A
record is changed in one step, so that several writers lose nothing. What is pushed again changes nothing; a restated
bucket replaces what was known, a late one fills its gap, and a gap takes nothing away.
"""

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kopt.core.settings import Settings
from kopt.core.sqlite_files import write_ahead
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.rows import FeatureStoreError

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Change = Callable[["Record | None"], "Record | None"]

KEPT_S = 14 * 86_400
"""Features look eight days back, and the first answer replays four days of them."""
KEPT_BUCKETS = KEPT_S // GRID_S
MOST_SERVICES = 20_000
"""Of all owners: 32 KiB each."""
_REDIS_S = 1.0
_SCHEMA = """
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS history (
    service TEXT PRIMARY KEY, owner TEXT NOT NULL, newest INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS age ON history (newest);
"""


class TooManyServicesError(FeatureStoreError):
    """No more services can be kept, of this owner or of all."""


@dataclass(frozen=True)
class Record:
    """Buckets ``first`` … of the grid since 1970, shape (n,), NaN for gaps; begins and ends with a known one."""

    owner: str
    first: int
    value: Array

    @property
    def newest(self) -> int:
        return self.first + len(self.value) - 1

    def to_bytes(self) -> bytes:
        header = json.dumps({"owner": self.owner, "first": self.first}).encode()
        return header + b"\n" + self.value.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Record":
        """Raises FeatureStoreError for what is no record."""
        header, _, values = content.partition(b"\n")
        try:
            fields = json.loads(header)
            return cls(str(fields["owner"]), int(fields["first"]), np.frombuffer(values, "<f8").astype(np.float64))
        except (ValueError, KeyError, TypeError) as error:
            raise FeatureStoreError("a history of live demand cannot be read; remove it and push it again") from error

    def series(self, service: str) -> DemandSeries:
        return DemandSeries(service, float(self.first * GRID_S), GRID_S, self.value, start_known=True)


@dataclass(frozen=True)
class Merged:
    """The history after a push, None while nothing is known, and how many buckets of it are new or were restated."""

    series: DemandSeries | None
    changed: int


def merged(before: Record | None, owner: str, buckets: Index, value: Array) -> tuple[Record | None, int]:
    """``before`` with values (NaN: unknown) at ``buckets`` of the grid, in any order, and how many of them changed."""
    is_finite = np.isfinite(value)
    buckets, value = buckets[is_finite], value[is_finite]
    if not len(buckets):
        return before, 0
    newest = int(max(buckets.max(), -1 if before is None else before.newest))
    first = int(min(buckets.min(), newest if before is None else before.first))
    first = max(first, newest - KEPT_BUCKETS + 1)
    result = np.full(newest - first + 1, np.nan)
    if before is not None:
        kept = before.value[max(0, first - before.first) :]
        result[max(before.first, first) - first :][: len(kept)] = kept
    inside = buckets >= first
    places, value = buckets[inside] - first, value[inside]
    changed = int((result[places] != value).sum())
    if before is not None and not changed:
        return before, 0
    result[places] = value
    start = int(np.argmax(np.isfinite(result)))
    return Record(owner if before is None else before.owner, first + start, result[start:]), changed


class Backend(Protocol):
    """Keeps records by service. Raises FeatureStoreError."""

    def read(self, services: Sequence[str]) -> Mapping[str, Record]: ...

    def update(self, service: str, change: Change) -> Record | None:
        """Replaces a record by what ``change`` makes of it, in one step; None where it stays absent."""
        ...

    def owners(self, oldest: int) -> Mapping[str, str]:
        """Owner by service, after those without a bucket since ``oldest`` have been removed."""
        ...

    def close(self) -> None: ...


class LiveHistories:
    """Histories by service, kept by a backend. Methods block on the disk or the network. Thread-safe."""

    def __init__(self, backend: Backend, most: int = MOST_SERVICES) -> None:
        self._backend, self._most = backend, most

    def series(self, services: Sequence[str]) -> dict[str, DemandSeries]:
        """What is known of each service; those without a bucket are absent."""
        records = self._backend.read(services)
        return {service: records[service].series(service) for service in services if service in records}

    def services(self, oldest_s: float) -> list[str]:
        """Those with a bucket since ``oldest_s`` (Unix seconds)."""
        return list(self._backend.owners(int(oldest_s // GRID_S)))

    def merge(self, service: str, owner: str, buckets: Index, value: Array) -> Merged:
        """Adds values (NaN: unknown) at ``buckets``, numbers of the grid since 1970.

        Raises TooManyServicesError for a service that is new where too many are kept already. One owner may fill half.
        """
        changed = 0

        def change(before: Record | None) -> Record | None:
            nonlocal changed
            if before is None:
                self._refuse_too_many(owner, int(buckets.max()) - KEPT_BUCKETS)
            after, changed = merged(before, owner, buckets, value)
            return after

        record = self._backend.update(service, change)
        return Merged(None if record is None else record.series(service), changed)

    def close(self) -> None:
        self._backend.close()

    def _refuse_too_many(self, owner: str, oldest: int) -> None:
        owners = list(self._backend.owners(oldest).values())
        most_per_owner = self._most if not owner else self._most // 2
        if len(owners) >= self._most or owners.count(owner) >= most_per_owner:
            whose, most = ("", self._most) if len(owners) >= self._most else (" of this caller", most_per_owner)
            raise TooManyServicesError(
                f"{most} services{whose} have live demand already, as many as are kept; one that is pushed no more "
                f"gives its place after {KEPT_S // 86_400} days"
            )


class SqliteBackend:
    """One file for all replicas of a machine."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        with _sqlite_errors():
            self._db = sqlite3.connect(path, check_same_thread=False, timeout=10.0, isolation_level=None)
            write_ahead(self._db, time.sleep)
            self._db.executescript(_SCHEMA)

    def read(self, services: Sequence[str]) -> Mapping[str, Record]:
        question = "SELECT record FROM history WHERE service = ?"
        with _sqlite_errors(), self._lock:
            rows = {service: self._db.execute(question, (service,)).fetchone() for service in services}
        return {service: Record.from_bytes(row[0]) for service, row in rows.items() if row is not None}

    def update(self, service: str, change: Change) -> Record | None:
        with _sqlite_errors(), self._lock:
            # Taken before reading: another process must not write in between.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                before = self.read([service]).get(service)
                after = change(before)
                if after is not None and after is not before:
                    row = (service, after.owner, after.newest, after.to_bytes())
                    self._db.execute("INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?)", row)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
        return after

    def owners(self, oldest: int) -> Mapping[str, str]:
        with _sqlite_errors(), self._lock:
            self._db.execute("DELETE FROM history WHERE newest < ?", (oldest,))
            return dict(self._db.execute("SELECT service, owner FROM history").fetchall())

    def close(self) -> None:
        with self._lock:
            self._db.close()


@contextlib.contextmanager
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> FeatureStoreError:
    return FeatureStoreError(f"histories of live demand cannot be kept: {error}; free space or mend the folder")


class RedisBackend:
    """The Redis of the online store. Records of services that have fallen silent expire."""

    def __init__(self, url: str, prefix: str = "kopt:demand") -> None:
        import redis

        self._redis: Any = redis.Redis.from_url(url, socket_timeout=_REDIS_S, socket_connect_timeout=_REDIS_S)
        self._prefix, self._owners = f"{prefix}:history:", f"{prefix}:owners"

    def read(self, services: Sequence[str]) -> Mapping[str, Record]:
        with _redis_errors():
            contents = self._redis.mget([self._prefix + service for service in services]) if services else []
        return {
            service: Record.from_bytes(content)
            for service, content in zip(services, contents, strict=True)
            if content is not None
        }

    def update(self, service: str, change: Change) -> Record | None:
        key = self._prefix + service

        def replace(pipe: Any) -> Record | None:
            content = pipe.get(key)
            before = None if content is None else Record.from_bytes(content)
            after = change(before)
            pipe.multi()
            if after is not None and after is not before:
                pipe.set(key, after.to_bytes(), ex=KEPT_S)
                pipe.hset(self._owners, service, after.owner)
            return after

        with _redis_errors():
            # Again, where another writer came in between.
            record: Record | None = self._redis.transaction(replace, key, value_from_callable=True)
            return record

    def owners(self, oldest: int) -> Mapping[str, str]:
        with _redis_errors():
            owners = {service.decode(): owner.decode() for service, owner in self._redis.hgetall(self._owners).items()}
            present = self._pipelined_exists(list(owners))
            if expired := [service for service, is_present in present.items() if not is_present]:
                self._redis.hdel(self._owners, *expired)
        return {service: owner for service, owner in owners.items() if present[service]}

    def close(self) -> None:
        self._redis.close()

    def _pipelined_exists(self, services: Sequence[str]) -> dict[str, bool]:
        pipe = self._redis.pipeline(transaction=False)
        for service in services:
            pipe.exists(self._prefix + service)
        return dict(zip(services, map(bool, pipe.execute()), strict=True))


@contextlib.contextmanager
def _redis_errors() -> Iterator[None]:
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise FeatureStoreError(
            f"Redis, which keeps the histories of live demand, does not answer ({type(error).__name__}); "
            "start it, or correct KOPT_REDIS_URL"
        ) from error


def open_histories(settings: Settings) -> LiveHistories:
    """On the Redis that the settings name, else on SQLite under the home. Raises FeatureStoreError."""
    if settings.redis_url:
        return LiveHistories(RedisBackend(settings.redis_url))
    return LiveHistories(SqliteBackend(settings.state / "demand.db"))
