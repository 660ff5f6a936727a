"""Brings the newest buckets of pushed series into the online store, many at once: for Feast one is as dear as many."""

import logging
import threading
from collections.abc import Callable, Sequence

from kopt.data.demand.table import DemandSeries

_LOG = logging.getLogger(__name__)
GATHER_S = 0.5
"""What is pushed within so long is written at once."""
_AGAIN_S = 5.0
"""After the store failed."""
_MOST_AT_ONCE = 256
Write = Callable[[Sequence[DemandSeries]], None]


class Materialiser:
    """One thread, begun with the first series. ``write`` puts series into the online store; what it raises is logged,
    and the series are written again later, unless newer ones have come."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._pending: dict[str, DemandSeries] = {}
        self._lock, self._wake, self._ending = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, series: DemandSeries) -> None:
        """Returns at once."""
        with self._lock:
            self._pending[series.name] = series
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._work, name="materialiser", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Writes what is left, once, and ends."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _work(self) -> None:
        while not self._ending.is_set():
            self._wake.wait()
            self._wake.clear()
            self._ending.wait(GATHER_S)
            while not self._written() and not self._ending.wait(_AGAIN_S):
                pass

    def _written(self) -> bool:
        """Whether nothing is left."""
        while batch := self._batch():
            try:
                self._write(batch)
            except Exception:  # noqa: BLE001 - edge of a thread: histories are kept, and answers rest on these
                _LOG.exception("what was pushed of %d services is not taken in; trying again", len(batch))
                with self._lock:
                    self._pending = {series.name: series for series in batch} | self._pending
                return False
        return True

    def _batch(self) -> list[DemandSeries]:
        with self._lock:
            names = list(self._pending)[:_MOST_AT_ONCE]
            return [self._pending.pop(name) for name in names]
