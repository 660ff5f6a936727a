"""The features of runs in the feature store: read by questions that name only the kind of a job, and written, many at
once and behind the answers, as starts and ends become known."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.features.rows import FeatureStoreError
from kopt.features.run_rows import Cluster, OnlineRuns, RunRows

_LOG = logging.getLogger(__name__)
GATHER_S = 0.5
"""What becomes known within so long is written at once: for Feast one row is as dear as many."""
_AGAIN_S = 5.0
"""After the store failed."""
HISTORY = 2_000
"""Of runs that were read at once the last so many to start are written with all that was known at each of their starts
and ends; further back there are no rows."""


class RunStore(Protocol):
    def write(self, cluster: Cluster, runs: Sequence[JobRun], change: int = 0, *, since_s: float = ...) -> int: ...

    def put(self, rows: Sequence[RunRows]) -> int: ...

    def online(self, cluster: Cluster, kind: JobKind, version: str = "") -> OnlineRuns: ...

    def change(self, cluster: Cluster) -> int: ...


@dataclass(frozen=True)
class _Whole:
    """All runs of a cluster, which were read at once."""

    rows: RunRows
    runs: Sequence[JobRun]


class RunFeatures:
    """Opens the store (seconds, hundreds of MiB) in a thread of its own, which writes as well. Thread-safe."""

    def __init__(self, open_store: Callable[[], RunStore]) -> None:
        self._open = open_store
        self._store: RunStore | None = None
        self._pending: dict[Cluster, RunRows] = {}
        self._whole: dict[Cluster, _Whole] = {}
        self._lock, self._wake, self._ending = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = False

    def start(self) -> None:
        """Opens the store; until that is done nothing is read."""
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._work, name="run-features", daemon=True)
                self._thread.start()

    def online(self, cluster: Cluster, kind: JobKind, version: str) -> OnlineRuns | None:
        """The newest rows for a question about such a job; None while the store is not open, or fails."""
        store = self._store
        if store is None:
            return None
        try:
            return store.online(cluster, kind, version)
        except FeatureStoreError as error:
            _LOG.warning("features of runs are not read: %s", error)
            return None

    def put(self, rows: RunRows) -> None:
        """Rows that changed; returns at once."""
        with self._lock:
            before = self._pending.get(rows.cluster)
            self._pending[rows.cluster] = rows if before is None else rows.after(before)
        self._wake.set()

    def put_whole(self, rows: RunRows, runs: Sequence[JobRun]) -> None:
        """All rows of a cluster, and the runs that they follow from; written where the store knows less."""
        with self._lock:
            self._pending.pop(rows.cluster, None)
            self._whole[rows.cluster] = _Whole(rows, runs)
        self._wake.set()

    @property
    def is_open(self) -> bool:
        """Whether rows can be read."""
        return self._store is not None

    @property
    def is_idle(self) -> bool:
        """Whether all that was put is written."""
        with self._lock:
            return not (self._pending or self._whole or self._writing)

    def stop(self) -> None:
        """Writes what is left, once, and ends."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _work(self) -> None:
        while self._store is None:
            try:
                self._store = self._open()
            except Exception:  # noqa: BLE001 - edge of a thread: answers are from the runs themselves meanwhile
                _LOG.exception("the feature store of runs cannot be opened; trying again")
                if self._ending.wait(_AGAIN_S):
                    return
        while not self._ending.is_set():
            self._wake.wait()
            self._wake.clear()
            self._ending.wait(GATHER_S)
            while not self._written(self._store) and not self._ending.wait(_AGAIN_S):
                pass

    def _written(self, store: RunStore) -> bool:
        """Whether nothing is left."""
        with self._lock:
            pending, whole = self._pending, self._whole
            self._pending, self._whole, self._writing = {}, {}, True
        try:
            for cluster, item in list(whole.items()):
                _write_whole(store, cluster, item)
                del whole[cluster]
            if pending:
                store.put(list(pending.values()))
        except Exception:  # noqa: BLE001 - edge of a thread: the runs are in their table, and answers rest on these
            _LOG.exception("features of runs of %d clusters are not stored; trying again", len(pending) + len(whole))
            with self._lock:
                for cluster, rows in pending.items():
                    self._pending[cluster] = self._pending[cluster].after(rows) if cluster in self._pending else rows
                self._whole = whole | self._whole
            return False
        finally:
            with self._lock:
                self._writing = False
        return True


def _write_whole(store: RunStore, cluster: Cluster, item: _Whole) -> None:
    stored = store.change(cluster)
    if stored >= item.rows.change:
        # Another replica has been here; a model that is new has only its calibrations to add.
        if stored == item.rows.change:
            store.put([replace(item.rows, groups={})])
        return
    starts_s = sorted(run.started_s for run in item.runs)
    store.write(cluster, item.runs, item.rows.change, since_s=starts_s[-HISTORY:][0])
    store.put([item.rows])


def open_run_store(settings: Any) -> Callable[[], RunStore]:
    """Connects to the store that the settings name; Feast is imported only then."""

    def connect() -> RunStore:
        from kopt.features.run_store import RunFeatureStore

        store = RunFeatureStore(settings)
        store.connect()
        return store

    return connect
