"""What pairs of nodes were measured to reach, on SQLite under KOPT_HOME: shared by all replicas of a machine, kept by
caller.

Of one pair, collective and number of GPUs the newest measurement is kept, in whatever order they come; of two of the
same moment the later one, as a pair may be evaluated again. A file that is torn, or a disk that is full, is an error of
that call: the next one opens the file again.
"""

import contextlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.hardware.pairwise import MeasuredPair
from kopt.serving.http.sharing import trim

RETENTION_S = 90 * 86_400
MAX_MEASUREMENTS_OF_CLUSTER = 10_000
"""Of one cluster; the oldest go first."""
MOST_CLUSTERS = 32
"""Of one caller; those without new measurements for longest go first."""
MAX_MEASUREMENTS_OF_ALL, MOST_CLUSTERS_OF_ALL = 100_000, 512
"""Of all callers; the caller that has most loses its oldest."""
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS cluster (
    owner TEXT NOT NULL, name TEXT NOT NULL, stamp TEXT NOT NULL, at_s REAL NOT NULL, PRIMARY KEY (owner, name)
);
CREATE TABLE IF NOT EXISTS pair (
    owner TEXT NOT NULL, cluster TEXT NOT NULL, a TEXT NOT NULL, b TEXT NOT NULL, collective TEXT NOT NULL,
    gpus INTEGER NOT NULL, measured_s REAL NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (owner, cluster, a, b, collective, gpus)
);
CREATE TABLE IF NOT EXISTS node (
    owner TEXT NOT NULL, cluster TEXT NOT NULL, name TEXT NOT NULL, document TEXT, domains TEXT,
    PRIMARY KEY (owner, cluster, name)
);
"""
_UPSERT = """
INSERT INTO pair VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET measured_s = excluded.measured_s,
document = excluded.document WHERE excluded.measured_s >= pair.measured_s
"""
_NODE = """
INSERT INTO node VALUES (?,?,?,?,?) ON CONFLICT DO UPDATE SET
document = coalesce(excluded.document, document), domains = coalesce(excluded.domains, domains)
"""


@dataclass(frozen=True)
class Scope:
    """Whose pairs count: the caller's own; with ``every``, where it has none of a cluster, all callers'."""

    owner: str = ""
    every: bool = True


@dataclass(frozen=True)
class KeptNode:
    """``topology`` is its document; None where nobody has told it."""

    topology: str | None = None
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeptMeasurements:
    """Of one cluster. Another ``stamp`` stands for another content."""

    stamp: str
    measurements: tuple[MeasuredPair, ...] = ()
    nodes: Mapping[str, KeptNode] = field(default_factory=dict)


class PairTable:
    """The store; methods block on the disk. Thread-safe. Raises sqlite3.Error or OSError."""

    def __init__(self, path: Path, most: int = MAX_MEASUREMENTS_OF_CLUSTER) -> None:
        self._path, self._most, self._lock = path, most, threading.Lock()
        self._db: sqlite3.Connection | None = None

    def close(self) -> None:
        with self._lock:
            self._forget()

    def keep(
        self,
        owner: str,
        cluster: str,
        measurements: Sequence[MeasuredPair],
        topologies: Mapping[str, str],
        domains: Mapping[str, Sequence[str]],
        now_s: float,
    ) -> int:
        """How many of the measurements are what is kept now. All of it is kept, or nothing."""
        kept = 0
        with self._open() as db, db:
            for pair in measurements:
                key = (owner, cluster, *pair.nodes, pair.collective.value, pair.gpus_per_node)
                kept += db.execute(_UPSERT, (*key, pair.measured_at, json.dumps(pair.to_dict()))).rowcount
            for name in sorted({*topologies, *domains}):
                levels = json.dumps(list(domains[name])) if name in domains else None
                db.execute(_NODE, (owner, cluster, name, topologies.get(name), levels))
            stamp = (owner, cluster, uuid.uuid4().hex, now_s)
            db.execute(
                "INSERT INTO cluster VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET stamp = excluded.stamp, "
                "at_s = excluded.at_s",
                stamp,
            )
            self._prune(db, owner, cluster, now_s)
        return kept

    def stamp(self, cluster: str, scope: Scope) -> str | None:
        """None where nothing is kept."""
        with self._open() as db:
            return self._stamp(db, cluster, scope)[0]

    def load(self, cluster: str, scope: Scope) -> KeptMeasurements | None:
        """None where nothing is kept."""
        with self._open() as db:
            stamp, owners = self._stamp(db, cluster, scope)
            if stamp is None:
                return None
            newest: dict[tuple[Any, ...], MeasuredPair] = {}
            nodes: dict[str, KeptNode] = {}
            for name in owners:
                of = (name, cluster)
                for (text,) in db.execute("SELECT document FROM pair WHERE owner = ? AND cluster = ?", of):
                    _newest(newest, text)
                rows = db.execute("SELECT name, document, domains FROM node WHERE owner = ? AND cluster = ?", of)
                for node, topology, domains in rows:
                    before = nodes.get(node, KeptNode())
                    levels = tuple(map(str, json.loads(domains))) if domains else before.domains
                    nodes[node] = KeptNode(topology or before.topology, levels)
        return KeptMeasurements(stamp, tuple(newest[key] for key in sorted(newest)), nodes)

    def clusters(self, owner: str | None) -> list[str]:
        """Of one caller or of all."""
        with self._open() as db:
            rows = db.execute(
                "SELECT DISTINCT name FROM cluster WHERE coalesce(?, owner) = owner ORDER BY name", (owner,)
            )
            return [str(name) for (name,) in rows]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._db is None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._db = sqlite3.connect(self._path, check_same_thread=False, timeout=10.0)
                    self._db.executescript(_SCHEMA)
                yield self._db
            except (sqlite3.Error, OSError):
                self._forget()
                raise

    def _forget(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    @staticmethod
    def _stamp(db: sqlite3.Connection, cluster: str, scope: Scope) -> tuple[str | None, list[str]]:
        rows = db.execute("SELECT owner, stamp FROM cluster WHERE name = ? ORDER BY at_s", (cluster,)).fetchall()
        own = [row for row in rows if row[0] == scope.owner]
        used = own or (rows if scope.every else [])
        return ("+".join(stamp for _, stamp in used) or None, [name for name, _ in used])

    def _prune(self, db: sqlite3.Connection, owner: str, cluster: str, now_s: float) -> None:
        of = (owner, cluster)
        db.execute("DELETE FROM pair WHERE owner = ? AND cluster = ? AND measured_s < ?", (*of, now_s - RETENTION_S))
        db.execute(
            "DELETE FROM pair WHERE rowid IN (SELECT rowid FROM pair WHERE owner = ? AND cluster = ? "
            "ORDER BY measured_s DESC LIMIT -1 OFFSET ?)",
            (*of, self._most),
        )
        db.execute(
            "DELETE FROM node WHERE rowid IN (SELECT rowid FROM node WHERE owner = ? AND cluster = ? "
            "ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
            (*of, self._most),
        )
        old = db.execute(
            "SELECT name FROM cluster WHERE owner = ? ORDER BY at_s DESC LIMIT -1 OFFSET ?", (owner, MOST_CLUSTERS)
        ).fetchall()
        for (name,) in old:
            db.execute("DELETE FROM pair WHERE owner = ? AND cluster = ?", (owner, name))
            db.execute("DELETE FROM node WHERE owner = ? AND cluster = ?", (owner, name))
            db.execute("DELETE FROM cluster WHERE owner = ? AND name = ?", (owner, name))
        of_cluster, key = ("owner", "cluster"), "owner, cluster, a, b, collective, gpus"
        trim(db, "pair", key, "measured_s", MAX_MEASUREMENTS_OF_ALL, of_cluster)
        trim(db, "node", "owner, cluster, name", "rowid", MAX_MEASUREMENTS_OF_ALL, of_cluster)
        if trim(db, "cluster", "owner, name", "at_s", MOST_CLUSTERS_OF_ALL, ("owner",)):
            for table in ("pair", "node"):
                db.execute(f"DELETE FROM {table} WHERE (owner, cluster) NOT IN (SELECT owner, name FROM cluster)")


def _newest(newest: dict[tuple[Any, ...], MeasuredPair], text: str) -> None:
    try:
        measured_pair = MeasuredPair.from_dict(json.loads(text))
    except (BandwidthError, ValueError, RecursionError):
        # Kept by another version.
        return
    key = (measured_pair.nodes, measured_pair.collective.value, measured_pair.gpus_per_node)
    if key not in newest or newest[key].measured_at <= measured_pair.measured_at:
        newest[key] = measured_pair
