"""Step times of jobs' own runs, kept by owner and training in the database that the replicas share."""

from collections.abc import Mapping

from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.http.sharing import trim

RETENTION_S = 90 * 86_400.0
MOST_ROWS = 50_000
MOST_COUNTS = 16
_SCHEMA = """
CREATE TABLE IF NOT EXISTS step_time (
    owner TEXT NOT NULL, training TEXT NOT NULL, gpus INTEGER NOT NULL, seconds REAL NOT NULL, at_s REAL NOT NULL,
    PRIMARY KEY (owner, training, gpus)
);
"""
_UPSERT = """
INSERT INTO step_time VALUES (?,?,?,?,?) ON CONFLICT (owner, training, gpus) DO UPDATE SET
seconds = excluded.seconds, at_s = excluded.at_s WHERE excluded.at_s >= step_time.at_s
"""
_LOCK = "step times"


class StepTimes:
    """The store; methods block. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location) -> None:
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def keep(self, owner: str, training: str, seconds_by_gpus: Mapping[int, float], now_s: float) -> None:
        """The newest of each number of GPUs counts."""
        with self._db.transaction(_LOCK) as db:
            for gpus, seconds in seconds_by_gpus.items():
                db.execute(_UPSERT, (owner, training, gpus, seconds, now_s))
            db.execute("DELETE FROM step_time WHERE at_s < ?", (now_s - RETENTION_S,))
            trim(db, "step_time", "owner, training, gpus", "at_s", MOST_ROWS, ("owner",))

    def of(self, owner: str, training: str) -> dict[int, float]:
        """Seconds of a step by number of GPUs, the newest ``MOST_COUNTS``."""
        rows = self._db.query(
            "SELECT gpus, seconds FROM step_time WHERE owner = ? AND training = ? ORDER BY at_s DESC, gpus LIMIT ?",
            (owner, training, MOST_COUNTS),
        )
        return {int(gpus): float(seconds) for gpus, seconds in rows}
