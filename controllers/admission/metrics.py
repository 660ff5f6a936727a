"""What the webhook process counts, for Prometheus."""

from collections.abc import Iterable
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kopt.controllers.admission.mutating import Record

M = TypeVar("M", Counter, Histogram)
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)


class WebhookMetrics:
    """Counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[object, ...], Counter | Histogram] = {}
        self._requests = Counter(
            "kopt_webhook_requests",
            "Reviews answered, by path and outcome.",
            ["path", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "kopt_webhook_seconds",
            "Time from a read review to its answer.",
            ["path"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._decisions = Counter(
            "kopt_webhook_decisions",
            "Decisions by row (queue, scheduler, sizing), reason code and mode.",
            ["row", "code", "mode"],
            registry=self.registry,
        )
        self.object_errors = Counter(
            "kopt_object_errors",
            "Objects that cannot be read; all others are.",
            ["controller", "kind", "reason"],
            registry=self.registry,
        )
        self.certificate_expires = Gauge(
            "kopt_webhook_certificate_expires_timestamp_seconds",
            "When the serving certificate expires.",
            registry=self.registry,
        )

        self.policy_generation = Gauge(
            "kopt_conformance_policy_generation",
            "Generation of the ConformancePolicy in force; 0 without one.",
            registry=self.registry,
        )

    def answered(self, path: str, outcome: str, seconds: float) -> None:
        """One review: outcome is patched, unchanged, refused, malformed or failed."""
        self._of(self._requests, path, outcome).inc()
        self._of(self._seconds, path).observe(seconds)

    def decided(self, records: Iterable[Record]) -> None:
        for record in records:
            self._of(self._decisions, record.row, record.code, record.mode.value).inc()

    def _of(self, metric: M, *labels: str) -> M:
        """The child of a metric; looking it up in prometheus_client costs as much as judging a pod."""
        key = (id(metric), *labels)
        result = self._children.get(key)
        if result is None:
            result = self._children[key] = metric.labels(*labels)
        return cast(M, result)

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
