"""Runs of jobs, kept by caller and cluster in the database that the replicas share.

Every change has a number of its own, so that a replica reads only what is new to it. An end that is known stays, and
so does a start: what is told again changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.http.sharing import trim

RETENTION_S = 400 * 86_400.0
MOST_RUNS = 200_000
"""Of all callers; the caller that has most loses its oldest."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (
    owner TEXT NOT NULL, cluster TEXT NOT NULL, job TEXT NOT NULL, queue TEXT NOT NULL, gpus INTEGER NOT NULL,
    name TEXT NOT NULL, user_name TEXT NOT NULL, started_s REAL NOT NULL, ended_s REAL, interrupted INTEGER NOT NULL,
    change INTEGER NOT NULL,
    kept_s REAL NOT NULL, PRIMARY KEY (owner, cluster, job)
);
CREATE INDEX IF NOT EXISTS run_change ON run (owner, cluster, change);
CREATE TABLE IF NOT EXISTS run_submission (
    owner TEXT NOT NULL, cluster TEXT NOT NULL, job TEXT NOT NULL, submitted_s REAL, pool TEXT NOT NULL,
    kept_s REAL NOT NULL, PRIMARY KEY (owner, cluster, job)
);
CREATE TABLE IF NOT EXISTS last_change (id INTEGER NOT NULL PRIMARY KEY, change INTEGER NOT NULL);
"""
_UPSERT = """
INSERT INTO run VALUES (?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (owner, cluster, job) DO UPDATE SET
ended_s = excluded.ended_s, interrupted = excluded.interrupted, change = excluded.change, kept_s = excluded.kept_s
WHERE run.ended_s IS NULL AND excluded.ended_s IS NOT NULL AND excluded.ended_s >= run.started_s
"""
_SUBMISSION = """
INSERT INTO run_submission VALUES (?,?,?,?,?,?) ON CONFLICT (owner, cluster, job) DO UPDATE SET kept_s = excluded.kept_s
"""
_COLUMNS = """
SELECT run.job, queue, gpus, name, user_name, started_s, ended_s, interrupted, submitted_s, pool, change FROM run
LEFT JOIN run_submission AS its ON its.owner = run.owner AND its.cluster = run.cluster AND its.job = run.job
WHERE run.owner = ? AND run.cluster = ? AND change > ?
"""
_LOCK = "runs"


@dataclass(frozen=True)
class Changes:
    """Runs that changed, in the order of their changes, and the number of the last one."""

    runs: tuple[JobRun, ...]
    last: int


class RunTable:
    """The store; methods block. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location, most: int = MOST_RUNS) -> None:
        self._most = most
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def keep(self, owner: str, cluster: str, runs: Sequence[JobRun], now_s: float) -> int:
        """How many runs were new, or had an end that was new. All of them are kept, or none."""
        kept = 0
        # One writer at a time: changes are numbered, and a reader must not pass over one that is committed later.
        with self._db.transaction(_LOCK) as db:
            rows = db.query("SELECT change FROM last_change WHERE id = 0")
            change = int(rows[0][0]) if rows else 0
            for run in runs:
                kind = run.kind
                values = (owner, cluster, run.job, kind.queue, kind.gpus, kind.name, kind.user)
                written = db.execute(
                    _UPSERT, (*values, run.started_s, run.ended_s, int(run.interrupted), change + 1, now_s)
                )
                change, kept = change + written, kept + written
                if written and (run.submitted_s is not None or run.pool):
                    db.execute(_SUBMISSION, (owner, cluster, run.job, run.submitted_s, run.pool, now_s))
            db.execute(
                "INSERT INTO last_change VALUES (0, ?) ON CONFLICT (id) DO UPDATE SET change = excluded.change",
                (change,),
            )
            for table in ("run", "run_submission"):
                db.execute(f"DELETE FROM {table} WHERE kept_s < ?", (now_s - RETENTION_S,))
                trim(db, table, "owner, cluster, job", "kept_s", self._most, ("owner",))
        return kept

    def since(self, owner: str, cluster: str, change: int, most: int) -> Changes:
        """What changed after ``change``; of more than ``most`` runs the newest."""
        rows = self._db.query(f"{_COLUMNS} ORDER BY change DESC LIMIT ?", (owner, cluster, change, most))
        return Changes(tuple(_run(row) for row in reversed(rows)), int(rows[0][-1]) if rows else change)

    def page(self, owner: str, cluster: str, change: int, most: int) -> Changes:
        """What changed after ``change``; of more than ``most`` runs the oldest."""
        rows = self._db.query(f"{_COLUMNS} ORDER BY change LIMIT ?", (owner, cluster, change, most))
        return Changes(tuple(map(_run, rows)), int(rows[-1][-1]) if rows else change)

    def last_change(self, owner: str, cluster: str) -> int:
        """The number of a cluster's last change; 0 where nothing is known of it."""
        rows = self._db.query(
            "SELECT change FROM run WHERE owner = ? AND cluster = ? ORDER BY change DESC LIMIT 1", (owner, cluster)
        )
        return int(rows[0][0]) if rows else 0

    def clusters(self, owner: str | None) -> list[tuple[str, str]]:
        """Owner and name of each cluster of one caller, or of all (None)."""
        if owner is None:
            rows = self._db.query("SELECT DISTINCT owner, cluster FROM run ORDER BY owner, cluster")
        else:
            rows = self._db.query("SELECT DISTINCT owner, cluster FROM run WHERE owner = ? ORDER BY cluster", (owner,))
        return [(str(owner_name), str(cluster)) for owner_name, cluster in rows]


def _run(row: Sequence[Any]) -> JobRun:
    job, queue, gpus, name, user, started_s, ended_s, interrupted, submitted_s, pool, _ = row
    return JobRun(
        str(job),
        JobKind(str(queue), int(gpus), str(name), str(user)),
        float(started_s),
        None if ended_s is None else float(ended_s),
        bool(interrupted),
        None if submitted_s is None else float(submitted_s),
        str(pool or ""),
    )
