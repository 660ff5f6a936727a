"""The table of predicted against actual, in the database that the replicas share.

One row per series, role (champion or challenger), horizon and target time; the first prediction for a target counts.
Actuals are filled in when a later request of the same caller brings the history. Old rows are pruned.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kopt.core.reason import Reason
from kopt.data.demand.table import DemandSeries
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.demand.health import WINDOW, Matched
from kopt.serving.http.sharing import trim

RETENTION_S = 14 * 86_400
MOST_ROWS = 500_000
MOST_STATES = 20_000
"""Of series' health, and of pools' advice."""
_KEY = "caller, series, role, horizon_s, target_s"
_LOCK = "predictions"
"""Writers of several rows follow each other: in another order they would block each other."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS prediction (
    caller TEXT NOT NULL, series TEXT NOT NULL, role TEXT NOT NULL, horizon_s INTEGER NOT NULL,
    target_s REAL NOT NULL, made_at_s REAL NOT NULL, version TEXT NOT NULL, bucket_s INTEGER NOT NULL,
    median REAL NOT NULL, upper REAL NOT NULL, quantile REAL NOT NULL, last REAL NOT NULL, actual REAL,
    PRIMARY KEY (caller, series, role, horizon_s, target_s)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting ON prediction (caller, series, target_s) WHERE actual IS NULL;
CREATE INDEX IF NOT EXISTS age ON prediction (made_at_s);
CREATE TABLE IF NOT EXISTS health (
    caller TEXT NOT NULL, series TEXT NOT NULL, role TEXT NOT NULL, matched INTEGER NOT NULL, coverage REAL,
    quantile REAL NOT NULL, error REAL, error_last_value REAL, drift REAL, alarm INTEGER NOT NULL,
    reasons TEXT NOT NULL, updated_s REAL NOT NULL, PRIMARY KEY (caller, series, role)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS advice (
    caller TEXT NOT NULL, pool TEXT NOT NULL, made_at_s REAL NOT NULL, document TEXT NOT NULL,
    state TEXT NOT NULL, PRIMARY KEY (caller, pool)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Row:
    """One prediction to be evaluated later; times in seconds on the series' own clock, ``made_at_s`` Unix."""

    caller: str
    series: str
    role: str
    horizon_s: int
    target_s: float
    made_at_s: float
    version: str
    bucket_s: int
    median: float
    upper: float
    quantile: float
    last: float


@dataclass(frozen=True)
class SeriesState:
    """How one series' predictions have done lately; fields as ``serving.contract.model_answers.SeriesHealthOut``."""

    caller: str
    series: str
    role: str
    matched: int
    coverage: float | None
    quantile: float
    error: float | None
    error_last_value: float | None
    drift: float | None
    alarm: bool
    reasons: tuple[Reason, ...]
    updated_s: float


class PredictionTable:
    """The store. Methods block on the disk or the network: call them off the request path. Thread-safe.

    Raises DatabaseError.
    """

    def __init__(self, where: Location) -> None:
        self._db = open_database(where, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Keep predictions; a target that has one already keeps it."""
        values = [tuple(vars(row).values()) for row in rows]
        with self._db.transaction(_LOCK) as db:
            db.execute_many(
                f"INSERT INTO prediction VALUES ({','.join('?' * 12)}, NULL) ON CONFLICT ({_KEY}) DO NOTHING", values
            )

    def match(self, caller: str, series: DemandSeries) -> int:
        """Fill in actuals for targets that the history covers in full; returns how many."""
        end_s = series.start_s + len(series) * series.step_s
        with self._db.transaction(_LOCK) as db:
            unmatched = db.query(
                "SELECT role, horizon_s, target_s, bucket_s FROM prediction WHERE caller = ? AND series = ? "
                "AND actual IS NULL AND target_s >= ? AND target_s + bucket_s <= ?",
                (caller, series.name, series.start_s, end_s),
            )
            result = [
                (actual, caller, series.name, role, horizon_s, target_s)
                for role, horizon_s, target_s, bucket_s in unmatched
                if (actual := _actual(series, target_s, bucket_s)) is not None
            ]
            db.execute_many(
                "UPDATE prediction SET actual = ? WHERE caller = ? AND series = ? AND role = ? AND horizon_s = ? "
                "AND target_s = ?",
                result,
            )
        return len(result)

    def matched(self, caller: str, series: str, role: str, window: int = WINDOW) -> Matched:
        """The newest matched predictions of a series over all horizons, oldest first."""
        result = self._db.query(
            "SELECT actual, median, upper, last, quantile FROM prediction WHERE caller = ? AND series = ? AND "
            "role = ? AND actual IS NOT NULL ORDER BY target_s DESC, horizon_s LIMIT ?",
            (caller, series, role, window),
        )
        table = np.array(result[::-1], dtype=np.float64).reshape(-1, 5)
        quantile = float(table[-1, 4]) if len(table) else 0.95
        # Rows of another quantile (the caller changed it) would be compared with the wrong share.
        kept = table[table[:, 4] == quantile]
        return Matched(kept[:, 0], kept[:, 1], kept[:, 2], kept[:, 3], quantile)

    def put_state(self, state: SeriesState) -> None:
        values = {
            **vars(state),
            "alarm": int(state.alarm),
            "reasons": json.dumps([reason.to_dict() for reason in state.reasons]),
        }
        changed = ", ".join(f"{name} = excluded.{name}" for name in values if name not in ("caller", "series", "role"))
        with self._db.transaction() as db:
            db.execute(
                f"INSERT INTO health VALUES ({','.join('?' * 12)}) ON CONFLICT (caller, series, role) "
                f"DO UPDATE SET {changed}",
                tuple(values.values()),
            )

    def states(self, caller: str | None = None, limit: int = 1000) -> list[SeriesState]:
        """The newest states, of one caller or of all."""
        where = "" if caller is None else "WHERE caller = ?"
        result = self._db.query(
            f"SELECT * FROM health {where} ORDER BY updated_s DESC LIMIT {limit:d}",
            () if caller is None else (caller,),
        )
        return [_state(row) for row in result]

    def put_advice(self, caller: str, pool: str, made_at_s: float, document: str, state: str) -> None:
        with self._db.transaction() as db:
            db.execute(
                "INSERT INTO advice VALUES (?,?,?,?,?) ON CONFLICT (caller, pool) DO UPDATE SET "
                "made_at_s = excluded.made_at_s, document = excluded.document, state = excluded.state",
                (caller, pool, made_at_s, document, state),
            )

    def advice(self, caller: str | None, since_s: float) -> list[str]:
        """Documents of the pools' newest advice made since then, by pool; of one caller or of all."""
        result = self._db.query(
            "SELECT document FROM advice WHERE coalesce(?, caller) = caller AND made_at_s >= ? ORDER BY pool, caller",
            (caller, since_s),
        )
        return [document for (document,) in result]

    def advice_state(self, caller: str, pool: str) -> str | None:
        rows = self._db.query("SELECT state FROM advice WHERE caller = ? AND pool = ?", (caller, pool))
        return str(rows[0][0]) if rows else None

    def prune(self, now_s: float) -> int:
        """Delete rows past their retention, and beyond what is kept the oldest of the caller that has most; returns how
        many predictions."""
        with self._db.transaction(_LOCK) as db:
            deleted = db.execute("DELETE FROM prediction WHERE made_at_s < ?", (now_s - RETENTION_S,))
            deleted += trim(db, "prediction", _KEY, "made_at_s", MOST_ROWS, ("caller",))
            db.execute("DELETE FROM health WHERE updated_s < ?", (now_s - RETENTION_S,))
            db.execute("DELETE FROM advice WHERE made_at_s < ?", (now_s - RETENTION_S,))
            trim(db, "health", "caller, series, role", "updated_s", MOST_STATES, ("caller",))
            trim(db, "advice", "caller, pool", "made_at_s", MOST_STATES, ("caller",))
        return int(deleted)


def _actual(series: DemandSeries, target_s: float, bucket_s: int) -> float | None:
    """The sum over a bucket that may start anywhere on the series' own, finer or equal, step; None with a gap."""
    rest = (target_s - series.start_s) % series.step_s
    if min(rest, series.step_s - rest) > 1e-3 or bucket_s % series.step_s:
        return None
    start = round((target_s - series.start_s) / series.step_s)
    amount = float(series.value[start : start + bucket_s // series.step_s].sum())
    return amount if np.isfinite(amount) else None


def _state(row: Sequence[object]) -> SeriesState:
    names = list(SeriesState.__dataclass_fields__)
    fields = dict(zip(names, row, strict=True))
    fields["alarm"] = bool(fields["alarm"])
    reasons = json.loads(str(fields["reasons"]))
    fields["reasons"] = tuple(Reason(reason["code"], reason["message"], reason["numbers"]) for reason in reasons)
    return SeriesState(**fields)  # type: ignore[arg-type]
