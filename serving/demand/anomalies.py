"""Which live services have demand outside of their past, for answers and as metrics: each pushed history is observed
in the background.

What is known of a service follows from its stored history, so a replica that has just started knows it again with the
first bucket that is pushed to it, or with the first question about it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Gauge

from kopt.data.demand.table import DemandSeries
from kopt.models.demand.anomalies import FALSE_ALARMS_PER_WEEK, Anomaly, Watches
from kopt.models.demand.answers import STALE_S
from kopt.serving.contract.demand_answers import AnomalyOut

_LOG = logging.getLogger(__name__)
_MOST_SERIES = 500
"""Services with a metric at a time."""
DIRECTIONS = ("lower", "higher")


class DemandAnomalies:
    """Thread-safe. ``false_alarms_per_week`` are those of each service; raises ValueError for what was not measured."""

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
        false_alarms_per_week: float = FALSE_ALARMS_PER_WEEK,
    ) -> None:
        self._watches, self._clock = Watches(false_alarms_per_week=false_alarms_per_week), clock
        self._lock = threading.Lock()

        def gauge(name: str, text: str, labels: Sequence[str]) -> Gauge:
            # Each bucket reaches one process; what an earlier bucket said in another is past.
            return Gauge(name, text, labels, registry=registry, multiprocess_mode="mostrecent")

        self._severity = gauge(
            "kopt_demand_anomaly",
            "How far demand is from what a service's past lets expect: at least 1 during an anomaly, else 0.",
            ["service", "direction"],
        )
        self._observed = gauge(
            "kopt_demand_anomaly_observed",
            "Demand of the newest five minutes during an anomaly, in the service's unit, else 0.",
            ["service"],
        )
        self._expected = gauge(
            "kopt_demand_anomaly_expected",
            "What a service's past lets expect of those five minutes during an anomaly, in its unit, else 0.",
            ["service"],
        )
        self._shown: set[str] = set()
        self._ends_s: dict[str, float] = {}

    def observe(self, all_series: Sequence[DemandSeries]) -> None:
        """Takes the new buckets of histories."""
        for series in all_series:
            with self._lock:
                self._update(series)
        with self._lock:
            self._forget_silent()

    def latest(self, series: DemandSeries) -> AnomalyOut | None:
        """The anomaly of a service as of the end of its stored history; None also where this process has not observed
        the service yet, or does so right now: its whole history is read in the background, never for an answer."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if series.name not in self._watches:
                return None
            anomaly = self._update(series)
        finally:
            self._lock.release()
        if anomaly is None or self._clock() - _end_s(series) > STALE_S:
            return None
        return AnomalyOut(anomaly.direction, anomaly.since_s, anomaly.value, anomaly.expected, anomaly.severity)

    def _update(self, series: DemandSeries) -> Anomaly | None:
        anomaly = self._watches.observe(series)
        self._show(series.name, anomaly, _end_s(series))
        return anomaly

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
        self._observed.labels(service).set(0.0 if anomaly is None else anomaly.value)
        self._expected.labels(service).set(0.0 if anomaly is None else anomaly.expected)

    def _forget_silent(self) -> None:
        """Nothing is known of a service that is pushed no more; that it is silent is what the collection reports."""
        now_s = self._clock()
        for service in [service for service, end_s in self._ends_s.items() if now_s - end_s > STALE_S]:
            self._show(service, None, 0.0)


def _end_s(series: DemandSeries) -> float:
    return series.start_s + len(series) * series.step_s
