"""What pairs of nodes were measured to reach, kept by caller in the database that the replicas share.

Of one pair, collective and number of GPUs the newest measurement is kept, in whatever order they come; of two of the
same moment the later one, as a pair may be evaluated again.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.hardware.pairwise import MeasuredPair
from kopt.serving.base.database.interface import NO_LIMIT, Transaction
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.http.sharing import trim

RETENTION_S = 90 * 86_400
MAX_MEASUREMENTS_OF_CLUSTER = 10_000
"""Of one cluster; the oldest go first."""
MOST_CLUSTERS = 32
"""Of one caller; those without new measurements for longest go first."""
MAX_MEASUREMENTS_OF_ALL, MOST_CLUSTERS_OF_ALL = 100_000, 512
"""Of all callers; the caller that has most loses its oldest."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cluster (
    owner TEXT NOT NULL, name TEXT NOT NULL, stamp TEXT NOT NULL, at_s REAL NOT NULL, PRIMARY KEY (owner, name)
);
CREATE TABLE IF NOT EXISTS pair (
    owner TEXT NOT NULL, cluster TEXT NOT NULL, a TEXT NOT NULL, b TEXT NOT NULL, collective TEXT NOT NULL,
    gpus INTEGER NOT NULL, measured_s REAL NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (owner, cluster, a, b, collective, gpus)
);
CREATE TABLE IF NOT EXISTS node (/* rowid */
    owner TEXT NOT NULL, cluster TEXT NOT NULL, name TEXT NOT NULL, document TEXT, domains TEXT,
    PRIMARY KEY (owner, cluster, name)
);
"""
_UPSERT = """
INSERT INTO pair VALUES (?,?,?,?,?,?,?,?)
ON CONFLICT (owner, cluster, a, b, collective, gpus) DO UPDATE SET measured_s = excluded.measured_s,
document = excluded.document WHERE excluded.measured_s >= pair.measured_s
"""
_NODE = """
INSERT INTO node (owner, cluster, name, document, domains) VALUES (?,?,?,?,?)
ON CONFLICT (owner, cluster, name) DO UPDATE SET
document = coalesce(excluded.document, node.document), domains = coalesce(excluded.domains, node.domains)
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
    """The store; methods block on the disk or the network. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location, most: int = MAX_MEASUREMENTS_OF_CLUSTER) -> None:
        self._most = most
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

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
        # One writer at a time: limits are of all clusters together.
        with self._db.transaction("pairs") as db:
            for pair in measurements:
                key = (owner, cluster, *pair.nodes, pair.collective.value, pair.gpus_per_node)
                kept += db.execute(_UPSERT, (*key, pair.measured_at, json.dumps(pair.to_dict())))
            for name in sorted({*topologies, *domains}):
                levels = json.dumps(list(domains[name])) if name in domains else None
                db.execute(_NODE, (owner, cluster, name, topologies.get(name), levels))
            stamp = (owner, cluster, uuid.uuid4().hex, now_s)
            db.execute(
                "INSERT INTO cluster VALUES (?,?,?,?) ON CONFLICT (owner, name) DO UPDATE SET "
                "stamp = excluded.stamp, at_s = excluded.at_s",
                stamp,
            )
            self._prune(db, owner, cluster, now_s)
        return kept

    def stamp(self, cluster: str, scope: Scope) -> str | None:
        """None where nothing is kept."""
        return self._stamp(cluster, scope)[0]

    def load(self, cluster: str, scope: Scope) -> KeptMeasurements | None:
        """None where nothing is kept."""
        stamp, owners = self._stamp(cluster, scope)
        if stamp is None:
            return None
        newest: dict[tuple[Any, ...], MeasuredPair] = {}
        nodes: dict[str, KeptNode] = {}
        for name in owners:
            of = (name, cluster)
            for (text,) in self._db.query("SELECT document FROM pair WHERE owner = ? AND cluster = ?", of):
                _newest(newest, text)
            rows = self._db.query("SELECT name, document, domains FROM node WHERE owner = ? AND cluster = ?", of)
            for node, topology, domains in rows:
                before = nodes.get(node, KeptNode())
                levels = tuple(map(str, json.loads(domains))) if domains else before.domains
                nodes[node] = KeptNode(topology or before.topology, levels)
        return KeptMeasurements(stamp, tuple(newest[key] for key in sorted(newest)), nodes)

    def clusters(self, owner: str | None) -> list[str]:
        """Of one caller or of all."""
        question = "SELECT DISTINCT name FROM cluster WHERE coalesce(?, owner) = owner ORDER BY name"
        return [str(name) for (name,) in self._db.query(question, (owner,))]

    def _stamp(self, cluster: str, scope: Scope) -> tuple[str | None, list[str]]:
        rows = self._db.query("SELECT owner, stamp FROM cluster WHERE name = ? ORDER BY at_s", (cluster,))
        own = [row for row in rows if row[0] == scope.owner]
        used = own or (rows if scope.every else [])
        return ("+".join(stamp for _, stamp in used) or None, [name for name, _ in used])

    def _prune(self, db: Transaction, owner: str, cluster: str, now_s: float) -> None:
        of = (owner, cluster)
        db.execute("DELETE FROM pair WHERE owner = ? AND cluster = ? AND measured_s < ?", (*of, now_s - RETENTION_S))
        db.execute(
            "DELETE FROM pair WHERE (owner, cluster, a, b, collective, gpus) IN (SELECT owner, cluster, a, b, "
            "collective, gpus FROM pair WHERE owner = ? AND cluster = ? ORDER BY measured_s DESC LIMIT ? OFFSET ?)",
            (*of, NO_LIMIT, self._most),
        )
        db.execute(
            "DELETE FROM node WHERE rowid IN (SELECT rowid FROM node WHERE owner = ? AND cluster = ? "
            "ORDER BY rowid DESC LIMIT ? OFFSET ?)",
            (*of, NO_LIMIT, self._most),
        )
        old = db.query(
            "SELECT name FROM cluster WHERE owner = ? ORDER BY at_s DESC LIMIT ? OFFSET ?",
            (owner, NO_LIMIT, MOST_CLUSTERS),
        )
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
