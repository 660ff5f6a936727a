"""Jobs whose logs are followed, kept by caller in the database that the replicas share.

Optimistic locking by ``stamp``: a replica stores a job only over the version that it loaded, and its epochs with it.
Tables are bounded: the caller with most jobs, and within it the namespace with most, loses its longest silent jobs
first, and epochs likewise. One agent sends the lines of every tenant's jobs, so the caller alone would be no fair unit.
"""

import functools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.formats.joblog.epochs import Epoch
from kopt.serving.base.database.interface import Transaction
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.base.old_secrets import cleanse
from kopt.serving.checkpoint.epochs import SourceEpoch
from kopt.serving.http.sharing import trim

RETENTION_S = 7 * 86_400
EPOCH_RETENTION_S = 400 * 86_400.0
"""As long as the meter keeps intervals by default: what they cost is asked long after the training."""
MOST_JOBS, MOST_EPOCHS = 5000, 200_000
MOST_ANSWERED = 20_000
"""Epochs of one job in an answer."""
_PRUNE_EVERY = 200
_NAMESPACE = "substr(job, 1, instr(job, '/'))"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    owner TEXT NOT NULL, job TEXT NOT NULL, stamp TEXT NOT NULL, at_s REAL NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (owner, job)
);
CREATE INDEX IF NOT EXISTS job_age ON job (at_s);
CREATE TABLE IF NOT EXISTS job_epoch (
    owner TEXT NOT NULL, job TEXT NOT NULL, source TEXT NOT NULL, start_s REAL NOT NULL, number INTEGER NOT NULL,
    end_s REAL NOT NULL, steps INTEGER NOT NULL, samples_per_s REAL, tokens_per_s REAL, at_s REAL NOT NULL,
    PRIMARY KEY (owner, job, source, start_s, number)
);
CREATE INDEX IF NOT EXISTS job_epoch_age ON job_epoch (at_s);
"""
_EPOCH = """
INSERT INTO job_epoch VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (owner, job, source, start_s, number) DO UPDATE SET
end_s = excluded.end_s, steps = excluded.steps, samples_per_s = excluded.samples_per_s,
tokens_per_s = excluded.tokens_per_s, at_s = excluded.at_s
"""


@dataclass(frozen=True)
class Row:
    """A job and its version: ``stamp`` changes with the content."""

    owner: str
    job: str
    stamp: str
    at_s: float


class JobTable:
    """The store; methods block on the disk or the network. Thread-safe. Raises DatabaseError."""

    def __init__(self, where: Location, most: int = MOST_JOBS, most_epochs: int = MOST_EPOCHS) -> None:
        self._most, self._most_epochs, self._written = most, most_epochs, 0
        old_secrets = functools.partial(cleanse, table="job", key=("owner", "job"), documents=("document",))
        self._db = open_database(where, _SCHEMA, prepare=old_secrets)

    @property
    def shared(self) -> bool:
        """Whether replicas on other machines read it too."""
        return self._db.shared

    def close(self) -> None:
        self._db.close()

    def stamp(self, owner: str, job: str) -> str | None:
        """None where nothing is kept."""
        rows = self._db.query("SELECT stamp FROM job WHERE owner = ? AND job = ?", (owner, job))
        return str(rows[0][0]) if rows else None

    def load(self, owner: str, job: str) -> tuple[str, str] | None:
        """Stamp and document."""
        rows = self._db.query("SELECT stamp, document FROM job WHERE owner = ? AND job = ?", (owner, job))
        return (str(rows[0][0]), str(rows[0][1])) if rows else None

    def store(
        self,
        owner: str,
        job: str,
        over: str | None,
        at_s: float,
        document: str,
        epochs: Sequence[SourceEpoch] = (),
    ) -> str | None:
        """Store the document over version ``over`` (None: no row yet), and epochs that are new or went on. Returns the
        new stamp, None on a conflict."""
        fresh = uuid.uuid4().hex
        with self._db.transaction() as db:
            if over is None:
                written = db.execute(
                    "INSERT INTO job VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING", (owner, job, fresh, at_s, document)
                )
            else:
                written = db.execute(
                    "UPDATE job SET stamp = ?, at_s = ?, document = ? WHERE owner = ? AND job = ? AND stamp = ?",
                    (fresh, at_s, document, owner, job, over),
                )
            if written != 1:
                return None
            for item in epochs:
                epoch = item.epoch
                amounts = (epoch.end_s, epoch.steps, epoch.samples_per_s, epoch.tokens_per_s)
                db.execute(_EPOCH, (owner, job, item.source, epoch.start_s, epoch.number, *amounts, at_s))
            self._written += 1
            if self._written % _PRUNE_EVERY == 1:
                self._prune(db, at_s)
        return fresh

    def epochs(self, owner: str | None, job: str) -> list[SourceEpoch]:
        """Of a job, of one owner or of all, by their begin."""
        result = self._db.query(
            "SELECT owner, source, number, start_s, end_s, steps, samples_per_s, tokens_per_s FROM job_epoch "
            "WHERE coalesce(?, owner) = owner AND job = ? ORDER BY start_s, source, number LIMIT ?",
            (owner, job, MOST_ANSWERED),
        )
        return [SourceEpoch(f"{of}/{source}", Epoch(*item)) for of, source, *item in result]

    def rows(self, owner: str | None, since_s: float, limit: int, job: str | None = None) -> list[Row]:
        """Of one owner or of all, the latest first."""
        result = self._db.query(
            "SELECT owner, job, stamp, at_s FROM job WHERE at_s >= ? AND coalesce(?, owner) = owner "
            "AND coalesce(?, job) = job ORDER BY at_s DESC, job LIMIT ?",
            (since_s, owner, job, limit),
        )
        return [Row(*item) for item in result]

    def _prune(self, db: Transaction, now_s: float) -> None:
        db.execute("DELETE FROM job WHERE at_s < ?", (now_s - RETENTION_S,))
        trim(db, "job", "owner, job", "at_s", self._most, ("owner", _NAMESPACE))
        db.execute("DELETE FROM job_epoch WHERE at_s < ?", (now_s - EPOCH_RETENTION_S,))
        key = "owner, job, source, start_s, number"
        trim(db, "job_epoch", key, "at_s", self._most_epochs, ("owner", _NAMESPACE, "job"))
