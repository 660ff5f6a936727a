"""What the bandwidth service counts."""

from prometheus_client import Counter

from kopt.serving.contract.bandwidth_answers import BandwidthAnswer
from kopt.serving.http.metrics import EndpointMetrics, VersionGauge


class BandwidthMetrics(VersionGauge):
    def __init__(self, metrics: EndpointMetrics) -> None:
        super().__init__(metrics, "bandwidth")
        registry = metrics.registry
        self.answers = Counter(
            "kopt_bandwidth_answers", "Sets of GPUs answered by the model.", ["hardware"], registry=registry
        )
        self.fallbacks = Counter(
            "kopt_bandwidth_fallbacks", "Questions about sets answered without it.", ["reason"], registry=registry
        )

    def answered(self, answer: BandwidthAnswer) -> None:
        """Count one answer about sets of GPUs."""
        if answer.fallback:
            self.fallbacks.labels(answer.reasons[0].code).inc()
            return
        for item in (*answer.sets, *((answer.best.found,) if answer.best is not None else ())):
            self.answers.labels("unknown" if item.estimate.unknown else "known").inc()
