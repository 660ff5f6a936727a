"""Memories of live services before anybody asks: when a replica has started, when a history is pushed, and before a
new model answers.

Without one the first forecast of a service takes half a second. A thousand pools that lend by a model that has just
been promoted would wait for minutes, and lend by forecasts that have grown old; where processors are busy, first
answers would miss their callers' deadlines for as long.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from kopt.data.demand.table import DemandSeries
from kopt.models.demand.answers import STALE_S
from kopt.serving.base.model_slot import DemandModel
from kopt.serving.demand.live import LiveDemand
from kopt.serving.demand.series_cache import STORE, Memories

_LOG = logging.getLogger(__name__)
_TOGETHER = 32
"""Services at a time: of more, those that are asked about meanwhile would wait longer and none would be quicker."""


class Preparation:
    """Reads histories from ``live`` and puts what models remember of them into ``memories``."""

    def __init__(self, live: LiveDemand, memories: Memories, clock: Callable[[], float] = time.time) -> None:
        self._live, self._memories, self._clock = live, memories, clock
        self._stopped = threading.Event()
        self._new: dict[str, None] = {}
        self._changed = threading.Condition()
        self._follower: threading.Thread | None = None

    def run(self, model: DemandModel, within_s: float = math.inf) -> int:
        """Prepares answers of ``model``; returns of how many services. Blocks, ``within_s`` at most.

        Services that fell silent are left out, and as many as the cache of memories has no room for. Raises
        FeatureStoreError.
        """
        started = time.monotonic()
        names, count = self._live.services(), 0
        for first in range(0, len(names), _TOGETHER):
            if self._stopped.is_set() or time.monotonic() - started > within_s or count >= self._memories.most // 2:
                break
            count += self._prepare(model, names[first : first + _TOGETHER])
        if count:
            _LOG.info("%d services are known to %s after %.1f s", count, model.version, time.monotonic() - started)
        return count

    def arrived(self, service: str, model: Callable[[], DemandModel | None]) -> None:
        """A history of ``service`` has come: it is prepared in the background, with others that came meanwhile."""
        with self._changed:
            self._new[service] = None
            self._changed.notify()
            if self._follower is None and not self._stopped.is_set():
                self._follower = threading.Thread(target=self._follow, args=[model], name="arrivals", daemon=True)
                self._follower.start()

    def _follow(self, model: Callable[[], DemandModel | None]) -> None:
        while (names := self._arrivals()) is not None:
            current = model()
            if current is None or len(self._memories) >= self._memories.most // 2:
                continue  # a first model prepares all services
            try:
                self._prepare(current, names)
            except Exception as error:  # noqa: BLE001 - edge of a thread: first answers only take longer
                _LOG.warning("%d services are not prepared, their first answers take longer: %s", len(names), error)

    def _arrivals(self) -> list[str] | None:
        """Waits for services, a few at most; None when it is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._new or self._stopped.is_set())
            if self._stopped.is_set():
                return None
            names = [*self._new][:_TOGETHER]
            for name in names:
                del self._new[name]
            return names

    def stop(self) -> None:
        """Ends ``run`` and what follows arrivals after the services that they are busy with."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def _prepare(self, model: DemandModel, names: Sequence[str]) -> int:
        oldest_s = self._clock() - STALE_S
        series = [each for each in self._live.histories(names).values() if _end_s(each) >= oldest_s]
        unknown = [each for each in series if not self._memories.knows(STORE, model.version, each)]
        if unknown:
            for each, memory in zip(unknown, model.memories(unknown), strict=True):
                self._memories.add(STORE, model.version, each, memory)
        return len(series)


def _end_s(series: DemandSeries) -> float:
    return series.start_s + len(series) * series.step_s
