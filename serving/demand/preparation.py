"""Memories of live services before anybody asks: when a replica has started, and before a new model answers.

Without one the first forecast of a service takes half a second. A thousand pools that lend by a model that has just
been promoted would wait for minutes, and lend by forecasts that have grown old.
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

    def stop(self) -> None:
        """Ends ``run`` after the services that it is busy with."""
        self._stopped.set()

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
