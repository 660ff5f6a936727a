"""The endpoint's Prometheus metrics. With several replicas on a machine any of them answers for all.

prometheus_client's multiprocess mode does that: where PROMETHEUS_MULTIPROC_DIR is set before it is imported, each
process keeps its samples in files there and a scrape adds them up. What all replicas share anyway, such as a table on
the disk, is read at the time of the scrape. What a predictor's service counts lies beside the service.
"""

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from kopt.core.prediction import ModelVersion

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0)
_SHARED = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
"""Read when prometheus_client is imported, as it does itself: Feast sets the variable while it is being imported."""


class EndpointMetrics:
    """Counters of one replica, in a registry of their own, to which services add theirs.

    ``shared`` makes collectors of what all replicas share, for one scrape each.
    """

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.shared: list[Callable[[], Collector]] = []
        self.requests = Counter("kopt_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self.seconds = Histogram("kopt_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=own)
        self.dropped = Counter("kopt_observations_dropped", "Answers not compared, the queue was full.", registry=own)
        self.in_flight = Gauge(
            "kopt_requests_in_flight", "Requests being answered.", registry=own, multiprocess_mode="livesum"
        )
        self.refused_by_predictor = Gauge(
            "kopt_models_refused",
            "1 while the version behind an alias is refused.",
            ["predictor", "alias"],
            registry=own,
            multiprocess_mode="livemax",
        )

        self.canary_answers = Counter(
            "kopt_canary_answers", "Questions of a challenger on trial.", ["predictor", "outcome"], registry=own
        )
        self._canary_percent = Gauge(
            "kopt_canary_percent",
            "Percentage of questions that the challenger answers.",
            ["predictor"],
            registry=own,
            multiprocess_mode="livemin",
        )
        self._canary_stopped = Gauge(
            "kopt_canary_stopped",
            "1 while a challenger on trial answers nobody, as it fails or is wrong.",
            ["predictor"],
            registry=own,
            multiprocess_mode="livemax",
        )

    def canary(self, predictor: str, percent: int, *, stopped: bool) -> None:
        """How much a challenger answers now."""
        self._canary_percent.labels(predictor).set(percent)
        self._canary_stopped.labels(predictor).set(int(stopped))

    def followed(self, predictor: str, alias: str, *, refused: bool) -> None:
        """An alias was looked at; whether what it points to is refused."""
        self.refused_by_predictor.labels(predictor, alias).set(int(refused))

    def render(self) -> bytes:
        """The exposition of all replicas on this machine."""
        registry = self.registry
        if _SHARED:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=_SHARED)  # type: ignore[no-untyped-call]
        text = generate_latest(registry)
        if not self.shared:
            return text
        shared = CollectorRegistry()
        for collector in self.shared:
            shared.register(collector())
        return text + generate_latest(shared)


class VersionGauge:
    """Which version of a predictor answers. A service's own counters are added in a subclass."""

    def __init__(self, metrics: EndpointMetrics, predictor: str) -> None:
        self._serving = Gauge(
            f"kopt_{predictor}_model_serving",
            "1 for the version that answers.",
            ["version"],
            registry=metrics.registry,
            multiprocess_mode="livemax",
        )

    def swapped(self, alias: str, before: ModelVersion | None, now: ModelVersion | None) -> None:
        """Another model answers from now on."""
        for version, answers in ((before, 0), (now, 1)):
            if version is not None:
                self._serving.labels(version.version).set(answers)
