"""Intervals in a database: one SQL for SQLite and PostgreSQL, and keys by which writing again changes nothing."""

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kopt.core.cost.metering import (
    Attributes,
    Capacity,
    Demand,
    MeteredNode,
    MeteredPod,
    Milliseconds,
    Offer,
    Rule,
    Segment,
)
from kopt.core.cost.prices import PriceBook
from kopt.core.units import WHOLE_GPU
from kopt.core.untrusted import decode_mapping
from kopt.policies.cost import Changes, Meter, Usage
from kopt.serving.base.database.interface import Column, Database, Transaction
from kopt.serving.base.database.opening import Location, open_database

_OPEN_MS = 1 << 62
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cost_segments (
    node_uid TEXT NOT NULL, subject TEXT NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    milli INTEGER NOT NULL, offer TEXT NOT NULL, PRIMARY KEY (node_uid, subject, start_ms)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS cost_segments_by_end ON cost_segments (end_ms, start_ms, subject, node_uid, offer, milli);
CREATE TABLE IF NOT EXISTS cost_capacities (
    node_uid TEXT NOT NULL, node TEXT NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    milli INTEGER NOT NULL, offer TEXT NOT NULL, PRIMARY KEY (node_uid, start_ms)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cost_pods (
    uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, pod TEXT NOT NULL, workload TEXT NOT NULL, queue TEXT NOT NULL,
    labels TEXT NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, started_ms INTEGER NOT NULL,
    ended INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cost_meter (
    name TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL, holder TEXT NOT NULL, rule TEXT NOT NULL) WITHOUT ROWID
"""
_ADDED = (Column("cost_pods", "run", "TEXT NOT NULL DEFAULT ''"),)
"""Since runs of the same name are told apart; pods that ended before have none."""
_KEY, _METER, _CHUNK = "cost meter", "meter", 500
# Of a segment, within the six bounds: end, end, start, start; and of the rows, start and end.
SPAN = "(CASE WHEN end_ms < ? THEN end_ms ELSE ? END - CASE WHEN start_ms > ? THEN start_ms ELSE ? END)"


class Overtaken(RuntimeError):
    """Another meter writes now: what this one has seen is not stored."""


@dataclass(frozen=True)
class Window:
    """``end_ms`` is at most the time until which was metered."""

    start_ms: Milliseconds
    end_ms: Milliseconds


@dataclass(frozen=True)
class Recorded:
    """What a new leader goes on from. ``metered_ms`` is None where nothing was ever metered."""

    meters: Mapping[str, Meter]
    metered_ms: Milliseconds | None


class CostStore:
    """Methods block, and raise DatabaseError."""

    def __init__(self, where: Location, *, read_only: bool = False) -> None:
        """``read_only``: see ``open_database``."""
        self.database: Database = open_database(where, _SCHEMA, added=_ADDED, read_only=read_only)

    def begin(self, holder: str, rule: Rule) -> Recorded:
        """From now on ``holder`` writes, and nobody else."""
        with self.database.transaction(_KEY) as transaction:
            rows = transaction.query("SELECT seen_ms FROM cost_meter WHERE name = ?", (_METER,))
            if rows:
                transaction.execute(
                    "UPDATE cost_meter SET holder = ?, rule = ? WHERE name = ?", (holder, rule.value, _METER)
                )
                return Recorded(_meters(transaction), int(rows[0][0]) or None)
            transaction.execute("INSERT INTO cost_meter VALUES (?, 0, ?, ?)", (_METER, holder, rule.value))
            return Recorded({}, None)

    def store(self, holder: str, changes: Changes, metered_ms: Milliseconds) -> None:
        """All or nothing. Raises Overtaken."""
        with self.database.transaction(_KEY) as transaction:
            written = transaction.execute(
                "UPDATE cost_meter SET seen_ms = ? WHERE name = ? AND holder = ? AND seen_ms <= ?",
                (metered_ms, _METER, holder, metered_ms),
            )
            if written != 1:
                raise Overtaken("another meter has begun to write")
            transaction.execute_many(_UPSERT_SEGMENT, map(_segment_row, changes.segments))
            transaction.execute_many(_UPSERT_CAPACITY, map(_capacity_row, changes.capacities))
            transaction.execute_many(_UPSERT_POD, map(_pod_row, changes.pods))
            transaction.execute_many("UPDATE cost_pods SET ended = 1 WHERE uid = ?", ((uid,) for uid in changes.ended))

    def ended(self, uids: Iterable[str]) -> frozenset[str]:
        """Those of which the end is recorded."""
        every, result = sorted(set(uids)), set()
        for start in range(0, len(every), _CHUNK):
            chunk = every[start : start + _CHUNK]
            placeholders = ", ".join("?" for _ in chunk)
            rows = self.database.query(f"SELECT uid FROM cost_pods WHERE ended = 1 AND uid IN ({placeholders})", chunk)
            result |= {str(row[0]) for row in rows}
        return frozenset(result)

    def metered_ms(self) -> Milliseconds | None:
        """Until when was metered; None for never."""
        rows = self.database.query("SELECT seen_ms FROM cost_meter WHERE name = ?", (_METER,))
        return int(rows[0][0]) or None if rows else None

    def rule(self) -> Rule:
        """By which pods are charged."""
        rows = self.database.query("SELECT rule FROM cost_meter WHERE name = ?", (_METER,))
        return Rule(str(rows[0][0])) if rows else Rule.MAX

    def window(self, start_ms: Milliseconds, end_ms: Milliseconds) -> Window:
        return Window(start_ms, max(start_ms, min(end_ms, self.metered_ms() or 0)))

    def usages(self, window: Window, book: PriceBook) -> list[Usage]:
        """By subject, node and offer, and by the price that was valid at the time."""
        return self._priced("cost_segments", "subject", window, book)

    def capacities(self, window: Window, book: PriceBook) -> list[Usage]:
        """GPU time of nodes, which was recorded apart from who used it; the subject is the node's name."""
        return self._priced("cost_capacities", "node", window, book)

    def attributes(self) -> Mapping[str, Attributes]:
        """By uid of a pod."""
        rows = self.database.query(
            "SELECT uid, namespace, pod, workload, queue, labels, first_step, last_step, run FROM cost_pods"
        )
        return {
            str(uid): Attributes(
                str(namespace), str(pod), str(workload), str(queue), labels_of(str(labels)), first, last, str(run)
            )
            for uid, namespace, pod, workload, queue, labels, first, last, run in rows
        }

    def nodes(self) -> Mapping[str, str]:
        """Names by uid."""
        return {str(uid): str(node) for uid, node in self.database.query("SELECT node_uid, node FROM cost_capacities")}

    def segments(self, window: Window, subjects: Iterable[str]) -> list[Segment]:
        """What an invoice's line consists of, in the order of time."""
        result = []
        for subject in subjects:
            rows = self.database.query(
                "SELECT node_uid, subject, start_ms, end_ms, milli, offer FROM cost_segments "
                "WHERE subject = ? AND end_ms > ? AND start_ms < ?",
                (subject, window.start_ms, window.end_ms),
            )
            result += [_segment(row) for row in rows]
        return sorted(result, key=lambda segment: (segment.start_ms, segment.node_uid, segment.subject))

    def totals(self, window: Window) -> tuple[tuple[int, int], Mapping[str, int]]:
        """Milli-GPU·ms of all subjects and of all nodes, and for how long each subject was charged."""
        bounds = (window.end_ms, window.end_ms, window.start_ms, window.start_ms, window.start_ms, window.end_ms)
        where = "WHERE end_ms > ? AND start_ms < ?"
        capacity = self.database.query(f"SELECT SUM(milli * {SPAN}) FROM cost_capacities {where}", bounds)
        rows = self.database.query(
            f"SELECT subject, SUM(milli * {SPAN}), SUM{SPAN} FROM cost_segments {where} GROUP BY subject",
            (*bounds[:4], *bounds),
        )
        used = sum(int(row[1]) for row in rows)
        return (used, int(capacity[0][0] or 0)), {str(row[0]): int(row[2]) for row in rows}

    def forget(self, before_ms: Milliseconds) -> None:
        """What ended before then."""
        with self.database.transaction(_KEY) as transaction:
            for table in ("cost_segments", "cost_capacities"):
                transaction.execute(f"DELETE FROM {table} WHERE end_ms < ?", (before_ms,))
            transaction.execute(
                "DELETE FROM cost_pods WHERE ended = 1 AND started_ms < ? AND NOT EXISTS "
                "(SELECT 1 FROM cost_segments WHERE subject = uid)",
                (before_ms,),
            )

    def close(self) -> None:
        self.database.close()

    def _priced(self, table: str, subject: str, window: Window, book: PriceBook) -> list[Usage]:
        dates = book.dates(window.start_ms, window.end_ms)
        result = []
        for start_ms, end_ms in itertools.pairwise(dates):
            rows = self.database.query(
                f"SELECT {subject}, node_uid, offer, SUM(milli * {SPAN}) FROM {table} "
                f"WHERE end_ms > ? AND start_ms < ? GROUP BY {subject}, node_uid, offer",
                (end_ms, end_ms, start_ms, start_ms, start_ms, end_ms),
            )
            prices = {
                written: (offer := offer_of(written), book.of(offer, start_ms)) for written in {r[2] for r in rows}
            }
            result += [Usage(str(name), str(uid), *prices[offer], int(used)) for name, uid, offer, used in rows if used]
        return result


def _upsert(table: str, columns: str, key: str) -> str:
    names = columns.split(", ")
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key.split(", "))
    placeholders = ", ".join("?" for _ in names)
    return f"INSERT INTO {table} ({columns}) VALUES ({placeholders}) ON CONFLICT ({key}) DO UPDATE SET {changed}"


_UPSERT_SEGMENT = _upsert(
    "cost_segments", "node_uid, subject, start_ms, end_ms, milli, offer", "node_uid, subject, start_ms"
)
_UPSERT_CAPACITY = _upsert("cost_capacities", "node_uid, node, start_ms, end_ms, milli, offer", "node_uid, start_ms")
_UPSERT_POD = _upsert(
    "cost_pods", "uid, namespace, pod, workload, queue, labels, first_step, last_step, started_ms, ended, run", "uid"
)


def _segment_row(segment: Segment) -> tuple[object, ...]:
    end_ms = _OPEN_MS if segment.end_ms is None else segment.end_ms
    return segment.node_uid, segment.subject, segment.start_ms, end_ms, segment.milli, _written(segment.offer)


def _capacity_row(item: Capacity) -> tuple[object, ...]:
    end_ms = _OPEN_MS if item.end_ms is None else item.end_ms
    return item.node_uid, item.node, item.start_ms, end_ms, item.milli, _written(item.offer)


def _pod_row(pod: MeteredPod) -> tuple[object, ...]:
    its = pod.attributes
    labels = json.dumps(dict(its.labels), sort_keys=True)
    return (
        pod.uid,
        its.namespace,
        its.pod,
        its.workload,
        its.queue,
        labels,
        its.first_step,
        its.last_step,
        pod.started_ms,
        0,
        its.run,
    )


def _written(offer: Offer) -> str:
    return "|".join(part.replace("|", "/") for part in (offer.model, offer.provider, offer.region, offer.capacity))


@functools.lru_cache(maxsize=4096)
def offer_of(written: str) -> Offer:
    return Offer(*written.split("|"))


@functools.lru_cache(maxsize=65536)
def labels_of(written: str) -> Mapping[str, str]:
    return {key: str(value) for key, value in decode_mapping(written).items()}


def _segment(row: tuple[object, ...]) -> Segment:
    uid, subject, start_ms, end_ms, milli, offer = row
    end = int(str(end_ms))
    return Segment(
        str(uid),
        str(subject),
        int(str(start_ms)),
        None if end == _OPEN_MS else end,
        int(str(milli)),
        offer_of(str(offer)),
    )


def _charged(milli: int) -> Demand:
    count = -(-milli // WHOLE_GPU)
    share = -(-milli // count)
    return Demand(count, share, share)


def _meters(transaction: Transaction) -> Mapping[str, Meter]:
    """What is open. What pods asked for is not stored: those that are still there say it themselves."""
    result: dict[str, Meter] = {}
    for uid, node, start_ms, milli, offer in transaction.query(
        "SELECT node_uid, node, start_ms, milli, offer FROM cost_capacities WHERE end_ms = ?", (_OPEN_MS,)
    ):
        metered = MeteredNode(uid, node, milli // WHOLE_GPU, offer_of(offer))
        result[uid] = Meter(metered, start_ms, start_ms)
    for row in transaction.query(
        "SELECT node_uid, subject, start_ms, end_ms, milli, offer FROM cost_segments WHERE end_ms = ?", (_OPEN_MS,)
    ):
        segment = _segment(row)
        if meter := result.get(segment.node_uid):
            held = {**meter.open, segment.subject: (segment.start_ms, segment.milli)}
            pods = dict(meter.pods)
            if not segment.subject.startswith("idle:"):
                pods[segment.subject] = MeteredPod(
                    segment.subject, meter.node.name, _charged(segment.milli), segment.start_ms
                )
            result[segment.node_uid] = replace(meter, open=held, pods=pods)
    for uid, last_ms in transaction.query(
        "SELECT node_uid, MAX(CASE WHEN end_ms = ? THEN start_ms ELSE end_ms END) FROM cost_segments GROUP BY node_uid",
        (_OPEN_MS,),
    ):
        if uid in result:
            result[uid] = replace(result[uid], at_ms=max(result[uid].at_ms, int(last_ms)))
    return result
