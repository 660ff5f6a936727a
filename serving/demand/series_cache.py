"""LRU cache of the model's state per series between requests."""

import threading
from dataclasses import dataclass, field

import numpy as np

from kopt.core.prediction import ModelVersion, Prediction
from kopt.data.demand.table import DemandSeries
from kopt.models.demand.memory import SeriesMemory
from kopt.serving.http.sharing import KeptByCaller

STORE = "kopt:store"
"""Stands for a caller: whose histories are those of the store."""
_Key = tuple[str, str, str, float]
FEW_BUCKETS = 12
"""Replaying up to this many new buckets is fast enough for the event loop."""


@dataclass
class Remembered:
    """A series' memory and the lock that one request at a time holds while it uses it."""

    memory: SeriesMemory = field(default_factory=SeriesMemory)
    lock: threading.Lock = field(default_factory=threading.Lock)
    request_key: tuple[object, ...] | None = None
    """The last request in full, with the history's bytes, and its answer: callers poll within a bucket."""
    answer: tuple[Prediction, ...] = ()

    def quick(self, series: DemandSeries) -> bool:
        """Whether ``series`` (on the grid) continues what is known by a few buckets, so that no replay is due."""
        memory = self.memory
        if memory.state is None or memory.state.step_s != series.step_s or not np.isfinite(memory.end_s):
            return False
        index = (memory.end_s - series.start_s) / series.step_s
        if index != int(index) or not len(series) - FEW_BUCKETS <= int(index) + 1 <= len(series) or index < 0:
            return False
        return bool(np.array_equal(series.value[int(index)], memory.last, equal_nan=True))


class Memories:
    """Memories by caller, model digest, series and phase of the grid.

    The phase keeps a history of minutes quick: its newest five minutes are summed, so its grid shifts every minute and
    each of the five phases has a memory of its own.
    """

    def __init__(self, most: int = 2000) -> None:
        self.most = most
        self._kept: KeptByCaller[_Key, Remembered] = KeptByCaller(most)
        self._lock = threading.Lock()

    def of(self, caller: str, model: ModelVersion, series: DemandSeries) -> Remembered:
        """The memory for a series on the grid; an empty one where there is none yet."""
        key = _key(model, series)
        with self._lock:
            remembered = self._kept.get(caller, key) or Remembered()
            self._kept.put(caller, key, remembered)
            return remembered

    def knows(self, caller: str, model: ModelVersion, series: DemandSeries) -> bool:
        with self._lock:
            remembered = self._kept.get(caller, _key(model, series))
        return remembered is not None and remembered.memory.state is not None

    def add(self, caller: str, model: ModelVersion, series: DemandSeries, memory: SeriesMemory) -> None:
        """A memory that knows ``series``, unless an answer has made one meanwhile."""
        remembered = self.of(caller, model, series)
        with remembered.lock:
            if remembered.memory.state is None:
                remembered.memory = memory

    def __len__(self) -> int:
        return len(self._kept)


def _key(model: ModelVersion, series: DemandSeries) -> _Key:
    return model.version, model.digest, series.name, series.start_s % series.step_s
