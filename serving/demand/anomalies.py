"""Which live services have demand outside of their past, as a metric: each pushed history is seen in the background.

What is known of a service follows from its stored history, so a replica that has just started knows it again with the
first bucket that is pushed to it.
"""

import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Gauge

from kopt.data.demand.table import DemandSeries
from kopt.models.demand.anomalies import Anomaly, Watches
from kopt.models.demand.answers import STALE_S

_LOG = logging.getLogger(__name__)
_MOST_SERIES = 500
"""Services with a metric at a time."""
DIRECTIONS = ("lower", "higher")


class DemandAnomalies:
    """``observe`` is for one thread."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        self._watches, self._clock = Watches(), clock
        self._severity = Gauge(
            "kopt_demand_anomaly",
            "How far demand is from what a service's past lets expect: at least 1 during an anomaly, else 0.",
            ["service", "direction"],
            registry=registry,
            # Each bucket reaches one process; what an earlier bucket said in another is past.
            multiprocess_mode="mostrecent",
        )
        self._shown: set[str] = set()
        self._ends_s: dict[str, float] = {}

    def observe(self, all_series: Sequence[DemandSeries]) -> None:
        """Takes the new buckets of histories."""
        for series in all_series:
            end_s = series.start_s + len(series) * series.step_s
            self._show(series.name, self._watches.observe(series), end_s)
        self._forget_silent()

    def _show(self, service: str, anomaly: Anomaly | None, end_s: float) -> None:
        if anomaly is not None and service not in self._shown and len(self._shown) >= _MOST_SERIES:
            _LOG.warning("more than %d services have had anomalies; %r has no metric", _MOST_SERIES, service)
            return
        if anomaly is not None and service not in self._ends_s:
            text = "demand of %r is %s than its past lets expect: %.6g, expected %.6g"
            _LOG.info(text, service, anomaly.direction, anomaly.value, anomaly.expected)
        if anomaly is not None:
            self._shown.add(service)
            self._ends_s[service] = end_s
        elif self._ends_s.pop(service, None) is None:
            return
        for direction in DIRECTIONS:
            severity = anomaly.severity if anomaly is not None and anomaly.direction == direction else 0.0
            self._severity.labels(service, direction).set(severity)

    def _forget_silent(self) -> None:
        """Nothing is known of a service that is pushed no more; that it is silent is what the collection reports."""
        now_s = self._clock()
        for service in [service for service, end_s in self._ends_s.items() if now_s - end_s > STALE_S]:
            self._show(service, None, 0.0)
