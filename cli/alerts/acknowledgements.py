"""Who has acknowledged which alert, in a database: rows are only added, so nobody's word takes another's place."""

from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.serving.base.database.interface import NoTableError
from kopt.serving.base.database.opening import Location, open_database

KEEP_S = 400 * 86_400
_SCHEMA = """
CREATE TABLE IF NOT EXISTS alert_acknowledgements (
    identity TEXT NOT NULL, at_s REAL NOT NULL, who TEXT NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (identity, at_s, who)) WITHOUT ROWID
"""


class Acknowledgements:
    """Methods block, and raise DatabaseError. ``read_only``, for PostgreSQL, needs no right but to read."""

    def __init__(self, where: Location, *, read_only: bool = False) -> None:
        self._database = open_database(where, _SCHEMA, read_only=read_only)

    def close(self) -> None:
        self._database.close()

    def add(self, item: Acknowledgement) -> None:
        with self._database.transaction() as transaction:
            transaction.execute(
                "INSERT INTO alert_acknowledgements (identity, at_s, who, note) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (identity, at_s, who) DO NOTHING",
                (item.identity, item.at_s, item.who, item.note),
            )
            transaction.execute("DELETE FROM alert_acknowledgements WHERE at_s < ?", (item.at_s - KEEP_S,))

    def since(self, at_s: float) -> list[Acknowledgement]:
        """In the order of time."""
        sql = "SELECT identity, at_s, who, note FROM alert_acknowledgements WHERE at_s >= ? ORDER BY at_s, who"
        try:
            rows = self._database.query(sql, (at_s,))
        except NoTableError:
            # Nobody has acknowledged anything yet, and a reader creates nothing.
            return []
        return [Acknowledgement(str(identity), float(at), str(who), str(note)) for identity, at, who, note in rows]
