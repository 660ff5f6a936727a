"""Answers beside their measurements, in the database that the replicas share.

One row per owner, subject, role and version of a model: a subject that is measured again replaces its row, so that one
that is measured all the time counts once.
"""

from collections.abc import Iterable
from dataclasses import fields

from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.http.sharing import trim
from kopt.serving.measured.health import Comparison

RETENTION_S = 90 * 86_400
MOST_ROWS = 20_000
"""Of a predictor; the owner that has most loses its oldest."""
_LOCK = "comparisons"
_COLUMNS = ("predictor", *(field.name for field in fields(Comparison)))
_KEY = ("predictor", "owner", "subject", "role", "version")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS comparison (
    predictor TEXT NOT NULL, owner TEXT NOT NULL, subject TEXT NOT NULL, role TEXT NOT NULL, version TEXT NOT NULL,
    at_s REAL NOT NULL, unit TEXT NOT NULL, value REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
    probability REAL NOT NULL, measured REAL NOT NULL, PRIMARY KEY (predictor, owner, subject, role, version)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS comparison_age ON comparison (predictor, at_s);
"""


class ComparisonTable:
    """Of one predictor. Methods block on the disk or the network. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location, predictor: str) -> None:
        self._predictor = predictor
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def add(self, comparisons: Iterable[Comparison], now_s: float) -> None:
        """Keep these; rows past their retention or the limit go."""
        values = [(self._predictor, *vars(comparison).values()) for comparison in comparisons]
        changed = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in _KEY)
        with self._db.transaction(_LOCK) as db:
            db.execute_many(
                f"INSERT INTO comparison VALUES ({','.join('?' * len(_COLUMNS))}) ON CONFLICT ({', '.join(_KEY)}) "
                f"DO UPDATE SET {changed} WHERE excluded.at_s >= comparison.at_s",
                values,
            )
            db.execute(
                "DELETE FROM comparison WHERE predictor = ? AND at_s < ?", (self._predictor, now_s - RETENTION_S)
            )
            trim(db, "comparison", ", ".join(_KEY), "at_s", MOST_ROWS, ("predictor", "owner"))

    def newest(self) -> list[Comparison]:
        """All that is kept, oldest first."""
        rows = self._db.query(
            f"SELECT {', '.join(_COLUMNS[1:])} FROM comparison WHERE predictor = ? ORDER BY at_s, subject",
            (self._predictor,),
        )
        return [Comparison(*row) for row in rows]
