"""Predicted starts beside those that came, in the database that the replicas share, and what they correct.

Of each wait of a job the first prediction is kept. What corrects the next one is computed from the rows whenever it is
needed: replicas agree, and a restart forgets nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.scheduling.diagnosis import PredictedStart, StartEstimate
from kopt.core.workload.run_time import JobRun
from kopt.policies.diagnosis.start_calibration import WINDOW, StartCalibration
from kopt.serving.base.database.interface import Transaction
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.http.sharing import trim

RETENTION_S = 90 * 86_400.0
MOST_ROWS = 50_000
"""Of all callers; the caller that has most loses its oldest."""
_REPLAYED = 3 * WINDOW
"""Starts of a queue that its level is computed from."""
_LATE = 2.0
"""What still waits after so many times its p90 counts with the wait so far, once."""
_CLOCKS_S = 2.0
"""By so much a start may seem to come before its prediction: times of conditions are whole seconds."""
_APART_S = 60.0
"""A prediction that was made just when a job started is of that wait, not of its next one."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS predicted_start (
    owner TEXT NOT NULL, cluster TEXT NOT NULL, job TEXT NOT NULL, queue TEXT NOT NULL, at_s REAL NOT NULL,
    p50_s REAL NOT NULL, p90_s REAL NOT NULL, answered_p50_s REAL NOT NULL, answered_p90_s REAL NOT NULL,
    wait_s REAL, begun_s REAL, known_s REAL, kept_s REAL NOT NULL,
    PRIMARY KEY (owner, cluster, job, at_s)
);
CREATE INDEX IF NOT EXISTS predicted_start_known ON predicted_start (owner, cluster, queue, known_s);
"""
_LOCK = "starts"
_OF = "owner = ? AND cluster = ?"


@dataclass(frozen=True)
class BegunWait:
    """A start that has come: what was answered about it, and how long it took from then on, in seconds."""

    job: str
    p50_s: float
    p90_s: float
    wait_s: float


class StartTable:
    """The store; methods block. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location, most: int = MOST_ROWS) -> None:
        self._most = most
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def calibration(self, owner: str, cluster: str, queue: str) -> StartCalibration:
        """Of one queue, by its last starts in the order in which they became known."""
        rows = self._db.query(
            f"SELECT p50_s, p90_s, wait_s, at_s FROM predicted_start WHERE {_OF} AND queue = ? AND wait_s IS NOT NULL "
            "ORDER BY known_s DESC, job DESC, at_s DESC LIMIT ?",
            (owner, cluster, queue, _REPLAYED),
        )
        result = StartCalibration()
        for p50_s, p90_s, wait_s, at_s in reversed(rows):
            result = result.observed(StartEstimate(float(p50_s), float(p90_s)), float(wait_s), float(at_s))
        return result

    def keep(
        self,
        owner: str,
        cluster: str,
        starts: Sequence[PredictedStart],
        answered: Mapping[str, StartEstimate],
        now_s: float,
    ) -> None:
        """The first prediction of each wait, with what was ``answered``, by job; what waits too long is closed."""
        with self._db.transaction(_LOCK) as db:
            for start in starts:
                if self._is_new(db, owner, cluster, start, now_s):
                    answer = answered.get(start.job, start.estimate)
                    figures = (start.estimate.p50_s, start.estimate.p90_s, answer.p50_s, answer.p90_s)
                    values = (owner, cluster, start.job, start.queue, start.at_s, *figures, None, None, None, now_s)
                    db.execute(
                        "INSERT INTO predicted_start VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) "
                        "ON CONFLICT (owner, cluster, job, at_s) DO NOTHING",
                        values,
                    )
            db.execute("DELETE FROM predicted_start WHERE kept_s < ?", (now_s - RETENTION_S,))
            trim(db, "predicted_start", "owner, cluster, job, at_s", "kept_s", self._most, ("owner",))

    def _is_new(self, db: Transaction, owner: str, cluster: str, start: PredictedStart, now_s: float) -> bool:
        """Whether the job waits anew; that it waits for long already is written down."""
        rows = db.query(
            f"SELECT at_s, p90_s, wait_s, begun_s FROM predicted_start WHERE {_OF} AND job = ? "
            "ORDER BY at_s DESC LIMIT 1",
            (owner, cluster, start.job),
        )
        if not rows:
            return True
        at_s, p90_s, wait_s, begun_s = rows[0]
        so_far_s = start.at_s - float(at_s)
        if wait_s is None and so_far_s > _LATE * float(p90_s):
            db.execute(
                f"UPDATE predicted_start SET wait_s = ?, known_s = ? WHERE {_OF} AND job = ? AND at_s = ?",
                (so_far_s, now_s, owner, cluster, start.job, at_s),
            )
        return begun_s is not None and start.at_s > float(begun_s) + _APART_S

    def begun(self, owner: str, cluster: str, runs: Sequence[JobRun], now_s: float) -> list[BegunWait]:
        """Close the waits that these runs ended; those whose wait was not known before."""
        result = []
        with self._db.transaction(_LOCK) as db:
            rows = db.query(
                f"SELECT job, at_s, answered_p50_s, answered_p90_s, wait_s FROM predicted_start WHERE {_OF} "
                "AND begun_s IS NULL",
                (owner, cluster),
            )
            waits = {
                str(job): (float(at_s), float(p50_s), float(p90_s), recorded)
                for job, at_s, p50_s, p90_s, recorded in rows
            }
            for run in runs:
                job = run.job.rpartition("/")[0] or run.job
                if job not in waits or run.started_s < waits[job][0] - _CLOCKS_S:
                    continue
                at_s, p50_s, p90_s, recorded = waits.pop(job)
                wait_s = max(0.0, run.started_s - at_s)
                if recorded is None:
                    result.append(BegunWait(job, p50_s, p90_s, wait_s))
                db.execute(
                    "UPDATE predicted_start SET begun_s = ?, wait_s = COALESCE(wait_s, ?), "
                    f"known_s = COALESCE(known_s, ?) WHERE {_OF} AND job = ? AND at_s = ?",
                    (run.started_s, wait_s, now_s, owner, cluster, job, at_s),
                )
        return result

    def coverage(self, owner: str, cluster: str) -> dict[str, tuple[int, float]]:
        """By queue: how many predicted starts have come, and the share of them by the p90 that was answered."""
        rows = self._db.query(
            "SELECT queue, count(*), sum(CASE WHEN wait_s <= answered_p90_s THEN 1 ELSE 0 END) FROM predicted_start "
            f"WHERE {_OF} AND wait_s IS NOT NULL GROUP BY queue ORDER BY queue",
            (owner, cluster),
        )
        return {str(queue): (int(count), float(inside) / int(count)) for queue, count, inside in rows}
